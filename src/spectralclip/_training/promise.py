"""What methods promise, as data, so that they can be held to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from torch import nn


@final
@dataclass(frozen=True)
class Promise:
    """What a method promises of the layers that it takes, so that it can be held to it.

    A method states them as its `promises`, one for each of its settings that promises something.
    Each is about layers that training hardly moves, and weights as `remove()` leaves them.

    Attributes:
        of: Whose norm stays within the bound: "norm", that of the layer as a linear map, as the
            float64 SVD of its matrix has it; "kernel", that of the kernel as a matrix with a row
            for each output channel.
        margin: By which part of the bound it may be above.
        steps: After how many steps it is there.
        covers: For which modules, of those that the method takes; by default for all.
        settings: With which settings of the method, where its defaults do not get there.

    Example:
        >>> from torch import nn
        >>> from spectralclip._training import Promise
        >>> promise = Promise(margin=1e-3, covers=lambda module: isinstance(module, nn.Linear))
        >>> promise.of, promise.covers(nn.Conv2d(1, 1, 3))
        ('norm', False)
    """

    of: Literal["norm", "kernel"] = "norm"
    margin: float = 1e-3
    steps: int = 1
    covers: Callable[[nn.Module], bool] = lambda module: True
    settings: Mapping[str, Any] = field(default_factory=dict)
