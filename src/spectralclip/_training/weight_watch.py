"""Whether weights are still those that a method was attached to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor

from spectralclip._training.distributed.sharing import Sharing


@final
class WeightWatch:
    """What the weights of layers were like at first: how often written to, and of which type."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._versions, self._kinds = self._versions_now(), self._kinds_now()

    def have_changed(self) -> bool:
        """Whether any has been written to, by whomever."""
        return self._versions != self._versions_now()

    def refuse_converted(self, error: RuntimeError) -> None:
        """Name a layer that was converted or moved, as what makes a step fail."""
        for name, now in self._kinds_now().items():
            if now != self._kinds[name]:
                raise RuntimeError(
                    f"Layer {name!r} has become {now[0]}, and was {self._kinds[name][0]} when the "
                    "method was attached: convert or move a model first, and then attach."
                ) from error

    def _versions_now(self) -> list[int]:
        return versions([w for weights in self._weights().values() for w in weights])

    def _kinds_now(self) -> dict[str, list[str]]:
        own = self._weights().items()
        return {name: [f"{w.dtype} on {w.device}" for w in weights] for name, weights in own}

    def _weights(self) -> Mapping[str, Sequence[Tensor]]:
        return self._sharing.weights()


def versions(weights: Sequence[Tensor]) -> list[int]:
    """How often each has been written to."""
    return [weight._version for weight in weights]
