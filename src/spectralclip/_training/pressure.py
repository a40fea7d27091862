"""How much of the optimizer's steps a method undoes, sampled now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, final

import torch
from torch import Tensor

Weights: TypeAlias = Mapping[str, Sequence[Tensor]]

EVERY = 50  # steps between two samples: three passes over the weights, a fiftieth of them a step


@final
class Pressure:
    """The share of a step that clipping undoes, by layer, measured on the weights' device.

    After the step before, the weights are copied; so what the optimizer and then the method have
    done to them is known. Nothing is read back before `read` is called.
    """

    def __init__(self) -> None:
        self._start: dict[str, list[Tensor]] = {}
        self._moved: dict[str, list[Tensor]] = {}
        self._shares: dict[str, Tensor] = {}

    def is_due(self, step: int) -> bool:
        """Whether a sample begins or ends at this step."""
        return bool(self._start) or _begins(step)

    def before(self, weights: Weights) -> None:
        """Take note of where the optimizer has brought the weights."""
        self._moved = {name: _copies(weights[name]) for name in self._start if name in weights}

    def after(self, step: int, weights: Weights) -> None:
        """Take note of where the method has brought them; copy them, if the next step is due.

        Layers of other optimizers, which step at other times, are waited for.
        """
        for name, moved in self._moved.items():
            taken = _distance(moved, self._start.pop(name))
            undone = _distance(weights[name], moved)
            self._shares[name] = torch.where(taken > 0, undone / taken, 0.0)
        self._moved = {}
        if _begins(step):
            self._start |= {name: _copies(own) for name, own in weights.items()}

    def read(self) -> dict[str, float]:
        """The shares that are known."""
        return {name: float(share) for name, share in self._shares.items()}

    def go_on(self, shares: Mapping[str, float], step: int, weights: Weights) -> None:
        """Go on after a step, from shares that were read then and the weights of that time."""
        self._shares = {name: torch.tensor(float(share)) for name, share in shares.items()}
        self._start = {name: _copies(own) for name, own in weights.items() if _begins(step)}
        self._moved = {}


def _begins(step: int) -> bool:
    return (step + 1) % EVERY == 0 or step == 1


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _distance(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """The distance of two lists of tensors, as of one vector each."""
    with torch.no_grad():
        parts = torch._foreach_norm(torch._foreach_sub(list(first), list(second)))
        whole: Tensor = torch.linalg.vector_norm(torch.stack([part.float() for part in parts]))
        return whole
