"""Certified intervals around a norm."""

from spectralclip._bounds.all_sizes import norm_bounds_all_sizes
from spectralclip._bounds.exact import embedding_sides, torus_norm
from spectralclip._bounds.interval import Interval
from spectralclip._bounds.lanczos import rounding_margin
from spectralclip._bounds.norm_bounds import (
    BoundsRequest,
    check_request,
    norm_bounds,
    norm_bounds_and_vector,
)
from spectralclip._bounds.views import View

__all__ = [
    "BoundsRequest",
    "Interval",
    "View",
    "check_request",
    "embedding_sides",
    "norm_bounds",
    "norm_bounds_all_sizes",
    "norm_bounds_and_vector",
    "rounding_margin",
    "torus_norm",
]
