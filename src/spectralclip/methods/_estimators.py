"""What methods take for the norm of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from spectralclip.methods._registry import available, get

Estimator: TypeAlias = Callable[..., "float | None"]
"""`estimate(module, in_shape, *, generator=None)`, as methods have it."""


def estimators() -> dict[str, Estimator]:
    """By the name of the method, the estimates of the largest singular value that there are.

    Each is a function of a module and the shape of one input, takes a `generator`, and raises
    `OutsideDomain` for layers that the method is not defined for.

    Example:
        >>> from spectralclip.methods._estimators import estimators
        >>> "gouk" in estimators(), "clip_batch_norm" in estimators()
        (True, False)
    """
    found = {name: getattr(get(name), "estimate", None) for name in available()}
    return {name: estimate for name, estimate in found.items() if callable(estimate)}
