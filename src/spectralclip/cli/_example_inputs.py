"""`--input 3,32,32`: example inputs from their description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spectralclip.cli._problems import Problem

SYNTAX = "[NAME=]SHAPE[:DTYPE[:BELOW]]"
_HELP = f"expected {SYNTAX} without the batch, for example 3,32,32 or 16:int64:50257"
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "bool")


class InputSpec(NamedTuple):
    """One argument of a model."""

    name: str  # the keyword it is given by; empty for a positional one
    shape: tuple[int, ...]  # its shape without the batch
    dtype: torch.dtype | None = None  # its type; None for that of the model
    below: int | None = None  # what integers stay below; None for what the model's embeddings allow


def parse_input(text: str) -> InputSpec:
    """Read one `--input`, such as "3,32,32" or "input_ids=16:int64:100"."""
    name, equals, rest = text.partition("=")
    name, rest = (name, rest) if equals else ("", text)
    shape, dtype, below, *more = [*rest.split(":"), "", ""][: max(3, rest.count(":") + 1)]
    sizes = [size.strip() for size in shape.replace("x", ",").split(",")] if shape.strip() else []
    if more or (equals and not name.isidentifier()) or not (sizes or dtype):
        raise Problem(f"--input {text!r}: {_HELP}.")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise Problem(f"--input {text!r}: sizes must be positive whole numbers; {_HELP}.")
    if dtype and dtype not in _DTYPES:
        raise Problem(f"--input {text!r}: unknown type {dtype!r}; one of {', '.join(_DTYPES)}.")
    if below and not (below.isdecimal() and int(below) > 0 and dtype.startswith("int")):
        raise Problem(f"--input {text!r}: a limit such as 50257 goes with an integer type only.")
    return InputSpec(
        name,
        tuple(map(int, sizes)),
        getattr(torch, dtype) if dtype else None,
        int(below) if below else None,
    )


def example_inputs(
    specs: Sequence[InputSpec], model: nn.Module, *, batch: int = 1, seed: int = 0
) -> Any:
    """Random inputs for a model: a tuple of positional ones, or a dictionary of named ones.

    Numbers are normal; integers are uniform from 0 up to the limit. Type and device follow the
    parameters.
    """
    named = [bool(spec.name) for spec in specs]
    if any(named) and not all(named):
        raise Problem("--input: give a name to every input, or to none.")
    names = [spec.name for spec in specs]
    if any(named) and len(set(names)) < len(names):
        raise Problem("--input: two inputs have the same name.")
    generator = torch.Generator().manual_seed(seed)
    tensors = [_random(spec, model, batch, generator) for spec in specs]
    return dict(zip(names, tensors, strict=True)) if any(named) else tuple(tensors)


def _random(spec: InputSpec, model: nn.Module, batch: int, generator: torch.Generator) -> Tensor:
    own = next((p for p in model.parameters() if p.is_floating_point()), None)
    device = own.device if own is not None else torch.device("cpu")
    dtype = spec.dtype or (own.dtype if own is not None else torch.float32)
    shape = (batch, *spec.shape)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
    below = 2 if dtype == torch.bool else spec.below or _vocabulary(model, dtype)
    return torch.randint(below, shape, generator=generator).to(device, dtype)


def _vocabulary(model: nn.Module, dtype: torch.dtype) -> int:
    """The smallest of the model's embeddings: an index below that suits all of them."""
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return min(min(sizes, default=2), torch.iinfo(dtype).max)
