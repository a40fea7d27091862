"""How much of what differs between inputs arrives at the output of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spectralclip._models.call_graph import tensors_in
from spectralclip._models.example_inputs import ExampleInputs, Inputs, call_arguments
from spectralclip._models.forward_pass import in_evaluation
from spectralclip._operators import plain_numerics

# Random inputs, by which a network is judged before it has seen any: so many of them.
NORMAL_INPUTS = 16


def normal_inputs(model: nn.Module, example_inputs: ExampleInputs) -> Inputs:
    """A batch of standard normal inputs of the example's shape; what is no float stays."""
    generator = torch.Generator("cpu").manual_seed(0)

    def drawn(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        shape = (NORMAL_INPUTS, *tensor.shape[1:])
        made = torch.randn(shape, generator=generator, device="cpu")
        return made.to(tensor.device, tensor.dtype)

    args, kwargs = tree_map_only(Tensor, drawn, call_arguments(model, example_inputs))
    return Inputs(tuple(args), dict(kwargs))


@plain_numerics()
def spread_and_gain(model: nn.Module, inputs: ExampleInputs) -> tuple[float, float]:
    """How much the outputs of a model differ over a batch, and how much of its inputs' spread.

    Raises:
        ValueError: There are fewer than two inputs.
    """
    args, kwargs = call_arguments(model, inputs)
    tensors = list(tensors_in((args, kwargs)))
    given = [tensor for tensor in tensors if tensor.is_floating_point()]
    if any(tensor.ndim == 0 or len(tensor) < 2 for tensor in given):
        raise ValueError("inputs must be a batch of two or more: scores are compared over it.")
    with torch.no_grad(), in_evaluation(model):
        made = [tensor for tensor in tensors_in(model(*args, **kwargs)) if tensor.ndim]
    rows = {len(tensor) for tensor in tensors if tensor.ndim}
    several = [tensor for tensor in made if tensor.is_floating_point() and len(tensor) > 1]
    # The last state of a recurrent layer has no row for each input, and is no score.
    scores = [tensor for tensor in several if len(tensor) in rows] or several
    if not scores:
        raise ValueError(
            "The model returns no floating-point tensor with two rows or more: there are no "
            "scores to compare."
        )
    return moments(given, scores)


def moments(given: Sequence[Tensor], made: Sequence[Tensor]) -> tuple[float, float]:
    """The spread of what was made, and its share of that of what was given."""
    variances, own = (
        torch.cat([_variances(tensor) for tensor in tensors or [torch.zeros(2, 1)]])
        for tensors in (made, given)
    )
    gain = (variances.sum() / own.sum()).sqrt() if bool(own.sum() > 0) else torch.tensor(math.nan)
    return float(variances.mean().sqrt()), float(gain)


def _variances(tensor: Tensor) -> Tensor:
    """Over the batch, of each number in a row; a model may well return one number each."""
    return tensor.float().reshape(len(tensor), -1).var(0)
