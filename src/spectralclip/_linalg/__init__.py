"""Numerics on tensors and callables: nothing here knows of layers."""

from spectralclip._linalg.derivatives import gradients_in, pulled_back
from spectralclip._linalg.fourier import (
    alias_frequencies,
    folded_frequencies,
    grid_kernel,
    grid_symbols,
    plane_wave,
    split_phases,
    symbols,
    tap_waves,
)
from spectralclip._linalg.krylov import (
    LanczosRun,
    descending_eigh,
    lengths,
    orthonormal_rows,
    row_products,
    rows_lq,
    tall_qr,
)
from spectralclip._linalg.precision import (
    decomposable,
    full_precision,
    has_float64,
    on_host,
    sent,
    wide,
)
from spectralclip._linalg.qp import Array, as_array, nonnegative_qp, solve_nonnegative
from spectralclip._linalg.small_matrices import (
    GramSVD,
    below,
    largest_eigenvalue,
    largest_singular_value,
    norm_is_below,
    smaller_gram,
    sum_of_squares,
)

__all__ = [
    "Array",
    "GramSVD",
    "LanczosRun",
    "alias_frequencies",
    "as_array",
    "below",
    "decomposable",
    "descending_eigh",
    "folded_frequencies",
    "full_precision",
    "gradients_in",
    "grid_kernel",
    "grid_symbols",
    "has_float64",
    "largest_eigenvalue",
    "largest_singular_value",
    "lengths",
    "nonnegative_qp",
    "norm_is_below",
    "on_host",
    "orthonormal_rows",
    "plane_wave",
    "pulled_back",
    "row_products",
    "rows_lq",
    "sent",
    "smaller_gram",
    "solve_nonnegative",
    "split_phases",
    "sum_of_squares",
    "symbols",
    "tall_qr",
    "tap_waves",
    "wide",
]
