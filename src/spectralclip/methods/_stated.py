"""What methods state of themselves as data: what they promise, and what they take for a norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

from torch import nn

from spectralclip._training.method import Method
from spectralclip.methods._registry import available, get

Estimator: TypeAlias = Callable[..., "float | None"]
"""`estimate(module, in_shape, *, generator=None)`, as methods have it."""


def everything(module: nn.Module) -> bool:
    """Every layer that the method takes."""
    return True


@final
@dataclass(frozen=True)
class Promise:
    """What a method promises of the layers that it takes, so that it can be held to it.

    A class states them as `promises: ClassVar[tuple[Promise, ...]]`, one for each of its settings
    that promises something. Each is about layers that training hardly moves, and weights as
    `remove()` leaves them.

    Attributes:
        of: Whose norm stays within the bound: "norm", that of the layer as a linear map, as the
            float64 SVD of its matrix has it; "kernel", that of the kernel as a matrix with a row
            for each output channel.
        slack: By which part of the bound it may be above.
        steps: After how many steps it is there.
        covers: For which modules, of those that the method takes.
        settings: With which settings of the method, where its defaults do not get there.

    Example:
        >>> from torch import nn
        >>> from spectralclip.methods._stated import Promise
        >>> promise = Promise(slack=1e-3, covers=lambda module: isinstance(module, nn.Linear))
        >>> promise.of, promise.covers(nn.Conv2d(1, 1, 3))
        ('norm', False)
    """

    of: Literal["norm", "kernel"] = "norm"
    slack: float = 1e-3
    steps: int = 1
    covers: Callable[[nn.Module], bool] = everything
    settings: Mapping[str, Any] = field(default_factory=dict)


def promises_of(method: Method | type[Method]) -> tuple[Promise, ...]:
    """What a method promises; nothing where it does not say so."""
    return tuple(getattr(method, "promises", ()))


def estimators() -> dict[str, Estimator]:
    """By the name of the method, the estimates of the largest singular value that there are.

    Each is a function of a module and the shape of one input, takes a `generator`, and raises
    `OutsideDomain` for layers that the method is not defined for.

    Example:
        >>> from spectralclip.methods._stated import estimators
        >>> "gouk" in estimators(), "clip_batch_norm" in estimators()
        (True, False)
    """
    found = {name: getattr(get(name), "estimate", None) for name in available()}
    return {name: estimate for name, estimate in found.items() if callable(estimate)}
