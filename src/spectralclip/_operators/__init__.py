"""A layer as a linear map: from its `forward` to `M`, applied but never formed."""

from spectralclip._operators.affine import (
    HALF_PRECISION,
    AffineFunction,
    Layer,
    NotAffineError,
    input_shape,
    known_shape,
)
from spectralclip._operators.blocks import ListedBlocks
from spectralclip._operators.build import build_maps, explicit_maps, merge
from spectralclip._operators.check_affine import check_affine, is_linear_in
from spectralclip._operators.contexts import evaluation_mode, plain_numerics, unchanged_rng
from spectralclip._operators.maps import (
    ConvGeometry,
    ConvMap,
    Layout,
    LinearMap,
    TransposedMap,
    read_positions,
)
from spectralclip._operators.module_types import (
    BATCH_NORMS,
    CONVS,
    KNOWN_AFFINE,
    TRANSPOSED,
    AnyBatchNorm,
    batch_norm_scale,
    describe,
    is_plain,
)
from spectralclip._operators.operator import LinearOperator, as_operator, in_float64, operator_at

__all__ = [
    "BATCH_NORMS",
    "CONVS",
    "HALF_PRECISION",
    "KNOWN_AFFINE",
    "TRANSPOSED",
    "AffineFunction",
    "AnyBatchNorm",
    "ConvGeometry",
    "ConvMap",
    "Layer",
    "Layout",
    "LinearMap",
    "LinearOperator",
    "ListedBlocks",
    "NotAffineError",
    "TransposedMap",
    "as_operator",
    "batch_norm_scale",
    "build_maps",
    "check_affine",
    "describe",
    "evaluation_mode",
    "explicit_maps",
    "in_float64",
    "input_shape",
    "is_linear_in",
    "is_plain",
    "known_shape",
    "merge",
    "operator_at",
    "plain_numerics",
    "read_positions",
    "unchanged_rng",
]
