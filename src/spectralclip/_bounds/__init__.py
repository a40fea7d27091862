"""Certified intervals around a norm."""

from spectralclip._bounds.all_sizes import norm_bounds_all_sizes as norm_bounds_all_sizes
from spectralclip._bounds.exact import embedding_sides as embedding_sides
from spectralclip._bounds.exact import torus_norm as torus_norm
from spectralclip._bounds.interval import Interval as Interval
from spectralclip._bounds.lanczos import rounding_margin as rounding_margin
from spectralclip._bounds.norm_bounds import BoundsRequest as BoundsRequest
from spectralclip._bounds.norm_bounds import check_request as check_request
from spectralclip._bounds.norm_bounds import norm_bounds as norm_bounds
from spectralclip._bounds.norm_bounds import norm_bounds_and_vector as norm_bounds_and_vector
from spectralclip._bounds.products import factor_bounds as factor_bounds
from spectralclip._bounds.products import product_bounds as product_bounds
from spectralclip._bounds.views import View as View
from spectralclip._common import publish

publish(Interval)
