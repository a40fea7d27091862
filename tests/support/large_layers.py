"""What the tests of large layers share: fresh weights, and what torch was called with."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def renewed(layer: Any) -> Any:
    """A copy with the weights that this test's seed gives."""
    layer = copy.deepcopy(layer)
    for part in layer.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return layer


class Recorder(TorchDispatchMode):
    """The operations called, the largest tensor made, and what convolutions were given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest = self.convolved = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        if name == "convolution":
            self.convolved += args[0].numel()
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *sizes])
        return result


def slow_where(cases: list[Any], places: set[int]) -> list[Any]:
    """The same cases, of which some take ARPACK or the whole image long."""
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(*case, marks=marks[at in places]) for at, case in enumerate(cases)]
