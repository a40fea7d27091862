"""The ways in which layers are held within their bounds, behind one interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import nn

from spectralclip._clipping import clamp_batch_norm_
from spectralclip._operators import ConvMap
from spectralclip._training.engine.fourier_modes import ModeGroup
from spectralclip._training.engine.full_vectors import VectorProjector
from spectralclip._training.engine.norm_check import Calibration, NormCheck, Target
from spectralclip._training.engine.tuning import LAYER


@final
@dataclass(frozen=True)
class Turn:
    """A step of the optimizer, and what is to be done after it.

    Attributes:
        number: Of the step, from one.
        bounds: The bound of each layer to work on.
        headroom: By which share the target is below the bound.
        check_every: The most steps from one check of a layer to the next; 0 for no checks.
    """

    number: int
    bounds: Mapping[str, float]
    headroom: float
    check_every: int

    def target(self, name: str, stride: float, calibration: float = 1.0) -> Target:
        """Where the estimate of a layer's norm is to be."""
        bound = self.bounds[name] / calibration
        return Target((1 - self.headroom) * bound, bound, stride)


class LayerConstraint(ABC):
    """One or several layers, and what follows them.

    Attributes:
        names: The layers.
        application_work: Multiply-adds of one application of one of them.
    """

    names: tuple[str, ...]
    application_work = 0.0

    @abstractmethod
    def step(self, turn: Turn) -> Sequence[str]:
        """Bring the layers within their bounds; the names of those that are not finite."""

    @abstractmethod
    def norms(self) -> dict[str, float]:
        """The latest norms."""

    @abstractmethod
    def checked(self) -> dict[str, int]:
        """Which of them were measured on the layers themselves, and after which step."""

    @abstractmethod
    def states(self) -> dict[str, Any]:
        """By layer, what is remembered."""

    @abstractmethod
    def load_states(self, states: Mapping[str, Any]) -> None:
        """Go on from there."""

    @property
    def num_matvecs(self) -> float:
        """Vectors sent through the layers, or as much work as that; none by default."""
        return 0.0


@final
class FourierConstraint(LayerConstraint):
    """Convolutions of one shape, followed through Fourier modes."""

    def __init__(
        self,
        group: ModeGroup,
        checks: Mapping[str, NormCheck],
        conv: ConvMap | None,
    ) -> None:
        self.names = tuple(layer.name for layer in group.layers)
        self._group, self._checks, self._now = group, checks, 0
        self._measured: dict[str, float] = {}  # at the latest step
        positions = 1 if conv is None else math.prod(conv.target.shape[1:])
        self.application_work = float(positions * group.layers[0].weight.numel())

    def step(self, turn: Turn) -> Sequence[str]:
        checks, group = self._checks, self._group
        self._now, self._measured = turn.number, {}
        if not group.is_warm:
            # Before anything is moved, so that a layer within its bound is known to be.
            for name, estimate in group.begin(turn.bounds).items():
                checks[name].calibration.begin(checks[name].search(), estimate)
        strides = {name: checks[name].stride() for name in turn.bounds}
        targets = {n: turn.target(n, strides[n], checks[n].calibration.value) for n in turn.bounds}
        non_finite = group.step(targets)
        for index, name in enumerate(self.names):
            if name in non_finite or name not in turn.bounds:
                continue
            check, bound = checks[name], turn.bounds[name]
            if check.is_due(strides[name], turn.check_every):
                norm = check.compare(group.norms[name], bound, turn.number)
                if not math.isfinite(norm):
                    non_finite.append(name)
                elif norm > bound:
                    target = check.calibration.value * group.monitors[index].target
                    group.shrink(index, min(target, bound) / norm)
                    norm = min(target, bound)
                self._measured[name] = norm
            check.leave()
        return non_finite

    def checked(self) -> dict[str, int]:
        return {n: self._now for n, check in self._checks.items() if check.latest == self._now}

    def norms(self) -> dict[str, float]:
        checks, norms = self._checks, self._group.norms
        tracked = {n: norm * checks[n].calibration.value for n, norm in norms.items()}
        return tracked | self._measured

    def states(self) -> dict[str, Any]:
        return {
            name: {"modes": self._group.state(index), "check": self._checks[name].state()}
            for index, name in enumerate(self.names)
        }

    def load_states(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            self._group.load_state(self.names.index(name), state["modes"])
            self._checks[name].load_state(state["check"])

    @property
    def num_matvecs(self) -> float:
        """By multiply-adds, and what the checks cost."""
        checks = sum(check.num_matvecs for check in self._checks.values())
        return self._group.work / self.application_work + checks


@final
class VectorConstraint(LayerConstraint):
    """A layer followed by full vectors, at each of its input shapes.

    Far below its bound it is followed at its own size, by one vector; near the bound by several,
    which may be on smaller images. Inside an image any convolution acts on Fourier modes: these go
    first, so that full vectors have to deal with the borders only.
    """

    def __init__(
        self,
        name: str,
        projectors: Sequence[VectorProjector],
        check: NormCheck,
        modes: ModeGroup | None,
        application: int,
    ) -> None:
        """Begin; `application` is the number of multiply-adds of one."""
        self.names, self._projectors, self._check, self._modes = (name,), projectors, check, modes
        self._norm, self._steps, self._now = math.nan, 0, 0
        self._inside = Calibration()
        self.application_work = float(application)

    def step(self, turn: Turn) -> Sequence[str]:
        name, check = self.names[0], self._check
        bound = turn.bounds[name]
        self._steps, self._now = self._steps + 1, turn.number
        stride = check.stride()
        is_due = check.is_due(stride, turn.check_every)
        is_far = self._norm < LAYER.far * bound and not is_due
        is_fresh = not is_far or self._steps % LAYER.refreshed == 0
        if is_fresh and not self._refresh(turn, stride):
            return self.names
        known = max(projector.norm for projector in self._projectors)
        whole = all(projector.share == 1 for projector in self._projectors)
        if is_due:
            self._norm = check.compare(known, bound, turn.number)
            self._note_modes()
        elif is_far:
            self._norm = check.follow()
        else:
            self._norm = known * (1.0 if whole else check.calibration.value)
        if not math.isfinite(self._norm):
            return self.names
        if self._norm > bound:
            target = check.calibration.value * self._projectors[0].monitor.target
            factor = min(target, bound) / self._norm
            self._projectors[0].shrink(factor)
            self._norm *= factor
        check.leave()
        return ()

    def _refresh(self, turn: Turn, stride: float) -> bool:
        """Refresh what is tracked, and clip what is above; whether the weights are finite."""
        name, modes = self.names[0], self._modes
        if modes is not None and not modes.is_warm:
            for estimate in modes.begin(turn.bounds).values():
                self._inside.begin(self._check.search(), estimate)
        inside = turn.target(name, stride, min(self._inside.value, 1.0))
        if modes is not None and modes.step({name: inside}):
            return False
        target = turn.target(name, stride, self._check.calibration.value)
        return all([projector.step(target) for projector in self._projectors])

    def _note_modes(self) -> None:
        """Fourier modes show the inside of an image: more than there is on a small one."""
        if self._modes is not None and math.isfinite(self._norm):
            self._inside.note(self._norm, self._modes.norms[self.names[0]])

    def checked(self) -> dict[str, int]:
        return {self.names[0]: self._now} if self._check.latest == self._now else {}

    def norms(self) -> dict[str, float]:
        return {} if math.isnan(self._norm) else {self.names[0]: self._norm}

    def states(self) -> dict[str, Any]:
        vectors = [projector.state() for projector in self._projectors]
        modes = None if self._modes is None else self._modes.state(0)
        own = {"norm": self._norm, "steps": self._steps, "modes": modes}
        own["inside"] = self._inside.value
        return {self.names[0]: {"vectors": vectors, "check": self._check.state(), **own}}

    def load_states(self, states: Mapping[str, Any]) -> None:
        for state in states.values():
            self._norm, self._steps = float(state["norm"]), int(state["steps"])
            self._inside.value = float(state["inside"])
            if self._modes is not None:
                self._modes.load_state(0, state["modes"])
            for projector, vectors in zip(self._projectors, state["vectors"], strict=True):
                projector.load_state(vectors)
            self._check.load_state(state["check"])

    @property
    def num_matvecs(self) -> float:
        """Of vectors, large and small; of modes by multiply-adds."""
        vectors = sum(projector.num_matvecs * projector.share for projector in self._projectors)
        modes = 0.0 if self._modes is None else self._modes.work / self.application_work
        return vectors + modes + self._check.num_matvecs


@final
class ClampConstraint(LayerConstraint):
    """A batch norm, whose singular values are its factors."""

    def __init__(self, name: str, norm: nn.Module) -> None:
        self.names, self._module, self._norm, self._now = (name,), norm, math.nan, 0

    def step(self, turn: Turn) -> Sequence[str]:
        self._now = turn.number
        norm = clamp_batch_norm_(self._module, turn.bounds[self.names[0]])
        if not math.isfinite(norm):
            return self.names
        self._norm = norm
        return ()

    def checked(self) -> dict[str, int]:
        return {self.names[0]: self._now}

    def norms(self) -> dict[str, float]:
        return {} if math.isnan(self._norm) else {self.names[0]: self._norm}

    def states(self) -> dict[str, Any]:
        return {self.names[0]: {"norm": self._norm}}

    def load_states(self, states: Mapping[str, Any]) -> None:
        for state in states.values():
            self._norm = float(state["norm"])
