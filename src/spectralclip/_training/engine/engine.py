"""The groups of a model at work: what the host does around each step, and what it may read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, final

import torch
from torch import Tensor

from spectralclip._models import FoundLayer
from spectralclip._operators import evaluation_mode
from spectralclip._training.distributed.sharing import Moved
from spectralclip._training.engine.build import stages_of
from spectralclip._training.engine.group import Group
from spectralclip._training.engine.stage import Stage

WARM_UP = 12  # refreshes of vectors that begin at random
ROUNDS = 5  # of cuts where a bound is new or much lower than it was
MOST = 1e30  # the largest bound
NEAR = 0.98  # share of a bound above which a lower one is reached in one step
MOST_GRAPHS = 256
MOST_LAG = 1.1  # a norm over its estimate, that a target makes up for


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
        self._layers = dict(layers)
        device = next((p.device for p in _parameters(layers)), torch.device("cpu"))
        self.is_on_host = device.type == "cpu"
        width = vectors or (2 if self.is_on_host else 4)
        self._stages = stages_of(layers, headroom, width, seed)
        self._bounds: dict[str, float] = {}
        self._active: set[str] = set()
        self._is_far = False
        self._places: dict[str, list[tuple[Stage, Group, slice]]] = {}
        for stage in self._stages:
            for group, own in zip(stage.groups, stage.slices, strict=True):
                for index, name in enumerate(group.names):
                    at = own.start + index * group.kernels
                    place = (stage, group, slice(at, at + group.kernels))
                    self._places.setdefault(name, []).append(place)
        self._is_compiled = compile
        self._runs = [
            torch.compile(stage.run, fullgraph=True, dynamic=False) if compile else stage.run
            for stage in self._stages
        ]

    def set_bounds(self, bounds: Mapping[str, float]) -> None:
        """Take the layers that are in it for those that may move, within these bounds."""
        for name, bound in bounds.items():
            before = self._bounds.get(name, math.inf)
            if before != bound:
                self._is_far = self._is_far or bound < NEAR * before
                for stage, _, own in self._places[name]:
                    stage.bounds[own] = bound
                    stage.state["norm"][own] *= min(before, MOST) / bound
                self._bounds[name] = bound
        for name in self._active.symmetric_difference(bounds):
            for stage, _, own in self._places[name]:
                stage.is_active[own] = name in bounds
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
        rounds = ROUNDS if self._is_far else 1
        with self._evaluating():
            for stage, run in zip(self._stages, self._runs, strict=True):
                for _ in range(rounds * stage.rounds):
                    changes = stage.run(far=True) if self._is_far else run()
                    yield _changed(stage, changes, selective)
        self._is_far = False

    def norms(self) -> dict[str, float]:
        """The norm of each layer after the last step, as it is known; NaN if it is not finite."""
        lost, found = self.lost(), {}
        read = {id(stage): stage.norms().tolist() for stage in self._stages}
        for name, places in self._places.items():
            norms = [norm for stage, _, own in places for norm in read[id(stage)][own]]
            found[name] = math.nan if name in lost else max(norms)
        return found

    def lost(self) -> set[str]:
        """The layers of which something was not finite at the last step."""
        read = {id(stage): stage.is_lost.tolist() for stage in self._stages}
        return {
            name
            for name, places in self._places.items()
            if any(any(read[id(stage)][own]) for stage, _, own in places)
        }

    @torch.no_grad()
    def correct(self, name: str, norm: float, estimate: float, bound: float) -> None:
        """Take in a norm that was measured: scale what is above its bound, and trust less."""
        if not (0 < norm < math.inf and 0 < estimate < math.inf):
            return
        found = min(max(norm / estimate, 1.0), MOST_LAG)
        for stage, group, own in self._places[name]:
            lag = stage.state["lag"][own]
            lag.copy_(torch.maximum((lag + found) / 2, torch.full_like(lag, found)))
            if norm > bound:
                start = stage.slices[stage.groups.index(group)].start
                group.shrink((own.start - start) // group.kernels, bound / norm)
                stage.state["norm"][own] *= bound / norm

    def layer_states(self) -> dict[str, Any]:
        """By layer, what is remembered, in the order of its places."""
        return {
            name: {"places": [_state(*place) for place in places], "is_far": self._is_far}
            for name, places in self._places.items()
        }

    @torch.no_grad()
    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._is_far = any(state["is_far"] for state in states.values())
        for name, state in states.items():
            for (stage, group, own), saved in zip(
                self._places.get(name, []), state["places"], strict=False
            ):
                start = own.start - stage.slices[stage.groups.index(group)].start
                within = slice(start, start + group.kernels)
                for key, tensor in group.state.items():
                    tensor[within] = saved[key].to(tensor)
                for key, tensor in stage.state.items():
                    tensor[own] = saved[key].to(tensor)

    def _evaluating(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(
            evaluation_mode([m for layer in self._layers.values() for m in layer.modules])
        )
        if self._is_compiled:
            # Each stage is another graph of the same code, of which torch keeps few.
            from torch._dynamo import config

            known = hasattr(config, "recompile_limit")
            limit = "recompile_limit" if known else "cache_size_limit"
            stack.enter_context(config.patch({limit: MOST_GRAPHS}))
        return stack


def _state(stage: Stage, group: Group, own: slice) -> dict[str, Tensor]:
    start = own.start - stage.slices[stage.groups.index(group)].start
    within = slice(start, start + group.kernels)
    kept = {key: tensor[within].clone() for key, tensor in group.state.items()}
    return kept | {key: tensor[own].clone() for key, tensor in stage.state.items()}


def _changed(stage: Stage, changes: list[Tensor], selective: bool) -> list[Moved]:
    """Take the changes off the parameters of a stage; those, and along what they have moved."""
    parameters = stage.parameters()
    if not selective:
        torch._foreach_sub_(
            [tensor for own in parameters for tensor in own],
            [part for stacked in changes for part in stacked.unbind()],
        )
        return list(zip(parameters, changes, strict=True))
    moved: list[Moved] = []
    for own, along, flags in zip(parameters, changes, _touched(stage), strict=True):
        chosen = [n for n, is_touched in enumerate(flags) if is_touched]
        for n in chosen:
            own[n].sub_(along[n])
        if chosen:
            moved.append(([own[n] for n in chosen], along[chosen]))
    return moved


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


def _parameters(layers: Mapping[str, FoundLayer]) -> Iterator[Tensor]:
    return (p for layer in layers.values() for module in layer.modules for p in module.parameters())
