"""The biases of GRUs that count in the network's bound, held together with a matrix."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, final

import torch
from torch import nn

from spectralclip._lipschitz import HeldBiases, state_biases
from spectralclip._models import FoundLayer, parts_of
from spectralclip._operators import Rows
from spectralclip._training.distributed.sharing import is_moved
from spectralclip._training.optimizers import Optimizers


class _StateBias(NamedTuple):
    """The parameter whose last third is `b_hn`, and the layer that is `W_hn`."""

    module: nn.Module
    name: str
    parameter: nn.Parameter
    layer: str


@final
class Biases:
    """`b_hn` of each GRU: no entry of it is above what the norm of `W_hn` counts at.

    In the rule of a GRU the two stand side by side, in `k = m sqrt(width) |W_hn| + |b_hn|`. If one
    number bounds both, the network's bound is a function of the norms of layers alone, at every
    step and not only at those at which bounds are reallocated. To reserve for the bias's growth
    would be a guess, and to read it back from the device at each step would stall that; a clamp is
    neither. It costs a share of `1 / sqrt(width)` of k, and hardly any freedom: what does not
    depend on the reset gate can be said by `b_in`, which is free.

    What is frozen, or is no parameter of the optimizer, stays as it is and counts as it is. So
    does the bias of a matrix that is not held.
    """

    def __init__(
        self, model: nn.Module, layers: Mapping[str, FoundLayer], optimizers: Optimizers
    ) -> None:
        self._optimizers = optimizers
        inside = [(name, one.modules[0]) for name, one in layers.items()]
        matrices = {_key(part): name for name, part in inside if isinstance(part, Rows)}
        self._all = list[_StateBias]()
        for module in model.modules():
            parts = parts_of(module)
            for bias, matrix in state_biases(parts).items():
                parameter, name = module._parameters.get(bias), matrices.get(_key(parts[matrix]))
                if parameter is not None and name is not None:
                    self._all.append(_StateBias(module, bias, parameter, name))

    def held(self, covered: Collection[str]) -> HeldBiases:
        """Those that are held now, where these layers are."""
        return {
            (one.module, one.name): one.layer
            for one in self._all
            if one.layer in covered and is_moved(one.parameter, self._optimizers)
        }

    @torch.no_grad()
    def clamp_(self, limits: Mapping[str, float]) -> None:
        """Bring the biases that are held within these limits of layers; nothing is read back."""
        held = self.held(limits)
        for one in self._all:
            if (one.module, one.name) in held:
                self._clamp_one_(one.parameter, limits[one.layer])

    def _clamp_one_(self, parameter: nn.Parameter, limit: float) -> None:
        own = parameter[2 * len(parameter) // 3 :]
        # LBFGS has to be told. It reads values back by itself at each step.
        if self._optimizers.infer_curvature:
            if not bool((own.abs() > limit).any()):
                return
            self._optimizers.restart()
        own.clamp_(-limit, limit)


def _key(part: Rows) -> tuple[int, int]:
    return id(part.whole), part.rows.start
