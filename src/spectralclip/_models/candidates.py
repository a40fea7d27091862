"""Which modules of a model may be layers, and why some are not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._models.call_graph import Call, distinct_shapes
from spectralclip._models.forward_pass import compiled_from
from spectralclip._models.fsdp import gathered
from spectralclip._operators import RunningShift, check_affine, is_plain

BATCH_NORM = nn.modules.batchnorm._BatchNorm
BEFORE_A_NORM = (nn.Linear, nn.modules.conv._ConvNd)
NO_PARAMETERS = "has no parameters"
_LAYER_TYPES = (*BEFORE_A_NORM, BATCH_NORM, nn.Embedding)
# Affine without parameters. Identities and dropout are not among them: in evaluation they hand on
# the very tensor that they are given.
_CONNECTORS = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.Upsample, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    *(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
)


def bare_modules(
    model: nn.Module, *, remove_duplicate: bool = True
) -> Iterator[tuple[str, nn.Module]]:
    """As `named_modules`, with the names that there would be without `torch.compile`."""
    for name, module in model.named_modules(remove_duplicate=remove_duplicate):
        if compiled_from(module) is None:
            yield ".".join(part for part in name.split(".") if part != "_orig_mod"), module


def candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Layers of a known type, and all else that has parameters of its own, each once."""
    inside: set[nn.Module] = set()
    for name, module in bare_modules(model):
        if module in inside or _is_shift(module):
            continue
        whole = isinstance(module, (*_LAYER_TYPES, torch.jit.ScriptModule))
        if whole or is_parametrized(module) or any(True for _ in module.parameters(recurse=False)):
            yield name, module
        if whole:
            inside.update(module.modules())
        else:
            inside.update(part for holder in _parametrizations(module) for part in holder.modules())


def connectors(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Affine modules without a norm to hold, which may lie between two layers of a chain."""
    return [
        (name, part)
        for name, part in bare_modules(model)
        if is_plain(part, *_CONNECTORS) or (_is_shift(part) and is_plain(part, RunningShift))
    ]


def is_container(module: nn.Module) -> bool:
    """Whether it is looked at module by module, rather than as one."""
    children = {name for name, _ in module.named_children()} - {"parametrizations"}
    return bool(children) and not isinstance(module, (*_LAYER_TYPES, torch.jit.ScriptModule))


def reason(
    module: nn.Module, calls: Sequence[Call], read_outside: Collection[int], known: bool
) -> str:
    """Why a module is left out; empty if it is not."""
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted, so that its parameters are out of reach"
    used = [name for name, one in _own(module) if id(one) in read_outside]
    functionally = f"parameters ({', '.join(used)}) are used functionally"
    if is_container(module):
        return (
            f"its own {functionally if used else 'parameters are not seen in use'}, "
            "its submodules are looked at one by one"
        )
    if not calls:
        return f"is not called: its {functionally}" if used else "not used in the forward pass"
    if isinstance(module, nn.EmbeddingBag):
        return "has no input shape: the bags of an EmbeddingBag differ in length"
    if isinstance(module, (BATCH_NORM, RunningShift)) and module.running_mean is None:
        return "without running statistics it depends on the batch"
    if any(call.in_shape is None for call in calls):
        return "not called with a single tensor"
    try:
        for shape in () if known else distinct_shapes(calls):
            check_affine(gathered(module), shape)
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error)
    return "" if any(True for _ in module.parameters()) else NO_PARAMETERS


def _is_shift(module: nn.Module) -> bool:
    """Whether all that a module adds is a constant: its norm is 1, whatever its parameters are."""
    return isinstance(module, RunningShift) and module.running_mean is not None


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a module alone, or of all that is in it, where it counts as one."""
    if not is_container(module):
        yield from module.named_parameters()
        return
    yield from module.named_parameters(recurse=False)
    for holder in _parametrizations(module):
        yield from holder.named_parameters()


def _parametrizations(module: nn.Module) -> list[nn.Module]:
    held = getattr(module, "parametrizations", None)
    return [held] if is_parametrized(module) and isinstance(held, nn.Module) else []
