"""What a method costs: its work after each step of a real training, against the step itself.

Each method has its own copy of model and optimizer, and all take their steps in turns, on the
same batches. One clock runs from the forward pass to the optimizer's step, which is the plain
step; another from there to the return of `optimizer.step()`, which is the method's work.

In its first steps ours checks layers often, and steps those again whose norms jump. ResNet-18, of
which few steps can be timed, is timed then, and once more when it has trained for a while.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.session import Session
from benchmarks.training.data import Images, digits, objects, small_objects
from benchmarks.training.methods import (
    FASTCLIP,
    FASTCLIP_BACKWARD,
    FASTCLIP_PERIOD,
    NONE,
    OURS,
    OURS_COMPILED,
    SCALE,
    attached,
    bounded_layers,
    clip_is_due,
    clips_at_times,
    make_clip_due,
    num_matvecs,
)
from benchmarks.training.models import (
    mlp,
    resnet18,
    seeded,
    small_convnet,
    three_convolutions,
)
from oracle import TrackedNorms

COMPARED = (NONE, FASTCLIP_BACKWARD, FASTCLIP, SCALE, OURS, OURS_COMPILED)
FIRST, LATER = "first", "later"  # steps of a training


@dataclass(frozen=True)
class Phase:
    """Rounds of one batch size, in each of which the methods take a step in turns.

    Our method does more in some steps than in others, so that its mean is taken over many; the
    others, which do the same at each step, may be timed less often.
    """

    batch: int
    rounds: int
    warm_up: int  # rounds before, which do not count
    clips: tuple[int, ...] = ()  # rounds at which FastClip is made to clip
    readings: tuple[int, ...] = ()  # rounds after which true norms are read
    others_every: int = 1  # rounds in which methods other than ours step, too
    stage: str = LATER  # of the training


@dataclass(frozen=True)
class Setting:
    """A model with its phases, in which training goes on."""

    name: str
    make: Callable[[], nn.Module]
    images: Callable[[Path], Images | None]
    phases: tuple[Phase, ...]


FULL = (
    Setting(
        "small convnet",
        small_convnet,
        digits,
        (Phase(64, 400, 20, readings=tuple(range(20, 401, 20))),),
    ),
    Setting(
        "three convolutions",
        three_convolutions,
        small_objects,
        (Phase(64, 400, 20, readings=tuple(range(20, 401, 20))),),
    ),
    Setting(
        "MLP 784-128-128-10",
        mlp,
        digits,
        (Phase(64, 1000, 50, readings=tuple(range(100, 1001, 100))),),
    ),
    Setting(
        "ResNet-18, width 64",
        resnet18,
        objects,
        (
            Phase(32, 50, 4, clips=(16, 32), readings=(24, 48), others_every=4, stage=FIRST),
            Phase(8, 0, 300, others_every=301),
            Phase(32, 30, 0, clips=(12, 24), readings=(15, 30), others_every=4),
            Phase(128, 3, 0, readings=(3,)),
        ),
    ),
)
QUICK = (
    Setting("small convnet", small_convnet, digits, (Phase(64, 12, 2, (4,), (6, 12)),)),
    Setting(
        "ResNet-18, width 4",
        lambda: resnet18(4),
        objects,
        (Phase(4, 4, 1, (2,), (4,)), Phase(16, 2, 0, (), (2,))),
    ),
)


@dataclass(frozen=True)
class OverheadRow:
    """One method on one model and batch size."""

    model: str
    batch: int
    stage: str  # "first" steps of a training, or "later" ones
    method: str
    layers: int
    rounds: int
    plain_seconds: float  # of a step without the method's work: median over all methods
    own_plain_seconds: float  # the same over this method's steps
    after_seconds: float  # of the method's work: mean over the stage's steps of all batch sizes
    after_here_seconds: float  # and over those of this one
    after_median_seconds: float  # over the stage; FastClip's clips are not in it
    clip_seconds: float | None  # of a step at which FastClip clips
    overhead: float  # after_seconds / plain_seconds
    num_matvecs: float  # a step and layer; 0 where they are not counted
    norm: float | None  # largest true sigma_1 / c at the readings; None for no finite one
    layer: str  # which it was


@dataclass(frozen=True)
class Step:
    """What a step took."""

    batch: int
    stage: str
    plain: float  # seconds
    after: float
    num_matvecs: float
    clip: bool  # whether FastClip was due to clip


@dataclass
class Runner:
    """One method with its own model."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    example: Tensor
    steps: list[Step] = field(default_factory=list)
    norms: dict[str, list[tuple[float, str]]] = field(default_factory=dict)  # largest, its layer

    def __post_init__(self) -> None:
        self._stamps: list[float] = []
        # Hooks run in the order of their registration: this one just before the method's.
        self.optimizer.register_step_post_hook(lambda *_: self._stamps.append(time.perf_counter()))
        self.attachment = attached(self.name, self.model, self.example, self.optimizer)
        layers = bounded_layers(self.model, self.example)
        self.oracle, self.layers = TrackedNorms(layers), len(layers)

    def step(self, images: Tensor, labels: Tensor, stage: str) -> Step:
        before = num_matvecs(self.attachment)
        began = time.perf_counter()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        ended = time.perf_counter()
        middle = self._stamps.pop()
        return Step(
            len(labels),
            stage,
            middle - began,
            ended - middle,
            num_matvecs(self.attachment) - before,
            clip_is_due(self.name, self.attachment),
        )


def measure(session: Session, folder: Path) -> dict[str, Any]:
    """All settings, one after another."""
    rows: list[OverheadRow] = []
    sources = {}
    for setting in QUICK if session.quick else FULL:
        images = setting.images(folder)
        if images is None:
            session.say(f"overhead: no images for {setting.name}")
            continue
        sources[setting.name] = images.source
        rows += _measure_setting(session, setting, images)
    return {"images": sources, "rows": [asdict(row) for row in rows]}


def _measure_setting(session: Session, setting: Setting, images: Images) -> list[OverheadRow]:
    compared = COMPARED[:-1] if session.quick else COMPARED  # compilation takes minutes
    runners = [_runner(setting, name, images) for name in compared]
    generator = torch.Generator().manual_seed(0)
    for phase in setting.phases:
        _run(phase, runners, images, generator)
    timed = [phase for phase in setting.phases if phase.rounds]
    rows = [_row(setting, phase, runner, runners) for phase in timed for runner in runners]
    for row in rows:
        session.say(
            f"{row.model}, batch {row.batch}, {row.stage} steps, {row.method}: "
            f"{1e3 * row.plain_seconds:.1f} ms a step, {1e3 * row.after_seconds:.2f} ms after it: "
            f"{100 * row.overhead:.1f} %, "
            f"{row.num_matvecs:.2f} matvecs, norm {row.norm} of {row.layer}"
        )
    return rows


def _runner(setting: Setting, name: str, images: Images) -> Runner:
    model = seeded(setting.make, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Runner(name, model, optimizer, images.train[0][:1])


def _run(phase: Phase, runners: list[Runner], images: Images, generator: torch.Generator) -> None:
    for round_ in range(1 - phase.warm_up, phase.rounds + 1):
        batch = images.batch(phase.batch, generator)
        shift = round_ % len(runners)
        for runner in runners[shift:] + runners[:shift]:
            if round_ % phase.others_every and runner.name not in (OURS, OURS_COMPILED):
                continue
            if round_ in phase.clips and clips_at_times(runner.name):
                make_clip_due(runner.attachment)
            step = runner.step(*batch, phase.stage)
            if round_ > 0:
                runner.steps.append(step)
        if round_ in phase.readings:
            for runner in runners:
                runner.norms.setdefault(phase.stage, []).append(runner.oracle.largest())


def _row(setting: Setting, phase: Phase, runner: Runner, runners: list[Runner]) -> OverheadRow:
    pooled = [s.plain for other in runners for s in other.steps if s.batch == phase.batch]
    plain = statistics.median(pooled)
    steps = [step for step in runner.steps if step.stage == phase.stage]
    here = [step for step in steps if step.batch == phase.batch]
    clips = [step.after for step in steps if step.clip]
    after = amortized([(step.after, step.clip) for step in steps])
    work = amortized([(step.num_matvecs, step.clip) for step in steps])
    norm, layer = max(runner.norms[phase.stage])
    return OverheadRow(
        model=setting.name,
        batch=phase.batch,
        stage=phase.stage,
        method=runner.name,
        layers=runner.layers,
        rounds=len(here),
        plain_seconds=plain,
        own_plain_seconds=statistics.median(step.plain for step in here),
        after_seconds=after,
        after_here_seconds=amortized([(step.after, step.clip) for step in here]),
        after_median_seconds=statistics.median(step.after for step in steps),
        clip_seconds=statistics.mean(clips) if clips else None,
        overhead=after / plain,
        num_matvecs=work / runner.layers,
        norm=norm if math.isfinite(norm) else None,
        layer=layer,
    )


def amortized(values: Iterable[tuple[float, bool]]) -> float:
    """The mean a step. FastClip's clips count as often as they come, not as they came here."""
    values = list(values)
    clips = [value for value, clip in values if clip]
    others = [value for value, clip in values if not clip]
    if not clips:
        return statistics.mean(others)
    share = 1 / FASTCLIP_PERIOD
    return (1 - share) * statistics.mean(others) + share * statistics.mean(clips)
