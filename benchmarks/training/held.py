"""Where true norms stay while a model trains, and what that costs in loss and accuracy.

Nothing is timed here, so that runs may go on beside each other.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.session import Session
from benchmarks.training.data import Images, digits, objects
from benchmarks.training.growth import Growth, scale_to_bound
from benchmarks.training.methods import (
    FASTCLIP,
    FASTCLIP_10,
    NONE,
    NONE_COMPOSED,
    OURS,
    OURS_COMPOSED,
    SCALE,
    attached,
    bounded_layers,
    num_matvecs,
)
from benchmarks.training.models import PADDINGS, Padding, alone, resnet18, seeded, small_convnet
from benchmarks.training.pool import outcomes
from oracle import TrackedNorms

CONVNET, RESNET = "small convnet", "ResNet-18"
ALONE = {"256->256 n8": (256, 8), "512->512 n4": (512, 4)}
QUICK_ALONE = {"16->16 n8": (16, 8)}
COMPARED = (NONE, FASTCLIP, FASTCLIP_10, SCALE, OURS)
SEEDED = (FASTCLIP, SCALE, OURS)  # with SGD and three seeds; all else with one
SETTLED = 0.05  # the share of the steps that does not count
LAST = 50  # steps over which the loss is averaged
RATES = (0.002, 0.01)
LEAST = 0.97  # times the bound: below it, a layer would be held too low
FAST_RATES = (0.05, 0.1)  # learning rates of ResNet-18


@dataclass(frozen=True)
class Task:
    """One training run, with the steps between two readings of the true norms."""

    model: str
    method: str
    steps: int
    every: int
    padding: Padding = "zeros"
    optimizer: str = "SGD"
    seed: int = 0
    compose: bool = False  # norms of convolutions with the following batch norm
    width: int = 16  # of ResNet-18
    rate: float | None = None  # of random growth, a step
    fresh: bool = False  # a new direction at each step
    learning_rate: float | None = None  # 0.01 for SGD and 1e-3 for Adam, if None


@dataclass(frozen=True)
class HeldRow:
    """What was seen."""

    task: dict[str, Any]
    layers: int
    readings: int
    norm: float | None  # largest true sigma_1 / c after the first 5 %; None if not finite
    layer: str  # which it was
    norm_first: float | None  # the largest within the first 5 %
    norm_median: float | None  # over the readings after those, of the largest
    norm_p90: float | None
    norm_least: float | None  # of a convolution by itself: of what it does on a larger torus
    loss: float | None  # mean over the last 50 steps
    num_matvecs: float  # a step and layer; 0 where they are not counted
    accuracy: float | None  # on test images, in percent
    finalized_norm: float | None  # largest true sigma_1 / c after `.finalize()`
    finalized_accuracy: float | None
    oracle_error: float | None  # largest difference to ARPACK, where it was computed
    trace: list[tuple[int, float]]  # step and largest norm, of one seed


def tasks(quick: bool) -> list[Task]:
    """All runs, the longest first."""
    return [*_resnet_tasks(quick), *_alone_tasks(quick), *_convnet_tasks(quick)]


def _convnet_tasks(quick: bool) -> Iterator[Task]:
    paddings: tuple[Padding, ...] = ("zeros", "reflect") if quick else PADDINGS
    steps = 24 if quick else 400
    for padding in paddings:
        runs = [(optimizer, seed) for optimizer in ("SGD", "Adam") for seed in range(3)]
        for optimizer, seed in runs[:1] if quick else runs:
            others = SEEDED if optimizer == "SGD" else (OURS,)
            for method in COMPARED if seed == 0 else others:
                # What is judged is read at every step, what it is compared with now and then.
                every = 1 if method == OURS else 20
                yield Task(CONVNET, method, steps, every, padding, optimizer, seed)


def _resnet_tasks(quick: bool) -> Iterator[Task]:
    steps, width = (6, 4) if quick else (200, 16)
    run = partial(Task, RESNET, steps=steps, every=3 if quick else 10, width=width)
    for method in (NONE, FASTCLIP, SCALE, OURS):
        yield run(method=method)
    for method in (NONE_COMPOSED, OURS_COMPOSED):
        yield run(method=method, compose=True)
    for rate in () if quick else FAST_RATES:
        yield Task(RESNET, OURS, steps=100, every=2, learning_rate=rate)


def _alone_tasks(quick: bool) -> Iterator[Task]:
    for name in QUICK_ALONE if quick else ALONE:
        for rate in RATES:
            for fresh in (False, True):
                for method in (NONE, SCALE, OURS):
                    every = 5 if method == OURS else 20
                    steps = 20 if quick else 200
                    yield Task(name, method, steps, every, rate=rate, fresh=fresh)


def measure(session: Session, folder: Path, processes: int, finished: Path) -> dict[str, Any]:
    """All runs, in several processes of one thread each.

    Args:
        session: Where to say how far it is.
        folder: With the images.
        processes: How many.
        finished: A file of runs that are done, which is added to, and begun with.
    """
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    wanted = tasks(session.quick)
    rows += [json.loads(line) for line in _lines(finished)]
    known = {str(row["task"]) for row in rows}
    left = [task for task in wanted if str(asdict(task)) not in known]
    attempts = outcomes(partial(_attempt, folder=folder), left, processes)
    for done, (task, row, error) in enumerate(attempts, 1 + len(rows)):
        if row is None:
            failed.append({"run": str(task), "error": error})
        else:
            rows.append(asdict(row))
            with finished.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        session.say(f"held: {done}/{len(wanted)} {_in_short(task, row, error)}")
    order = {str(asdict(task)): position for position, task in enumerate(wanted)}
    rows.sort(key=lambda row: order[str(row["task"])])
    sources = {CONVNET: digits(folder).source}
    return {"settled": SETTLED, "images": sources, "rows": rows, "failed": failed}


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _attempt(task: Task, folder: Path) -> tuple[Task, HeldRow | None, str]:
    """A run that fails is noted, and the others go on."""
    try:
        return task, _run(task, folder), ""
    except (ArithmeticError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        return task, None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _run(task: Task, folder: Path) -> HeldRow | None:
    if task.rate is not None:
        return _grow(task)
    images = digits(folder) if task.model == CONVNET else objects(folder)
    if images is None:
        raise ValueError("no images of CIFAR-10 in the data folder")
    return _train(task, images)


def _train(task: Task, images: Images) -> HeldRow:
    if task.model == CONVNET:
        model = seeded(lambda: small_convnet(task.padding), task.seed)
    else:
        model = seeded(lambda: resnet18(task.width), task.seed)
    optimizer = _optimizer(task, model)
    watch = _Watch(task, model, images.train[0][:2], optimizer)
    generator = torch.Generator().manual_seed(100 + task.seed)
    losses = []
    for step in range(1, task.steps + 1):
        inputs, labels = images.batch(64 if task.model == CONVNET else 32, generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        watch.read(step)
    return watch.row(_finite(statistics.mean(losses[-LAST:])), lambda: _accuracy(model, images))


def _optimizer(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    if task.optimizer == "Adam":
        return torch.optim.Adam(model.parameters(), lr=task.learning_rate or 1e-3)
    return torch.optim.SGD(model.parameters(), lr=task.learning_rate or 0.01, momentum=0.9)


def _grow(task: Task) -> HeldRow:
    assert task.rate is not None
    channels, side = {**ALONE, **QUICK_ALONE}[task.model]
    model = seeded(lambda: alone(channels), task.seed)
    example = torch.zeros(1, channels, side, side)
    scale_to_bound(model, example)
    growth = Growth(model, example, task.rate, task.fresh, task.seed)
    watch = _Watch(task, model, example, None)
    for step in range(1, task.steps + 1):
        growth.step()
        watch.follow()
        watch.read(step)
    return watch.row(None, None)


class _Watch:
    """A method at work, and an oracle that reads what it leaves."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        example: Tensor,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._task = task
        layers = bounded_layers(model, example, "conv_bn" if task.compose else "none")
        self._layers = len(layers)
        self._oracle = TrackedNorms(layers, task.seed)
        self._attachment = attached(task.method, model, example, optimizer, seed=task.seed)
        self._readings: list[tuple[int, float, str]] = []
        self._model, self._lows = model, list[float]()
        self._errors: list[float] = []

    def follow(self) -> None:
        """Do by hand what an optimizer would have called for."""
        self._attachment.step()

    def read(self, step: int) -> None:
        # One step before FastClip clips.
        if (step + 1) % self._task.every == 0 or step == self._task.steps:
            self._readings.append((step, *self._oracle.largest()))
            if self._task.rate is not None and step > SETTLED * self._task.steps:
                self._lows.append(self._low(self._readings[-1][1]))
        ours = self._task.method in (OURS, OURS_COMPOSED)
        if ours and step in (self._task.steps // 2, self._task.steps):
            self._errors.append(self._oracle.disagreement())

    def _low(self, norm: float) -> float:
        """A norm, or where that is low, the one that a zero-padded layer is held by.

        It is a part of the same kernel on a torus that is larger by its padding, and never above.
        """
        if self._task.method != OURS or norm >= LEAST:
            return norm
        weight = next(p for p in self._model.parameters() if p.ndim == 4).detach()
        side = {**ALONE, **QUICK_ALONE}[self._task.model][1] + weight.shape[-1] - 1
        symbols = torch.fft.rfft2(weight, s=(side, side)).permute(2, 3, 0, 1).flatten(0, 1)
        return math.sqrt(float(torch.linalg.eigvalsh(symbols @ symbols.mH).max()))

    def row(self, loss: float | None, accuracy: Callable[[], float] | None) -> HeldRow:
        settled = SETTLED * self._task.steps
        counted = [(norm, layer) for step, norm, layer in self._readings if step > settled]
        first = [norm for step, norm, _ in self._readings if step <= settled]
        norm, layer = max(counted)
        norms = sorted(norm for norm, _ in counted)
        spent = num_matvecs(self._attachment) / self._task.steps / self._layers
        before = None if accuracy is None else accuracy()
        finalized = None
        if self._task.method != NONE or accuracy is not None:  # long for a layer that has grown
            self._attachment.finalize()
            finalized = _finite(self._oracle.largest()[0])
        return HeldRow(
            task=asdict(self._task),
            layers=self._layers,
            readings=len(self._readings),
            norm=_finite(norm),
            layer=layer,
            norm_first=_finite(max(first)) if first else None,
            norm_median=_finite(statistics.median(norms)),
            norm_p90=_finite(norms[math.ceil(0.9 * len(norms)) - 1]),
            norm_least=_finite(min(self._lows, default=norms[0])),
            loss=loss,
            num_matvecs=spent,
            accuracy=before,
            finalized_norm=finalized,
            finalized_accuracy=None if accuracy is None else accuracy(),
            oracle_error=max(self._errors, default=None),
            trace=[(step, round(norm, 4)) for step, norm, _ in self._readings],
        )


@torch.no_grad()
def _accuracy(model: nn.Module, images: Images) -> float:
    """Of the test images, in percent."""
    model.eval()
    inputs, labels = images.test
    guesses = torch.cat([model(part).argmax(1) for part in inputs.split(64)])
    model.train()
    return 100 * float((guesses == labels).double().mean())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _in_short(task: Task, row: HeldRow | None, error: str) -> str:
    name = f"{task.model} {task.padding} {task.optimizer} {task.seed} {task.method}"
    if row is None:
        return f"{name}: {error}"
    return f"{name}: norm {row.norm}, loss {row.loss}, {row.num_matvecs:.2f} matvecs"
