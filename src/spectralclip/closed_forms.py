"""The paper's closed forms for circular convolutions with one input or one output channel."""

from spectralclip._linalg import (
    corollary_bounds,
    duplicated_values,
    lemma_singular_values,
    theorem_singular_values,
)

__all__ = [
    "corollary_bounds",
    "duplicated_values",
    "lemma_singular_values",
    "theorem_singular_values",
]
