"""The matrices inside modules that use their weights without calling a module for each.

Recurrent layers keep the matrices of their gates in one parameter, and so does attention those of
queries, keys and values. Each of them is a dense layer with a norm of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from spectralclip._operators import Rows

# In the order in which torch stacks them.
_GATES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.LSTM: ("input", "forget", "cell", "output"),
    nn.GRU: ("reset", "update", "new"),
    nn.RNN: (),
    nn.LSTMCell: ("input", "forget", "cell", "output"),
    nn.GRUCell: ("reset", "update", "new"),
    nn.RNNCell: (),
}


def parts_of(module: nn.Module) -> dict[str, Rows]:
    """The matrices inside a module that is known to have some, by their names in it.

    A subclass counts while it keeps the `forward` of its type. Hooks may change what goes in and
    comes out, and no matrix. Weights that are computed, as by a parametrization, are left out.
    """
    found = {part.label: part for part in _parts(module)}
    for part in found.values():
        # As the owner is: what is sharded is gathered before it is looked at.
        if getattr(module, "_is_fsdp_managed_module", False):
            part._is_fsdp_managed_module = True  # type: ignore[assignment]
    return found


def weights_left(module: nn.Module, parts: dict[str, Rows]) -> list[str]:
    """The names of matrices of a module that are not among its parts."""
    known = {id(part.whole) for part in parts.values()}
    own = module.named_parameters()
    return [name for name, weight in own if weight.ndim == 2 and id(weight) not in known]


def _parts(module: Any) -> Iterator[Rows]:
    if _computes_as(module, nn.MultiheadAttention):
        yield from _projections(module)
    for kind, gates in _GATES.items():
        if _computes_as(module, kind):
            for name in getattr(module, "_flat_weights_names", ("weight_ih", "weight_hh")):
                parameter = module._parameters.get(name)
                if name.startswith("weight_") and parameter is not None:
                    # The projection of an LSTM's state is one matrix, and has no gates.
                    parts = () if "_hr_" in name else gates
                    yield from _split(parameter, name, parts, kind.__name__)


def _projections(attention: Any) -> Iterator[Rows]:
    """Of queries, keys and values, packed into one parameter or apart; and of the output."""
    owner, weights = "MultiheadAttention", attention._parameters
    packed = weights.get("in_proj_weight")
    if packed is not None:
        yield from _split(packed, "in_proj_weight", ("q", "k", "v"), owner)
    apart = {name: weights.get(name) for name in (f"{part}_proj_weight" for part in "qkv")}
    # Its own forward is not called.
    apart["out_proj"] = attention.out_proj._parameters.get("weight")
    for name, weight in apart.items():
        if weight is not None:
            yield Rows(weight, slice(None), name, owner)


def _split(parameter: nn.Parameter, name: str, parts: Sequence[str], owner: str) -> Iterator[Rows]:
    """Equal parts of a parameter, or all of it."""
    if not parts:
        yield Rows(parameter, slice(None), name, owner)
        return
    size = len(parameter) // len(parts)
    for place, part in enumerate(parts):
        yield Rows(parameter, slice(place * size, (place + 1) * size), f"{name}[{part}]", owner)


def _computes_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    if not isinstance(module, kind) or isinstance(module, torch.jit.ScriptModule):
        return False
    return type(module).forward is kind.forward and "forward" not in vars(module)
