"""`follow`: one forward pass of a model, as the flow of its input's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spectralclip._lipschitz.examples import Call
from spectralclip._lipschitz.flow import Flow, alike
from spectralclip._lipschitz.gates import with_gates
from spectralclip._lipschitz.recorder import Calls, Functions, Operations
from spectralclip._lipschitz.recording import HIDDEN, TOKEN, Recording, hides_tensors
from spectralclip._lipschitz.recurrent import RECURRENT_LAYERS
from spectralclip._lipschitz.rules import ATTENTION, HOOKED, RECURRENT
from spectralclip._lipschitz.sorting import with_sorted
from spectralclip._models import (
    BATCH_NORM,
    Inputs,
    Survey,
    bare_modules,
    connectors,
    in_evaluation,
    parts_of,
    tensors_in,
    unhooked,
    weights_left,
)
from spectralclip._operators import BATCH_NORMS, Rows, is_plain, plain_numerics

# Functions of which more is known than of the operations that they consist of, and why nothing is
# known of some others.
_WHOLE_FUNCTIONS: dict[Any, str] = {
    F.softsign: "",
    F.tanhshrink: "",
    F.pad: "",
    F.rms_norm: "",
    F.normalize: "",
    F.scaled_dot_product_attention: ATTENTION,
    F.multi_head_attention_forward: ATTENTION,
}


class NotFollowedError(RuntimeError):
    """The model did not run while its operations were followed."""


@plain_numerics()
def follow(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    whole: Mapping[nn.Module, str] | None = None,
) -> Flow:
    """Run a model, as in evaluation, and follow what becomes of its input."""
    args, kwargs = tree_map_only(Tensor, lambda x: x.detach().clone(), (list(args), dict(kwargs)))
    if whole is None:
        whole = taken_as_one(Survey.of(model, Inputs(tuple(args), kwargs)))
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(in_evaluation(model))
        names = {module: name for name, module in bare_modules(model)}
        lasting = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        recording = Recording(names, lasting)
        stack.callback(recording.put_back)
        if hides_tensors((args, kwargs)):
            recording.flow.escapes.append(("", "input", HIDDEN))
        for tensor in tensors_in((args, kwargs)):
            if tensor.is_floating_point():
                recording.source(tensor)
            elif tensor.is_complex():
                recording.flow.escapes.append(("", "input", "complex numbers are not followed"))
            else:
                recording.tag([tensor], frozenset({TOKEN}))
        stack.enter_context(Calls(recording, whole).hooked())
        try:
            with Operations(recording), Functions(recording, _WHOLE_FUNCTIONS):
                output = model(*args, **kwargs)
            return recording.close(output)
        except Exception as error:
            raise NotFollowedError(str(error)) from error


def ways(
    model: nn.Module,
    examples: Sequence[Call],
    parts: Sequence[Call],
    as_one: Mapping[nn.Module, str],
) -> list[Flow]:
    """The different ways that examples take through a model.

    Where the model decides by its input, parts of an example may go other ways, and count too.

    Raises:
        NotFollowedError: The model does not run while it is followed.
    """
    found: list[Flow] = []

    def add(call: Call) -> None:
        flow = with_sorted(with_gates(follow(model, *call, as_one)))
        if not any(alike(flow, other) for other in found):
            found.append(flow)

    for example in examples:
        add(example)
    for part in parts if any(flow.decisions for flow in found) else ():
        add(part)
    return found


def taken_as_one(survey: Survey) -> dict[nn.Module, str]:
    """The modules whose calls count as one operation: affine ones, and those out of reach."""
    layers = survey.layers("none").values()
    # Matrices inside of modules are not called.
    called = [part for layer in layers for part in layer.modules if not isinstance(part, Rows)]
    whole = dict.fromkeys(called, "")
    whole.update((part, "") for _, part in connectors(survey.model))
    for _, module in bare_modules(survey.model):
        tracks = getattr(module, "running_mean", None) is not None
        if tracks and is_plain(module, BATCH_NORM, *BATCH_NORMS):
            whole[module] = ""
        if isinstance(module, RECURRENT_LAYERS):
            whole[module] = _unknown(module)
        elif isinstance(module, nn.MultiheadAttention):
            whole[module] = ATTENTION
    return {
        module: reason
        for module, reason in whole.items()
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag, torch.jit.ScriptModule))
    }


def _unknown(recurrent: nn.Module) -> str:
    """Why a recurrent layer has no rule; empty if it has."""
    parts = parts_of(recurrent)
    if not parts or weights_left(recurrent, parts):
        return RECURRENT
    own = unhooked(recurrent)
    # Hooks run inside of the call that counts as one operation.
    return "" if is_plain(own, type(own)) else HOOKED
