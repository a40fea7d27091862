"""The kinds of linear maps: one class a kind."""

from spectralclip._operators.maps.autograd import AutogradMap as AutogradMap
from spectralclip._operators.maps.base import Layout as Layout
from spectralclip._operators.maps.base import LinearMap as LinearMap
from spectralclip._operators.maps.base import TransposedMap as TransposedMap
from spectralclip._operators.maps.base import adjoint_gap as adjoint_gap
from spectralclip._operators.maps.callables import ArrayFunction as ArrayFunction
from spectralclip._operators.maps.callables import CallableMap as CallableMap
from spectralclip._operators.maps.conv import ConvMap as ConvMap
from spectralclip._operators.maps.dense import DenseMap as DenseMap
from spectralclip._operators.maps.diagonal import DiagonalMap as DiagonalMap
from spectralclip._operators.maps.diagonal import IdentityMap as IdentityMap
from spectralclip._operators.maps.diagonal import ScalarMap as ScalarMap
from spectralclip._operators.maps.padding import ConvGeometry as ConvGeometry
