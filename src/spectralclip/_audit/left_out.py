"""What an audit leaves out: modules that are no affine layers, and layers that have no bound."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spectralclip._linalg import largest_singular_value
from spectralclip._models import (
    BATCH_NORM,
    BEFORE_A_NORM,
    bare_modules,
    is_container,
    is_sharded_tensor,
)

NETWORK = "(the network)"  # among the names of layers
# In front of the reason, where something that has a norm could not be bounded. It is a part of the
# text so that a reader of the reports is told the same.
NOT_CERTIFIED = "not certified: "

_AFFINE_TYPES = (*BEFORE_A_NORM, BATCH_NORM, nn.Embedding)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
_UNUSED = "not used in the forward pass"
_LEAVE_OUT = " Leave it out."  # as one is told who asks for a single layer
# What is said of modules that were tried, and found to be something else than an affine layer.
_NO_LAYER = (
    "not affine",
    "mixes the entries of a batch",
    "does not keep the batch dimension",
    "depends on the batch",
)


def with_verdicts(model: nn.Module, skipped: Mapping[str, str]) -> dict[str, str]:
    """The reasons of `skipped_layers`, marked where the module may well be an affine layer.

    A layer norm has no norm of its own, and nothing is missing if it has no row. Of a dense layer
    whose weight is used by a function, or of a scripted module, a row is missing.
    """
    modules = dict(bare_modules(model))
    return {
        name: _explained(modules[name], why)
        if _is_no_layer(modules[name], why)
        else NOT_CERTIFIED + why
        for name, why in skipped.items()
    }


def _explained(module: nn.Module, why: str) -> str:
    """Why a module is no layer, and what can be done about it, in an audit's terms."""
    if isinstance(module, _RECURRENT) and why != _UNUSED:
        norms = [
            f"{name} {' x '.join(map(str, weight.shape))} of norm "
            f"{largest_singular_value(weight.detach()):.4g}"
            for name, weight in module.named_parameters()
            if weight.ndim == 2 and not weight.is_meta and not is_sharded_tensor(weight)
        ]
        return (
            "a recurrent layer, not affine: its weights act on its state again and again, through "
            f"gates that depend on the input. Its matrices: {'; '.join(norms)}"
        )
    why = why.removesuffix(_LEAVE_OUT)
    if isinstance(module, _NORMS) and "not affine" in why:
        return (
            f"{why} It divides by a deviation of its input, and the network's bound counts it by "
            "its eps: a larger eps, or batch norm in its place, lowers that."
        )
    return why


def _is_no_layer(module: nn.Module, why: str) -> bool:
    if why == _UNUSED or is_container(module) or any(words in why for words in _NO_LAYER):
        return True
    several = why == "not called with a single tensor" and not isinstance(module, _AFFINE_TYPES)
    return several or isinstance(module, _RECURRENT)


def uncertified(skipped: Mapping[str, str]) -> dict[str, str]:
    """Of all that was left out what has a norm that could not be bounded, and why."""
    return {
        name: why.removeprefix(NOT_CERTIFIED)
        for name, why in skipped.items()
        if why.startswith(NOT_CERTIFIED)
    }
