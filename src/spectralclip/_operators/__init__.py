"""A layer as a linear map: from its `forward` to `M`, applied but never formed."""

from spectralclip._operators.affine import (
    HALF_PRECISION,
    AffineFunction,
    Layer,
    NotAffineError,
    Stage,
    describe,
    evaluation_mode,
    input_shape,
    known_shape,
    plain_numerics,
    unchanged_rng,
)
from spectralclip._operators.blocks import ListedBlocks, WindowBlocks
from spectralclip._operators.build import KNOWN_AFFINE, build_maps, explicit_maps, is_plain, merge
from spectralclip._operators.check_affine import check_affine
from spectralclip._operators.maps import (
    AutogradMap,
    ConvGeometry,
    ConvMap,
    DenseMap,
    DiagonalMap,
    IdentityMap,
    Layout,
    LinearMap,
    ScalarMap,
    TransposedMap,
    pad_axes,
    read_positions,
)
from spectralclip._operators.operator import LinearOperator, as_operator

__all__ = [
    "HALF_PRECISION",
    "KNOWN_AFFINE",
    "AffineFunction",
    "AutogradMap",
    "ConvGeometry",
    "ConvMap",
    "DenseMap",
    "DiagonalMap",
    "IdentityMap",
    "Layer",
    "Layout",
    "LinearMap",
    "LinearOperator",
    "ListedBlocks",
    "NotAffineError",
    "ScalarMap",
    "Stage",
    "TransposedMap",
    "WindowBlocks",
    "as_operator",
    "build_maps",
    "check_affine",
    "describe",
    "evaluation_mode",
    "explicit_maps",
    "input_shape",
    "is_plain",
    "known_shape",
    "merge",
    "pad_axes",
    "plain_numerics",
    "read_positions",
    "unchanged_rng",
]
