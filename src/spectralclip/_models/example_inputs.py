"""What a model is called with: a tensor, positional arguments, or keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

from torch import Tensor, nn

from spectralclip._models.call_graph import tensors_in

ExampleInputs: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: a tensor, positional arguments, or keyword arguments."""


@final
class Inputs(NamedTuple):
    """Positional and keyword arguments of one call; among `ExampleInputs`, a sequence."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def with_kwargs(
    example_inputs: ExampleInputs, example_kwargs: Mapping[str, Any] | None
) -> ExampleInputs:
    """Example inputs with keyword arguments besides, if there are any."""
    if example_kwargs is None:
        return example_inputs
    if not isinstance(example_kwargs, Mapping):
        raise TypeError(
            "example_kwargs must be a dictionary of keyword arguments, got "
            f"{type(example_kwargs).__name__}. Give positional ones as a tuple before it."
        )
    if isinstance(example_inputs, Mapping):
        raise TypeError(
            "Keyword arguments were given twice: with example_kwargs, example_inputs must be a "
            "tensor or a tuple of positional arguments, got a dictionary."
        )
    one = isinstance(example_inputs, Tensor) or not isinstance(example_inputs, Sequence)
    args = (example_inputs,) if one else tuple(example_inputs)
    return Inputs(args, dict(example_kwargs))


def call_arguments(
    model: nn.Module, example_inputs: ExampleInputs
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}.")
    known = isinstance(example_inputs, (Tensor, Sequence, Mapping))
    if not known or not any(True for _ in tensors_in(example_inputs)):
        raise TypeError(
            "example_inputs must be a tensor, a tuple of arguments or a dictionary of keyword "
            "arguments with tensors among them, with the batch dimension, got "
            f"{type(example_inputs).__name__}."
        )
    if isinstance(example_inputs, Inputs):
        return example_inputs.args, example_inputs.kwargs
    if isinstance(example_inputs, Mapping):
        return [], example_inputs
    return [example_inputs] if isinstance(example_inputs, Tensor) else example_inputs, {}
