"""A layer's norm as a method knows it, and where it is from."""

from __future__ import annotations

from typing import Any, final

import torch


@final
class NormEstimate(float):
    """A layer's norm as a method knows it: a number that says where it is from.

    Attributes:
        is_checked: Whether it was measured on the layer itself, from below. Otherwise it was
            tracked: followed from step to step, some percent too low or too high.
        step: The step of the optimizer after which that was.

    Example:
        >>> from spectralclip import NormEstimate
        >>> norm = NormEstimate(0.5, is_checked=True, step=7)
        >>> norm
        0.5 (checked after step 7)
        >>> norm <= 1
        True
    """

    is_checked: bool
    step: int

    def __new__(cls, value: float, *, is_checked: bool, step: int) -> NormEstimate:
        """Make one."""
        norm = super().__new__(cls, value)
        norm.is_checked, norm.step = is_checked, step
        return norm

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and files: as a plain number and where it is from."""
        return _norm_estimate, (float(self), self.is_checked, self.step)

    def __repr__(self) -> str:
        how = "checked" if self.is_checked else "tracked"
        return f"{float(self)!r} ({how} after step {self.step})"

    def __str__(self) -> str:
        return str(float(self))


def _norm_estimate(value: float, is_checked: bool, step: int) -> NormEstimate:
    return NormEstimate(value, is_checked=is_checked, step=step)


# So that `torch.load`, which by default runs nothing that it does not know, reads stored norms.
torch.serialization.add_safe_globals([_norm_estimate])
