"""The ways in which layers are kept within their bounds, behind one interface."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from spectralclip._batch_norms import clamp_batch_norm_
from spectralclip._cut_step import Stripping
from spectralclip._keep_dense import DenseKeeper
from spectralclip._keep_images import ImageKeeper
from spectralclip._keep_waves import WaveGroup
from spectralclip._maps import ConvMap
from spectralclip._norm_check import NormCheck, seeded
from spectralclip._slots import Slot

# How a layer's own norm is looked at beside its estimates, and how often the cheaper way.
Look: TypeAlias = Literal["none", "follow", "search"]
FOLLOWED, NEAR_FOLLOWED, COSTLY_FOLLOWED = 4, 32, 48
# Multiplications of an application that is cheap.
CHEAP = 2e7
# Below this share of the bound one vector is enough, and all are refreshed after so many steps.
FAR, REFRESHED = 0.9, 16


class Keeping(ABC):
    """One or several layers, and what follows them.

    Attributes:
        names: The layers.
        application_work: Multiplications of one application of one of them.
    """

    names: tuple[str, ...]
    application_work = 0.0

    @abstractmethod
    def step(self, bounds: Mapping[str, float], headroom: float, look: Look) -> Sequence[str]:
        """Bring the layers within their bounds; the names of those that are not finite."""

    @abstractmethod
    def norms(self) -> dict[str, float]:
        """The latest norms."""

    @abstractmethod
    def states(self) -> dict[str, Any]:
        """By layer, what is remembered."""

    @abstractmethod
    def load_states(self, states: Mapping[str, Any]) -> None:
        """Go on from there."""

    @property
    @abstractmethod
    def applications(self) -> float:
        """Vectors sent through the layers, or as much work as that."""

    @property
    def is_new(self) -> bool:
        """Whether the layer itself has never been looked at."""
        return False

    def due(self, step: int, every: int, is_near: bool) -> Look:
        """How to look at the layer itself now: at its first step, and then not at all at once.

        Args:
            step: The number of the step.
            every: How often its norm is searched for; 0 for never.
            is_near: Whether it is at its bound, where its norm is known well enough.
        """
        turn = step + zlib.crc32(self.names[0].encode())
        costly = self.application_work > CHEAP
        if every and (self.is_new or turn % (2 * every if costly else every) == 0):
            return "search"
        followed = COSTLY_FOLLOWED if costly else NEAR_FOLLOWED if is_near else FOLLOWED
        return "follow" if every and turn % followed == 0 else "none"


@final
class KeptExactly(Keeping):
    """A layer whose singular values are all known at each step."""

    def __init__(self, slot: Slot, strip: Stripping, origin: str) -> None:
        self.names = (slot.name,)
        self._keeper = DenseKeeper(slot, strip, seeded(origin))

    def step(self, bounds: Mapping[str, float], headroom: float, look: Look) -> Sequence[str]:
        return () if self._keeper.step(bounds[self.names[0]]) else self.names

    def norms(self) -> dict[str, float]:
        norm = self._keeper.norm
        return {} if math.isnan(norm) else {self.names[0]: norm}

    def states(self) -> dict[str, Any]:
        keeper = self._keeper
        return {self.names[0]: {"vectors": keeper.vectors.clone(), "norm": keeper.norm}}

    def load_states(self, states: Mapping[str, Any]) -> None:
        for state in states.values():
            self._keeper.vectors = state["vectors"].to(self._keeper.vectors, copy=True)
            self._keeper.norm = float(state["norm"])

    @property
    def applications(self) -> float:
        """None: everything is done on the weight itself."""
        return 0.0


@final
class KeptByWaves(Keeping):
    """Convolutions of one shape, followed through plane waves."""

    def __init__(
        self,
        group: WaveGroup,
        checks: Mapping[str, NormCheck],
        conv: ConvMap | None,
    ) -> None:
        self.names = tuple(slot.name for slot in group.slots)
        self._group, self._checks, self._conv = group, checks, conv
        positions = 1 if conv is None else math.prod(conv.target.shape[1:])
        self.application_work = float(positions * group.slots[0].weight.numel())
        for check in checks.values():
            check.is_costly = self.application_work > CHEAP

    def step(self, bounds: Mapping[str, float], headroom: float, look: Look) -> Sequence[str]:
        checks = self._checks
        aims = {n: (1 - headroom) * c / checks[n].caution for n, c in bounds.items()}
        lost = self._group.step(aims)
        for index, slot in enumerate(self._group.slots if look != "none" else ()):
            if slot.name in lost or slot.name not in self._group.norms:
                continue
            known, thorough = self._group.norms[slot.name], look == "search"
            hints = () if thorough else self._hints(index)
            norm = checks[slot.name].compare(known, thorough=thorough, hints=hints)
            bound = bounds.get(slot.name, math.inf)
            if math.isfinite(norm) and norm > bound:
                self._group.shrink(index, bound / norm)
        return lost

    @property
    def is_new(self) -> bool:
        """Whether one of the layers has never been looked at."""
        return any(check.is_new for check in self._checks.values())

    def _hints(self, index: int) -> list[Tensor]:
        """The leading wave, fading towards borders of zeros: nearly a singular vector."""
        conv, hints = self._conv, []
        for shape in self._group.slots[index].in_shapes if conv is not None else ():
            assert conv is not None
            closed = conv.geometry.mode == "circular"
            image = self._group.images(index, shape, conv.geometry.before, closed=closed)
            if image is None:
                return []
            if not closed:
                for axis, side in enumerate(shape[1:], start=2):
                    ramp = torch.arange(1, side + 1, device=image.device) * (math.pi / (side + 1))
                    window = ramp.sin().to(image.dtype)
                    image = image * window.reshape(-1, *[1] * (image.ndim - 1 - axis))
            hints.append(image)
        return hints

    def norms(self) -> dict[str, float]:
        return {n: norm * self._checks[n].ratio for n, norm in self._group.norms.items()}

    def states(self) -> dict[str, Any]:
        return {
            name: {"waves": self._group.state(index), "check": self._checks[name].state()}
            for index, name in enumerate(self.names)
        }

    def load_states(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            self._group.load_state(self.names.index(name), state["waves"])
            self._checks[name].load_state(state["check"])

    @property
    def applications(self) -> float:
        """By multiplications, and what the checks cost."""
        checks = sum(check.applications for check in self._checks.values())
        return self._group.work / self.application_work + checks


@final
class KeptByImages(Keeping):
    """A layer followed by images, at each of its input shapes.

    Far below its bound it is followed at its own size, by one vector; near the bound by several,
    which may be on smaller images. Inside an image any convolution acts on plane waves: these go
    first, so that images have to deal with the borders only.
    """

    def __init__(
        self,
        name: str,
        keepers: Sequence[ImageKeeper],
        check: NormCheck,
        waves: WaveGroup | None,
        application: int,
    ) -> None:
        """Begin; `application` is the number of multiplications of one."""
        self.names, self._keepers, self._check, self._waves = (name,), keepers, check, waves
        self._norm, self._steps = math.nan, 0
        self.application_work = float(application)

    def step(self, bounds: Mapping[str, float], headroom: float, look: Look) -> Sequence[str]:
        bound = bounds[self.names[0]]
        aim = (1 - headroom) * bound / self._check.caution
        self._steps += 1
        is_far = self._norm < FAR * aim and look != "search"
        is_due = not is_far or self._steps % REFRESHED == 0
        if is_due and self._waves is not None and self._waves.step({self.names[0]: aim}):
            return self.names
        if is_due and not all([keeper.step(aim) for keeper in self._keepers]):
            return self.names
        known = max(keeper.norm for keeper in self._keepers)
        whole = all(keeper.share == 1 for keeper in self._keepers)
        if look == "search" or is_far or (look == "follow" and not whole):
            # What is out of date says nothing about how good estimates are.
            norm = self._check.compare(known if is_due else 0.0, thorough=look == "search")
            if not math.isfinite(norm):
                return self.names
            if norm > bound:
                self._keepers[0].shrink(bound / norm)
            self._norm = min(max(norm, known) if whole and is_due else norm, bound)
        else:
            self._norm = known * (1.0 if whole else self._check.ratio)
        return ()

    @property
    def is_new(self) -> bool:
        """Whether the layer itself has never been looked at."""
        return self._check.is_new

    def norms(self) -> dict[str, float]:
        return {} if math.isnan(self._norm) else {self.names[0]: self._norm}

    def states(self) -> dict[str, Any]:
        images = [keeper.state() for keeper in self._keepers]
        waves = None if self._waves is None else self._waves.state(0)
        own = {"norm": self._norm, "steps": self._steps, "waves": waves}
        return {self.names[0]: {"images": images, "check": self._check.state(), **own}}

    def load_states(self, states: Mapping[str, Any]) -> None:
        for state in states.values():
            self._norm, self._steps = float(state["norm"]), int(state["steps"])
            if self._waves is not None:
                self._waves.load_state(0, state["waves"])
            for keeper, images in zip(self._keepers, state["images"], strict=True):
                keeper.load_state(images)
            self._check.load_state(state["check"])

    @property
    def applications(self) -> float:
        """Of vectors, large and small; of waves by multiplications."""
        images = sum(keeper.applications * keeper.share for keeper in self._keepers)
        waves = 0.0 if self._waves is None else self._waves.work / self.application_work
        return images + waves + self._check.applications


@final
class KeptByClamp(Keeping):
    """A batch norm, whose singular values are its factors."""

    def __init__(self, name: str, norm: nn.Module) -> None:
        self.names, self._module, self._norm = (name,), norm, math.nan

    def step(self, bounds: Mapping[str, float], headroom: float, look: Look) -> Sequence[str]:
        norm = clamp_batch_norm_(self._module, bounds[self.names[0]])
        if not math.isfinite(norm):
            return self.names
        self._norm = norm
        return ()

    def norms(self) -> dict[str, float]:
        return {} if math.isnan(self._norm) else {self.names[0]: self._norm}

    def states(self) -> dict[str, Any]:
        return {self.names[0]: {"norm": self._norm}}

    def load_states(self, states: Mapping[str, Any]) -> None:
        for state in states.values():
            self._norm = float(state["norm"])

    @property
    def applications(self) -> float:
        """None."""
        return 0.0
