"""A layer as a linear map: from its `forward` to `M`, applied but never formed."""

from spectralclip._common import publish
from spectralclip._operators.affine import HALF_PRECISION as HALF_PRECISION
from spectralclip._operators.affine import AffineFunction as AffineFunction
from spectralclip._operators.affine import Layer as Layer
from spectralclip._operators.affine import NotAffineError as NotAffineError
from spectralclip._operators.affine import flattened as flattened
from spectralclip._operators.affine import input_shape as input_shape
from spectralclip._operators.blocks import BlockForm as BlockForm
from spectralclip._operators.build import explicit_maps as explicit_maps
from spectralclip._operators.check_affine import check_affine as check_affine
from spectralclip._operators.check_affine import is_linear_in as is_linear_in
from spectralclip._operators.contexts import evaluation_mode as evaluation_mode
from spectralclip._operators.contexts import plain_numerics as plain_numerics
from spectralclip._operators.contexts import unchanged_rng as unchanged_rng
from spectralclip._operators.factor import Factor as Factor
from spectralclip._operators.kernel_operator import KernelLayout as KernelLayout
from spectralclip._operators.kernel_operator import Padding as Padding
from spectralclip._operators.kernel_operator import Sizes as Sizes
from spectralclip._operators.kernel_operator import kernel_operator as kernel_operator
from spectralclip._operators.maps import ConvGeometry as ConvGeometry
from spectralclip._operators.maps import ConvMap as ConvMap
from spectralclip._operators.maps import Layout as Layout
from spectralclip._operators.maps import LinearMap as LinearMap
from spectralclip._operators.maps import TransposedMap as TransposedMap
from spectralclip._operators.module_types import BATCH_NORMS as BATCH_NORMS
from spectralclip._operators.module_types import CONVS as CONVS
from spectralclip._operators.module_types import KNOWN_AFFINE as KNOWN_AFFINE
from spectralclip._operators.module_types import TRANSPOSED as TRANSPOSED
from spectralclip._operators.module_types import AnyBatchNorm as AnyBatchNorm
from spectralclip._operators.module_types import batch_norm_scale as batch_norm_scale
from spectralclip._operators.module_types import conv_paddings as conv_paddings
from spectralclip._operators.module_types import describe as describe
from spectralclip._operators.module_types import is_conv1d as is_conv1d
from spectralclip._operators.module_types import is_plain as is_plain
from spectralclip._operators.operator import LinearOperator as LinearOperator
from spectralclip._operators.operator import as_operator as as_operator
from spectralclip._operators.rows import Place as Place
from spectralclip._operators.rows import Rows as Rows
from spectralclip._operators.running_norms import RunningBatchNorm as RunningBatchNorm
from spectralclip._operators.running_norms import RunningShift as RunningShift
from spectralclip._operators.running_norms import on_channels as on_channels
from spectralclip._operators.variants import in_float64 as in_float64
from spectralclip._operators.variants import operator_at as operator_at

publish(LinearOperator, NotAffineError)
