"""What an audit leaves out: modules that are no affine layers, and layers that have no bound."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spectralclip._candidates import BATCH_NORM, BEFORE_A_NORM, bare_modules, is_container

NETWORK = "(the network)"  # among the names of layers
# In front of the reason, where something that has a norm could not be bounded. It is a part of the
# text so that a reader of the reports is told the same.
NOT_CERTIFIED = "not certified: "

_AFFINE_TYPES = (*BEFORE_A_NORM, BATCH_NORM, nn.Embedding)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_UNUSED = "not used in the forward pass"
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

    Args:
        model: The bare model.
        skipped: By the name of the module.
    """
    modules = dict(bare_modules(model))
    return {
        name: why if _is_no_layer(modules[name], why) else NOT_CERTIFIED + why
        for name, why in skipped.items()
    }


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
