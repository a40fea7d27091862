"""The kinds of linear maps: one class a kind."""

from spectralclip._operators.maps.autograd import AutogradMap
from spectralclip._operators.maps.base import Layout, LinearMap, TransposedMap
from spectralclip._operators.maps.conv import ConvMap
from spectralclip._operators.maps.dense import DenseMap
from spectralclip._operators.maps.diagonal import DiagonalMap, IdentityMap, ScalarMap
from spectralclip._operators.maps.padding import ConvGeometry, pad_axes, read_positions

__all__ = [
    "AutogradMap",
    "ConvGeometry",
    "ConvMap",
    "DenseMap",
    "DiagonalMap",
    "IdentityMap",
    "Layout",
    "LinearMap",
    "ScalarMap",
    "TransposedMap",
    "pad_axes",
    "read_positions",
]
