"""Singular values and vectors of an operator."""

from spectralclip._spectrum.exact import Exact
from spectralclip._spectrum.rough import fresh_ritz, warmed_ritz
from spectralclip._spectrum.solvers import Lanczos, PowerQR, Solver
from spectralclip._spectrum.start_vectors import (
    START,
    filtered_row,
    gaussian,
    random_rows,
    torus_map,
)
from spectralclip._spectrum.stopping import ROUNDING
from spectralclip._spectrum.svds import (
    ConvergenceWarning,
    leading_spectrum,
    singular_values,
    spectral_norm,
    svds,
    warned,
)
from spectralclip._spectrum.symbol_peak import (
    Torus,
    enough_points,
    large_value,
    most_work,
    symbol_degrees,
    symbol_peak,
)
from spectralclip._spectrum.triplets import Spectrum, Triplets
from spectralclip._spectrum.warm_tracker import RitzTracker

__all__ = [
    "ROUNDING",
    "START",
    "ConvergenceWarning",
    "Exact",
    "Lanczos",
    "PowerQR",
    "RitzTracker",
    "Solver",
    "Spectrum",
    "Torus",
    "Triplets",
    "enough_points",
    "filtered_row",
    "fresh_ritz",
    "gaussian",
    "large_value",
    "leading_spectrum",
    "most_work",
    "random_rows",
    "singular_values",
    "spectral_norm",
    "svds",
    "symbol_degrees",
    "symbol_peak",
    "torus_map",
    "warmed_ritz",
    "warned",
]
