"""An orthogonal start for every affine layer of a model, at its bound.

The singular values of a layer are linear in its weight: so an orthogonal weight of any norm is
brought to a bound by a factor. The norm that the factor is made from is measured on the layer, with
its weights rounded as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectralclip._clipping.clip import restored_on_failure
from spectralclip._clipping.clip_model import LEAVING_OUT
from spectralclip._clipping.free_weights import moving_names
from spectralclip._clipping.orthogonal import (
    How,
    OrthogonalStart,
    orthogonal_start,
    semi_orthogonal,
)
from spectralclip._clipping.plain_weight import PlainWeight, plain_weight
from spectralclip._common import checked_generator
from spectralclip._models import BEFORE_A_NORM, FoundLayer
from spectralclip._operators import LinearOperator, Place, as_operator, describe, plain_numerics
from spectralclip._spectrum import singular_values, spectral_norm


class InitSettings(NamedTuple):
    """How the norm is brought to the bound."""

    tol: float = 1e-4  # of the norms that are measured
    settled: float = 1e-5  # how far a norm may be from its bound, relatively, before it is scaled
    accepted: float = 1e-3  # or one rounding of the weights, where that is more
    # Plain layers take two, and norms that do not follow the scale of the weights, as that of
    # `x + f(x)`, up to eight. In bfloat16, matrices with four rows are within 1e-3 after twenty,
    # and one in sixteen is not after eight.
    rounds: int = 20
    # The smaller side up to which a matrix without a closed form is decomposed: 0.1 s.
    dense_side: int = 512


SETTINGS = InitSettings()


@final
@dataclass(frozen=True)
class InitResult:
    """How a layer starts.

    Attributes:
        max_norm: The bound.
        norm: The norm that was reached, the largest over all input sizes; measured.
        smallest: The smallest of the `min(m, n)` singular values of a layer with n inputs and m
            outputs, over all input sizes. If it is `norm`, the layer preserves the norms of all
            inputs (`m >= n`), or of all that it does not discard (`m <= n`). 0 where it maps more
            to zero than its shape forces it to, or has outputs that are always zero. Of orthogonal
            starts it is derived from their form, without the rounding of the weights. None where
            it would take the decomposition of a large matrix.
        how: "orthogonal matrix" for dense layers, 1x1 convolutions, and others that use their
            whole kernel; "single tap" and "taps of one window" for kernels that are zero elsewhere;
            "equal factors" for batch norms; "scaled" for modules without a closed form, and for
            layers that share the weight of another one.
    """

    max_norm: float
    norm: float
    smallest: float | None
    how: How


@plain_numerics()
def init_found_layers_(
    layers: Mapping[str, FoundLayer],
    targets: Mapping[str, float],
    generator: torch.Generator | None = None,
) -> dict[str, InitResult]:
    """Start layers that have been found, each at its target; or none, if one is refused."""
    generator = checked_generator(generator)
    starts = [_checked(layers[name], bound) for name, bound in targets.items()]
    results: dict[str, InitResult] = {}
    parameters = [p for start in starts for part in start.modules for p in part.parameters()]
    with restored_on_failure(parameters):
        for group in _sharing(starts):
            drawn: dict[Place, Tensor] = {}
            for start in group:
                start.draw(drawn, generator)
            factor, norms = _settle(group)
            for start, norm in zip(group, norms, strict=True):
                results[start.name] = start.result(factor, norm)
    return {name: results[name] for name in targets}


@final
class _LayerStart:
    """One layer on its way to its start."""

    def __init__(self, layer: FoundLayer, bound: float) -> None:
        self.name, self.bound, self._shapes = layer.name, bound, layer.in_shapes
        self.modules = list(layer.modules)
        ops = [self._operator(shape) for shape in layer.in_shapes]
        # The largest input has the most windows that lie on the image as a whole.
        self._op = max(ops, key=lambda op: op.shape[1])
        self._names = moving_names(self._op, "first")
        self._plain = plain_weight(self._op.function, self._names)
        self._plains = [plain_weight(op.function, self._names) for op in ops]
        self._start: OrthogonalStart | None = None
        self._drawn: dict[str, Tensor] = {}

    def _operator(self, shape: tuple[int, ...]) -> LinearOperator:
        return as_operator(self.modules, shape)

    @property
    def weights(self) -> list[Tensor]:
        """The parameters that are drawn: those with two axes or more, if there are any."""
        own = [self._target(name) for name in self._names]
        return [parameter for parameter in own if parameter.ndim > 1] or own

    @torch.no_grad()
    def _target(self, name: str) -> Tensor:
        """What is written to of a parameter: all of it, or the rows that the layer has."""
        parameter = self._op.parameters[name]
        return parameter if self._plain is None else self._plain.written(parameter)

    @property
    def rounding(self) -> float:
        return max(torch.finfo(weight.dtype).eps for weight in self.weights)

    def draw(self, known: dict[Place, Tensor], generator: torch.Generator) -> None:
        """Draw what is not `known` already, since another layer has it too."""
        values, drawn = self._op.function.values, {Place.of(one) for one in self.weights}
        for name in self._names:
            weight = self._target(name)
            place = Place.of(weight)
            if place in known or place not in drawn:
                continue
            if self._plain is not None:
                value = self._plain.written(self._plain_value(self._plain, generator))
            elif weight.ndim > 1:
                shape = (1, weight.shape[0], weight[0].numel())
                value = semi_orthogonal(shape, values[name].dtype, generator).reshape(weight.shape)
            else:
                value = values[name].clone()
            known[place] = self._drawn[name] = value
        with torch.no_grad():
            for part in self.modules:
                if isinstance(part, BEFORE_A_NORM) and part.bias is not None:
                    part.bias.zero_()

    def _plain_value(self, plain: PlainWeight, generator: torch.Generator) -> Tensor:
        own, padding = plain.own, _padding_row(self.modules)
        if padding is not None:
            # A row that is never trained stays zero, and the others are orthogonal without it.
            kept = torch.arange(plain.weight.shape[1], device=plain.weight.device) != padding
            smaller = own.with_weight(plain.weight[:, kept])
            start = orthogonal_start(smaller, generator)
            weight = torch.zeros_like(plain.weight)
            weight[:, kept] = start.weight
            self._start = start if min(weight.shape) == min(start.weight.shape) else None
            return plain.parameter(weight)
        start, alive = orthogonal_start(own, generator), plain.alive
        if alive is None or bool(alive.all()):
            self._start = start
        return plain.parameter(start.weight)

    @torch.no_grad()
    def write(self, factor: float) -> None:
        for name, value in self._drawn.items():
            self._target(name).copy_(factor * value)

    def norm(self) -> float:
        """The largest over all input sizes."""
        tol = SETTINGS.tol
        return max(float(spectral_norm(self.modules, shape, tol=tol)) for shape in self._shapes)

    def result(self, factor: float, norm: float) -> InitResult:
        values = [self._smallest(index, factor) for index in range(len(self._shapes))]
        known = [value for value in values if value is not None]
        smallest = min(*known, norm) if len(known) == len(values) else None
        how: How = "scaled" if self._start is None else self._start.how
        return InitResult(self.bound, norm, smallest, how)

    def _smallest(self, index: int, factor: float) -> float | None:
        plain = self._plains[index]
        if self._start is not None and plain is not None:
            return factor * self._start.smallest(plain.own)
        op = self._operator(self._shapes[index])
        form = op.block_form()
        if min(op.shape if form is None else form.block_shape) > SETTINGS.dense_side:
            return None
        return float(singular_values(op)[-1])


def _checked(layer: FoundLayer, bound: float) -> _LayerStart:
    """A layer's start, where it can have one."""
    for module in layer.modules:
        for part in module.modules():
            typed = isinstance(part, (*BEFORE_A_NORM, nn.Embedding))
            if is_parametrized(part) or (typed and part._parameters.get("weight") is None):
                raise ValueError(
                    f"Layer {layer.name!r} computes its weight by a parametrization of "
                    f"{describe(part)}, expected a weight that can be written to: remove it first "
                    "(torch.nn.utils.parametrize.remove_parametrizations; for hooks "
                    "torch.nn.utils.remove_weight_norm or remove_spectral_norm), and apply it "
                    "again afterwards. Nothing has been changed."
                )
    try:
        return _LayerStart(layer, bound)
    except ValueError as error:
        raise _refusal([layer.name], error) from error


def _refusal(names: list[str], error: object) -> ValueError:
    return ValueError(
        f"Layer {', '.join(map(repr, names))} cannot start at its bound, and the model is left as "
        f"it was: {error} ({LEAVING_OUT})"
    )


def _sharing(starts: Iterable[_LayerStart]) -> list[list[_LayerStart]]:
    """The layers in groups that have no weight in common."""
    groups: list[list[_LayerStart]] = []
    for start in starts:
        own = [Place.of(weight) for weight in start.weights]
        tied = [
            group
            for group in groups
            if any(Place.of(w).meets(place) for one in group for w in one.weights for place in own)
        ]
        groups = [group for group in groups if group not in tied]
        groups.append([*(one for group in tied for one in group), start])
    return groups


class _Trial(NamedTuple):
    """Norms that a factor has led to."""

    factor: float
    norms: list[float]
    excess: float  # the logarithm of the largest one, in multiples of its bound


def _settle(group: list[_LayerStart]) -> tuple[float, list[float]]:
    """Write the weights that were drawn, times a factor that brings the norms to the bounds.

    The first of the layers to reach its bound counts. Secant steps on logarithms find the factor:
    one is enough where the norm is a power of it. Where the rounding of the weights is all that is
    left, factors close by are tried, which round differently.
    """
    rounding = max(start.rounding for start in group)
    settled = max(SETTINGS.settled, rounding / 16)
    factor, slope, trials = 1.0, 1.0, list[_Trial]()
    for attempt in range(SETTINGS.rounds):
        trials.append(_tried(group, factor))
        best = min(trials, key=lambda trial: abs(trial.excess))
        if abs(best.excess) <= settled:
            break
        if abs(best.excess) < rounding:
            golden = attempt * (math.sqrt(5) - 1) / 2
            factor = best.factor * (1 + rounding * (golden % 1 - 0.5))
            continue
        if attempt:
            step = math.log(factor / trials[-2].factor)
            slope = min(max((trials[-1].excess - trials[-2].excess) / step, 0.2), 4.0)
        factor *= math.exp(-trials[-1].excess / slope)
    if abs(best.excess) > max(SETTINGS.accepted, rounding):
        at_best = f"at best its norm is {math.exp(best.excess):g} times the bound."
        raise _refusal([start.name for start in group], at_best)
    for start in group:
        start.write(best.factor)
    return best.factor, best.norms


def _tried(group: list[_LayerStart], factor: float) -> _Trial:
    """Write the weights times a factor, and measure."""
    names = [start.name for start in group]
    for start in group:
        start.write(factor)
    try:
        norms = [start.norm() for start in group]
    except ValueError as error:
        raise _refusal(names, error) from error
    largest = max(norm / start.bound for norm, start in zip(norms, group, strict=True))
    if largest == 0:
        dtype = group[0].weights[0].dtype
        raise _refusal(
            names,
            f"its norm is zero with weights of size {factor:g} in {dtype}. The following batch "
            "norm has zero weights, or the precision cannot hold so small a bound.",
        )
    return _Trial(factor, norms, math.log(largest))


def _padding_row(modules: list[Any]) -> int | None:
    """The row of an embedding that stands for no input."""
    return modules[0].padding_idx if isinstance(modules[0], nn.Embedding) else None
