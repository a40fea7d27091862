"""What an attachment tells of a training run: each layer, and what the network makes of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.func import functional_call

from spectralclip._lipschitz import NetworkRules, UnboundedNetworkError
from spectralclip._models import (
    NORMAL_INPUTS,
    ExampleInputs,
    FoundLayer,
    moments,
    normal_inputs,
    tensors_in,
)

# Scores that differ by less leave a loss without a gradient to speak of. With all layers at 1 and
# standard normal inputs, a ResNet-18 without batch norm, which stays at chance, has 0.002; a
# network of three convolutions, which learns, has 0.011; with batch norm a ResNet-18 has 0.15.
SMALLEST_SPREAD = 0.005


@final
@dataclass(frozen=True)
class LayerReport:
    """One layer of a training run.

    Attributes:
        norm: Its norm, as `Attachment.norms` has it; None if it is not known yet.
        max_norm: Its bound.
        pressure: The share of one of the latest steps of the optimizer that clipping has undone: 0
            for a layer that is within its bound, near 1 for one that would leave it by every step.
            None if it is not known yet, and for methods that do not move weights.
    """

    norm: float | None
    max_norm: float
    pressure: float | None


@final
@dataclass(frozen=True)
class TrainingReport:
    """How a training run under bounds is going: what `Attachment.report` returns.

    Attributes:
        step: The number of steps done.
        layers: The layers that are held, by name.
        bound: The bound of the network by the rules of `lipschitz_bounds`, with the norms of the
            layers as estimated; None where the network has no bound, or a norm is not known yet.
        max_lipschitz: What it is held at, if it is.
        spread: How much scores differ from input to input: their standard deviation over the
            inputs, as the root mean square over the outputs.
        gain: The same over that of the inputs, both as vectors: how much of the difference between
            inputs arrives at the output; NaN for inputs that are no floating-point numbers.
    """

    step: int
    layers: dict[str, LayerReport]
    bound: float | None
    max_lipschitz: float | None
    spread: float
    gain: float

    def __str__(self) -> str:
        rows = [("layer", "norm", "bound", "pressure")]
        rows += [
            (name, _shown(one.norm), _shown(one.max_norm), _shown(one.pressure))
            for name, one in self.layers.items()
        ]
        held = "" if self.max_lipschitz is None else f", held at {self.max_lipschitz:.4g}"
        network = f"network: bound {_shown(self.bound)}{held}"
        scores = f"scores: spread {self.spread:.3g} over these inputs, gain {self.gain:.3g}"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"step {self.step}", *lines, network, scores])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def bound_by_rules(
    model: nn.Module,
    example_inputs: ExampleInputs,
    layers: Mapping[str, FoundLayer],
    norms: Mapping[str, float],
) -> float | None:
    """The bound of a network whose layers have these norms; None where there is none."""
    try:
        return NetworkRules(model, example_inputs, layers).of(norms)
    except UnboundedNetworkError:
        return None


def foreseen_spread(
    model: nn.Module, example_inputs: ExampleInputs, scales: Sequence[tuple[int, float]]
) -> float | None:
    """How much scores will differ, judged by standard normal inputs of the example's shape.

    The model runs in the mode that it is in, with some parameters scaled down, by their identity,
    and is left as it was. Of one that several layers have rows of, the largest scale counts.

    Returns:
        The spread; None where the model does not run on such inputs.
    """
    args, kwargs = normal_inputs(model, example_inputs)
    given = [tensor for tensor in tensors_in((args, kwargs)) if tensor.is_floating_point()]
    largest = {key: scale for key, scale in sorted(scales, key=lambda pair: pair[1])}
    own = {
        name: parameter.detach() * min(1.0, largest.get(id(parameter), 1.0))
        for name, parameter in model.named_parameters()
    }
    own |= {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = {tensor.device for tensor in own.values() if tensor.device.type == "cuda"}
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(list(devices)))
        try:
            output = functional_call(model, own, tuple(args), dict(kwargs))
        except Exception:  # whatever a model does not like about random inputs
            return None
    made = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
    if not (given and made) or not all(t.shape[:1] == (NORMAL_INPUTS,) for t in (*given, *made)):
        return None
    return moments(given, made)[0]
