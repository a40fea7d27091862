"""Numerics on tensors and callables: nothing here knows of layers."""

from spectralclip._linalg.fourier import (
    alias_frequencies,
    corollary_bounds,
    duplicated_values,
    folded_frequencies,
    lemma_singular_values,
    symbols,
    tap_waves,
    theorem_singular_values,
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
from spectralclip._linalg.qp import Array, nonnegative_qp, solve_nonnegative
from spectralclip._linalg.small_matrices import (
    below,
    largest_eigenvalue,
    norm_is_below,
    sum_of_squares,
)

__all__ = [
    "Array",
    "LanczosRun",
    "alias_frequencies",
    "below",
    "corollary_bounds",
    "decomposable",
    "descending_eigh",
    "duplicated_values",
    "folded_frequencies",
    "full_precision",
    "has_float64",
    "largest_eigenvalue",
    "lemma_singular_values",
    "lengths",
    "nonnegative_qp",
    "norm_is_below",
    "on_host",
    "orthonormal_rows",
    "row_products",
    "rows_lq",
    "sent",
    "solve_nonnegative",
    "sum_of_squares",
    "symbols",
    "tall_qr",
    "tap_waves",
    "theorem_singular_values",
    "wide",
]
