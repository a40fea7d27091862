"""One forward pass of a model under watch, which leaves the model as it was."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spectralclip._models.call_graph import Operations, Watch, tensors_in
from spectralclip._models.fsdp import reshard_
from spectralclip._operators import describe, evaluation_mode, unchanged_rng


def watch(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    whole: Sequence[nn.Module],
    containers: Sequence[nn.Module],
) -> Watch:
    """Run the model, and note how modules are used and what reads their outputs.

    Where the operations of a model cannot be followed, its modules still are, and each output
    counts as read by something else.
    """
    try:
        return _watch(model, args, kwargs, Watch(whole, containers), closely=True)
    except Exception as error:
        reason = str(error)
    # Some of torch refuses to run under a dispatch mode. If it was not that, the same error will
    # come again.
    try:
        seen = _watch(model, args, kwargs, Watch(whole, containers), closely=False)
    except Exception as error:
        _name_inputs(error, model, args, kwargs)
        raise
    warnings.warn(
        f"{describe(model)} does not run while its operations are followed: {reason} What reads "
        "the outputs of its layers is not known, and only `pairs` are composed.",
        stacklevel=2,
    )
    for calls in seen.calls.values():
        for call in calls:
            call.escapes = True
    return seen


def _name_inputs(
    error: Exception, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Add to a model's own error what it was called with, where Python has notes."""
    given = [f"{tuple(x.shape)} ({x.dtype})" for x in tensors_in((list(args), dict(kwargs)))]
    note = (
        f"{describe(model)} does not run on these example_inputs, with tensors of the shapes "
        f"{', '.join(given) or 'none'}: give what the model is called with, the batch included."
    )
    getattr(error, "add_note", lambda text: None)(note)


def _watch(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], seen: Watch, closely: bool
) -> Watch:
    # A model may work in place.
    args, kwargs = tree_map_only(Tensor, lambda x: x.detach().clone(), (list(args), dict(kwargs)))
    followed = Operations(seen.read) if closely else nullcontext()
    with in_evaluation(model), seen.hooked(), followed:
        for tensor in tensors_in(model(*args, **kwargs)):
            seen.read(tensor)
    return seen


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Let forward passes run as in evaluation and not compiled, and leave the model as it was."""
    with evaluation_mode([model]), left_as_it_was(model):
        if "torch._dynamo" not in sys.modules:  # nothing has been compiled
            yield
        else:
            with torch.compiler.set_stance("force_eager"):
                yield


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module, inside a compiled or replicated one."""
    parallel = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while True:
        inside = model.module if isinstance(model, parallel) else compiled_from(model)
        if inside is None:
            return model
        model = inside


def compiled_from(module: nn.Module) -> nn.Module | None:
    """The module that `torch.compile` wrapped, if this is such a wrapper."""
    inside = getattr(module, "_orig_mod", None)
    return inside if isinstance(inside, nn.Module) else None


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Let forward passes write into copies, and put back what they replace or draw."""
    modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    # Modules under `fully_shard` keep a record of whose weights are in the tables.
    reshard_(model)
    tables = [
        (table, dict(table))
        for module in modules
        for table in (vars(module), module._parameters, module._buffers, module._modules)
    ]
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    try:
        _lend_copies(modules)
        with ExitStack() as stack:
            for device in devices or {torch.device("cpu")}:
                stack.enter_context(unchanged_rng(device))
            yield
    finally:
        reshard_(model)
        for table, kept in tables:
            for key in [key for key in table if key not in kept]:
                del table[key]
            for key, value in kept.items():
                if table.get(key) is not value:
                    table[key] = value


def _lend_copies(modules: Iterable[nn.Module]) -> None:
    """Exchange buffers, and weights that embeddings renormalize in place, for copies."""
    copies: dict[int, Tensor] = {}
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                copy = copies.setdefault(id(buffer), buffer.detach().clone())
                module._buffers[name] = copy
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            weight = module._parameters.get("weight")
            if weight is not None:
                module._parameters["weight"] = nn.Parameter(weight.detach().clone(), False)
