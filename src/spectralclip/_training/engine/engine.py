"""The groups of a model at work: what the host does around each step, and what it may read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._models import FoundLayer
from spectralclip._operators import evaluation_mode
from spectralclip._training.distributed.sharing import Moved
from spectralclip._training.engine.build import kinds_of, stages_of
from spectralclip._training.engine.constrained_layer import BatchNorm
from spectralclip._training.engine.group import Group
from spectralclip._training.engine.stage import Stage
from spectralclip._training.engine.tuning import TUNING
from spectralclip._training.engine.vectors import Vectors

WARM_UP = 12  # refreshes of vectors that begin at random
KNOWN = 1e-4  # of a bound: the squares of much smaller norms are lost in single precision
ROUNDS = 5  # of cuts where a bound is new or much lower than it was
MOST_GRAPHS = 256
# Steps that a host adds while norms grow by more than the headroom. ResNet-18 of width 16 with
# learning rates of 0.05 and 0.1, where they grow up to fivefold in a step: 1.003 and 0.992 times
# the bound; 1.030 and 1.014 where only what grows by 3 % is stepped again, 1.12 without.
AGAIN = 3
MOST_LAG = 1.1  # a norm over its estimate, that a target makes up for


@final
@dataclass(frozen=True)
class Place:
    """Where a layer is in one of the ways in which it is followed."""

    stage: Stage
    group: Group
    start: int
    index: int

    @property
    def within(self) -> slice:
        """Its kernels, among those of the group."""
        return slice(self.index * self.group.kernels, (self.index + 1) * self.group.kernels)

    @property
    def own(self) -> slice:
        """Its kernels, among those of the stage."""
        return slice(self.start + self.within.start, self.start + self.within.stop)

    def state(self) -> dict[str, Tensor]:
        """What is remembered of it, as views."""
        of_group = {key: tensor[self.within] for key, tensor in self.group.state.items()}
        return of_group | {key: tensor[self.own] for key, tensor in self.stage.state.items()}


@final
class Engine:
    """All layers of a process, in stages that run one after another.

    Attributes:
        is_on_host: Whether there is no device to wait for.
    """

    def __init__(
        self,
        layers: Mapping[str, FoundLayer],
        headroom: float,
        vectors: int | None,
        seed: int,
        compile: bool,
    ) -> None:
        devices = {p.device.type for one in layers.values() for p in one.parameters()}
        self.is_on_host = devices <= {"cpu"}
        width = vectors or (2 if self.is_on_host else 4)
        self._stages = stages_of(layers, headroom, width, seed)
        self._bounds: dict[str, float] = {}
        self._active: set[str] = set()
        self._headroom = headroom
        self._far = set[str]()  # layers whose bound is new
        self._is_unknown = False  # whether a bound was so high that nothing is known of a norm
        self._parts: dict[Place, Stage] = {}
        self._places: dict[str, list[Place]] = {}
        for stage in self._stages:
            for group, own in zip(stage.groups, stage.slices, strict=True):
                for index, name in enumerate(group.names):
                    self._places.setdefault(name, []).append(Place(stage, group, own.start, index))
        # What is followed by full vectors is called as it is in evaluation.
        self._called = [
            module
            for name, places in self._places.items()
            for module in layers[name].modules
            if any(isinstance(place.group, Vectors) for place in places)
        ]
        self._settings = (layers, headroom, vectors, seed, compile)
        self._trained = _trained_norms(layers)
        self._is_compiled = compile
        self._runs = [
            torch.compile(stage.run, fullgraph=True, dynamic=False) if compile else stage.run
            for stage in self._stages
        ]

    def up_to_date(self) -> Engine:
        """Itself; or another one, if batch norms behind layers have been frozen or freed since."""
        if self._trained == _trained_norms(self._settings[0]):
            return self
        renewed = Engine(*self._settings)
        renewed.set_bounds(self._bounds)
        renewed.load_layer_states(self.layer_states())
        return renewed

    def set_bounds(self, bounds: Mapping[str, float]) -> None:
        """Take the layers that are in it for those that may move, within these bounds."""
        for name, bound in bounds.items():
            before = self._bounds.get(name, math.inf)
            if before != bound:
                if bound < (1 - TUNING.most) * before:
                    self._far.add(name)
                self._is_unknown |= bound < KNOWN * before < math.inf
                for place in self._places[name]:
                    place.stage.bounds[place.own] = bound
                    if math.isfinite(before):
                        place.state()["norm"].mul_(before / bound).nan_to_num_()
                self._bounds[name] = bound
        for name in self._active.symmetric_difference(bounds):
            for place in self._places[name]:
                place.stage.is_active[place.own] = name in bounds
        self._active = set(bounds)

    @torch.no_grad()
    def warm_up(self) -> None:
        """Find the leading vectors of the weights as they are."""
        with self._evaluating():
            for stage in self._stages:
                stage.warm_up(WARM_UP)

    @torch.no_grad()
    def step(self, *, selective: bool) -> Iterator[list[Moved]]:
        """Bring all layers within their bounds; what has moved, and along what.

        Args:
            selective: Read back what has changed, and write nothing else.
        """
        is_far = bool(self._far & self._active)
        rounds, may_read = ROUNDS if is_far else 1, self.is_on_host and not self._is_compiled
        if self._is_unknown:
            self.warm_up()
            self._is_unknown = False
        with self._evaluating():
            for stage, run in zip(self._stages, self._runs, strict=True):
                for _ in range(rounds * stage.rounds):
                    values = stage.run(far=True) if is_far else run(may_read=may_read)
                    yield _written(stage, values, selective)
                for _ in range(AGAIN if self.is_on_host else 0):
                    yield from self._step_again(stage)
        # Those of another optimizer, or frozen until now, are still to be brought down.
        self._far -= self._active

    def _step_again(self, stage: Stage) -> Iterator[list[Moved]]:
        """Step layers again that have grown beyond the headroom: one refresh shows a part."""
        jumped = (stage.grown > self._headroom).tolist()
        for place in (place for own in self._places.values() for place in own):
            if place.stage is stage and any(jumped[place.own]):
                part = self._part(place)
                values = part.run(may_read=True)
                yield _written(part, values, selective=True)

    def _part(self, place: Place) -> Stage:
        """A stage of one layer alone, which remembers the same of it."""
        if place not in self._parts:
            alone = kinds_of([place.group.alone(place.index)])
            self._parts[place] = place.stage.part(place.own, alone)
        return self._parts[place]

    @torch.no_grad()
    def norms(self) -> dict[str, float]:
        """The norm of each layer as it is now; NaN if it is not finite."""
        with self._evaluating():
            found = self._read_best({id(stage): stage.norms() for stage in self._stages})
        bad = self.non_finite()
        return {name: math.nan if name in bad else max(own) for name, own in found.items()}

    def followed(self) -> list[str]:
        """The layers of which a step may not see all: those that need checks."""
        return [
            name
            for name, places in self._places.items()
            if not all(place.group.is_seen_whole for place in places)
        ]

    def estimates(self) -> dict[str, float]:
        """What the last step has left of each norm, as far as it could see."""
        found = self._read_best({id(s): s.state["norm"] * s.bounds for s in self._stages})
        return {name: max(own) for name, own in found.items()}

    def non_finite(self) -> set[str]:
        """The layers of which something was not finite at the last step."""
        found = self._read({id(stage): stage.is_non_finite for stage in self._stages})
        return {name for name, flags in found.items() if any(flags)}

    def _read(self, by_stage: Mapping[int, Tensor]) -> dict[str, list[Any]]:
        return _values(self._places, by_stage)

    def _read_best(self, by_stage: Mapping[int, Tensor]) -> dict[str, list[Any]]:
        """From full vectors where there are some: these know a layer with its borders."""
        full = {
            name: [place for place in places if isinstance(place.group, Vectors)] or places
            for name, places in self._places.items()
        }
        return _values(full, by_stage)

    @torch.no_grad()
    def correct(self, name: str, norm: float, estimate: float, bound: float) -> None:
        """Take in a norm that was measured: scale what is above its bound, and trust less."""
        if not 0 < norm < math.inf:
            return
        found = min(max(norm / estimate, 1.0), MOST_LAG) if 0 < estimate < math.inf else MOST_LAG
        for place in self._places[name]:
            state = place.state()
            state["lag"].copy_(((state["lag"] + found) / 2).clamp_min(found))
            if norm > bound:
                state["norm"].mul_(bound / norm)
        if norm > bound:
            # Once, in however many ways the layer is followed.
            first = self._places[name][0]
            first.group.shrink(first.index, bound / norm)
        if norm > MOST_LAG * estimate:
            self._look_anew(name)

    def _look_anew(self, name: str) -> None:
        """Begin with vectors at random: those that were followed have nothing of what has grown."""
        with self._evaluating():
            for place in self._places[name]:
                for key, tensor in place.group.at_start(place.index).items():
                    place.state()[key].copy_(tensor)
                self._part(place).warm_up(WARM_UP)

    def layer_states(self) -> dict[str, Any]:
        """By layer, what is remembered, in the order of its places."""
        return {
            name: {
                "bound": self._bounds[name],
                "places": [{k: v.clone() for k, v in one.state().items()} for one in places],
                "is_far": name in self._far,
            }
            for name, places in self._places.items()
        }

    @torch.no_grad()
    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        """Go on from there."""
        bounds = {name: float(state["bound"]) for name, state in states.items()}
        self.set_bounds({name: bounds.get(name, self._bounds[name]) for name in self._active})
        self._far = {name for name, state in states.items() if state["is_far"]}
        for name, state in states.items():
            for place, saved in zip(self._places.get(name, []), state["places"], strict=False):
                for key, tensor in place.state().items():
                    tensor.copy_(saved[key])

    def _evaluating(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(evaluation_mode(self._called))
        if self._is_compiled:
            # Each stage is another graph of the same code, of which torch keeps few.
            from torch._dynamo import config

            known = hasattr(config, "recompile_limit")
            limit = "recompile_limit" if known else "cache_size_limit"
            stack.enter_context(config.patch({limit: MOST_GRAPHS}))
        return stack


def _trained_norms(layers: Mapping[str, FoundLayer]) -> list[bool]:
    """Of each factor of a batch norm behind another layer, whether it may move."""
    return [
        parameter.requires_grad
        for layer in layers.values()
        for norm in layer.modules[1:]
        if isinstance(norm, BatchNorm)
        for parameter in norm.parameters(recurse=False)
    ]


def _values(
    places: Mapping[str, list[Place]], by_stage: Mapping[int, Tensor]
) -> dict[str, list[Any]]:
    """By layer, what tensors of the stages hold at its places."""
    read = {stage: tensor.tolist() for stage, tensor in by_stage.items()}
    return {
        name: [value for place in own for value in read[id(place.stage)][place.own]]
        for name, own in places.items()
    }


def _written(stage: Stage, values: list[Tensor], selective: bool) -> list[Moved]:
    """Write new values to the parameters of a stage; those, and along what they have moved."""
    parameters, new = stage.parameters(), [list(stacked) for stacked in values]
    if selective:
        chosen = [[n for n, moved in enumerate(own) if moved] for own in _touched(stage)]
        parameters = [[own[n] for n in at] for own, at in zip(parameters, chosen, strict=True)]
        new = [[own[n] for n in at] for own, at in zip(new, chosen, strict=True)]
    flat, parts = [p for own in parameters for p in own], [part for own in new for part in own]
    if not flat:
        return []
    inward = iter(torch._foreach_sub(flat, parts))
    torch._foreach_copy_(flat, parts)
    return [(own, [next(inward) for _ in own]) for own in parameters if own]


def _touched(stage: Stage) -> list[list[bool]]:
    """By parameter, which layers' have changed."""
    flags = stage.is_touched.tolist()
    return [
        [
            any(flags[own][n * group.kernels : (n + 1) * group.kernels])
            for n in range(len(group.names))
        ]
        for group, own in zip(stage.groups, stage.slices, strict=True)
        for _ in group.parameters()
    ]
