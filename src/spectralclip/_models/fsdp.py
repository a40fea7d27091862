"""What `torch.distributed.fsdp.fully_shard` makes of modules, and plain modules in their place.

It changes a module in place: the class becomes one derived from the old, hooks gather the
weights before `forward`, and in between the module's parameters are `DTensor` shards.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


def is_sharded_tensor(tensor: Tensor) -> bool:
    """Whether a tensor is a `DTensor`, of which each process holds a part or a copy."""
    module = sys.modules.get("torch.distributed.tensor")  # not imported: there are none
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, to be read or written in place."""
    if not is_sharded_tensor(tensor):
        return tensor.detach()
    with torch.no_grad():
        return cast(Tensor, cast(Any, tensor).to_local()).detach()


def sharded_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that `fully_shard` has been applied to."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return []
    return [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]


def reshard_(model: nn.Module) -> None:
    """Let go of weights that a forward pass has gathered, so that only the shards are there.

    What is written into the shards would not be seen by a forward pass on gathered weights.
    """
    for module in sharded_modules(model):
        cast(Any, module).reshard()


def stand_in(module: nn.Module, parameter: Callable[[nn.Parameter], nn.Parameter]) -> nn.Module:
    """A module that computes the same without `fully_shard`, with parameters given by a function.

    The buffers stay those of the module, whatever it puts into their place later, and so does all
    else but the parameters and the hooks that `fully_shard` has added.
    """
    cls = type(module)
    if module in sharded_modules(module):
        cls = cls.__mro__[getattr(cls, "_orig_cls_mro_index", 2)]
    copy: nn.Module = object.__new__(cls)
    vars(copy).update(vars(module))
    copy._parameters = {
        name: None if own is None else parameter(own) for name, own in module._parameters.items()
    }
    copy._modules = {
        name: None if part is None else stand_in(part, parameter)
        for name, part in module._modules.items()
    }
    kept = {
        key
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for key, hook in hooks.items()
        if not _is_of_fsdp(hook)
    }
    for table in _HOOKS:
        entries = ((k, hook) for k, hook in getattr(module, table).items() if k in kept)
        setattr(copy, table, OrderedDict(entries))
    return copy


def unhooked(module: nn.Module) -> nn.Module:
    """The module itself; where `fully_shard` has been applied to it, one as it was before."""
    return stand_in(module, lambda parameter: parameter) if sharded_modules(module) else module


def gathered(module: nn.Module) -> nn.Module:
    """The module itself; where `fully_shard` has sharded its weights, one with whole weights.

    All processes have to call it, and each then has the whole weights of this module.
    """
    # A mark that fully_shard leaves: tensor parallel weights are meant to be as they are.
    if not any(getattr(part, "_is_fsdp_managed_module", False) for part in module.modules()):
        return module
    wholes: dict[int, nn.Parameter] = {}

    def whole(parameter: nn.Parameter) -> nn.Parameter:
        if id(parameter) not in wholes:
            value = parameter.detach()
            if is_sharded_tensor(value):
                value = cast(Any, value).full_tensor()
            wholes[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
        return wholes[id(parameter)]

    return stand_in(module, whole)


def _is_of_fsdp(hook: Any) -> bool:
    while hook is not None:
        if type(getattr(hook, "__self__", None)).__module__.startswith("torch.distributed."):
            return True
        hook = getattr(hook, "__wrapped__", None)
    return False
