"""Numerics on tensors and callables: nothing here knows of layers."""

from spectralclip._linalg.derivatives import gradients_in, pulled_back
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
    GramSVD,
    below,
    largest_eigenvalue,
    norm_is_below,
    smaller_gram,
    sum_of_squares,
)

__all__ = [
    "Array",
    "GramSVD",
    "alias_frequencies",
    "below",
    "corollary_bounds",
    "decomposable",
    "duplicated_values",
    "folded_frequencies",
    "full_precision",
    "gradients_in",
    "has_float64",
    "largest_eigenvalue",
    "lemma_singular_values",
    "nonnegative_qp",
    "norm_is_below",
    "on_host",
    "pulled_back",
    "sent",
    "smaller_gram",
    "solve_nonnegative",
    "sum_of_squares",
    "symbols",
    "tap_waves",
    "theorem_singular_values",
    "wide",
]
