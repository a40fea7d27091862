"""Certified intervals around a norm."""

from spectralclip._bounds.exact import embedding_sides, torus_norm
from spectralclip._bounds.lanczos import Recurrence, continued, slack
from spectralclip._bounds.norm_bounds import (
    BoundsRequest,
    Interval,
    check_request,
    norm_bounds,
    norm_bounds_and_vector,
)
from spectralclip._bounds.views import View

__all__ = [
    "BoundsRequest",
    "Interval",
    "Recurrence",
    "View",
    "check_request",
    "continued",
    "embedding_sides",
    "norm_bounds",
    "norm_bounds_and_vector",
    "slack",
    "torus_norm",
]
