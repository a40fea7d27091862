"""Singular values and vectors of an operator."""

from spectralclip._spectrum.exact import Exact
from spectralclip._spectrum.ritz import Ritz, fresh_ritz, warmed_ritz
from spectralclip._spectrum.solvers import Lanczos, PowerQR, Solver
from spectralclip._spectrum.start_vectors import (
    FILTER_STEPS,
    filtered_row,
    gaussian,
    random_rows,
    torus_map,
)
from spectralclip._spectrum.subspace import ROUNDING, descending_eigh, lengths, small, tall_qr
from spectralclip._spectrum.svds import (
    ConvergenceWarning,
    Spectrum,
    singular_values,
    spectral_norm,
    svds,
)
from spectralclip._spectrum.symbol_peak import (
    Torus,
    enough_points,
    large_value,
    most_work,
    symbol_degrees,
    symbol_peak,
)
from spectralclip._spectrum.warm_tracker import RitzTracker, Tracked

__all__ = [
    "FILTER_STEPS",
    "ROUNDING",
    "ConvergenceWarning",
    "Exact",
    "Lanczos",
    "PowerQR",
    "Ritz",
    "RitzTracker",
    "Solver",
    "Spectrum",
    "Torus",
    "Tracked",
    "descending_eigh",
    "enough_points",
    "filtered_row",
    "fresh_ritz",
    "gaussian",
    "large_value",
    "lengths",
    "most_work",
    "random_rows",
    "singular_values",
    "small",
    "spectral_norm",
    "svds",
    "symbol_degrees",
    "symbol_peak",
    "tall_qr",
    "torus_map",
    "warmed_ritz",
]
