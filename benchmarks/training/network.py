"""One number for a whole network: what `max_lipschitz` costs beside `max_norm`, and what it holds.

Two copies of a network learn in turns on the same batches, one with a bound for each layer and one
with a bound for the network. Right after every so many steps the norms of the layers of the second
are read in float64, and the rules of `lipschitz_bounds` make the network's bound of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.session import Session
from benchmarks.training.data import Images, digits, objects
from benchmarks.training.models import resnet18, seeded, small_convnet
from oracle import TrackedNorms
from spectralclip import attach, init_at_bound_
from spectralclip._lipschitz import NetworkRules
from spectralclip.nn import CenterNorm, replace_batch_norms_

MAX_NORM, MAX_LIPSCHITZ = 1.0, 10.0


@dataclass(frozen=True)
class Setting:
    """A network, and how long it learns."""

    name: str
    make: Callable[[], nn.Module]
    images: Callable[[Path], Images | None]
    batch: int
    steps: int
    every: int = 50  # steps between two readings
    warm_up: int = 5  # steps whose times do not count
    seeds: tuple[int, ...] = (0, 1, 2)


def without_batch_norm(width: int) -> nn.Module:
    """ResNet-18 whose blocks halve their sums, with convolutions alone."""
    model = resnet18(width, halve=True)
    names = [name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)]
    for name in names:
        model.set_submodule(name, nn.Identity())
    return model


def with_center_norm(width: int) -> nn.Module:
    """The same, with channels centred."""
    model = resnet18(width, halve=True)
    replace_batch_norms_(model, CenterNorm)
    return model


FULL = (
    Setting("small convnet", small_convnet, digits, 64, 1000),
    Setting("ResNet-18, width 16", lambda: without_batch_norm(16), objects, 32, 400),
    Setting("ResNet-18, width 16, CenterNorm", lambda: with_center_norm(16), objects, 32, 400),
)
QUICK = (
    Setting("small convnet", small_convnet, digits, 16, 12, 4, 2, (0,)),
    Setting("ResNet-18, width 4", lambda: without_batch_norm(4), objects, 4, 6, 3, 1, (0,)),
    Setting("width 4, CenterNorm", lambda: with_center_norm(4), objects, 4, 6, 3, 1, (0,)),
)


@dataclass(frozen=True)
class NetworkRow:
    """One network and seed."""

    model: str
    seed: int
    batch: int
    steps: int
    readings: int
    step_seconds: float  # without the method's work: median over both
    max_norm_seconds: float  # of a whole step, with a bound for each layer: median
    max_lipschitz_seconds: float  # and with one for the network
    max_norm_after: float  # of the method's work: mean, in which what comes rarely counts
    max_lipschitz_after: float
    median_ratio: float  # of whole steps, by their medians
    ratio: float  # of whole steps, by the median without and the mean of the work
    bound: float  # largest over the readings, over L
    bound_least: float  # smallest
    loss: float  # mean over the last tenth of the steps, held as a whole
    certified: float  # proved after finalize, over L


@dataclass
class Learner:
    """A copy of the network under one kind of bound."""

    model: nn.Module
    example: Tensor
    limits: dict[str, float]
    plain: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        init_at_bound_(self.model, self.example, **self.limits)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self._stamps: list[float] = []
        # Hooks run in the order of their registration: this one just before the method's.
        self.optimizer.register_step_post_hook(lambda *_: self._stamps.append(time.perf_counter()))
        self.attachment = attach(self.model, self.optimizer, self.example, **self.limits)

    def step(self, images: Tensor, labels: Tensor) -> None:
        began = time.perf_counter()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        ended, middle = time.perf_counter(), self._stamps.pop()
        self.plain.append(middle - began)
        self.after.append(ended - middle)
        self.losses.append(loss.item())


def measure(session: Session, folder: Path) -> dict[str, Any]:
    """All networks and seeds, one after another."""
    rows: list[NetworkRow] = []
    sources = {}
    for setting in QUICK if session.quick else FULL:
        images = setting.images(folder)
        if images is None:
            session.say(f"network: no images for {setting.name}")
            continue
        sources[setting.name] = images.source
        for seed in setting.seeds:
            row = measure_network(setting, images, seed)
            rows.append(row)
            session.say(
                f"{row.model}, seed {seed}: a step {row.ratio:.3f} times as long (medians "
                f"{row.median_ratio:.3f}), bound {row.bound:.4f} L at most, proved at the end "
                f"{row.certified:.4f} L, loss {row.loss:.3f}"
            )
    every = (QUICK if session.quick else FULL)[0].every
    limits = {"max_norm": MAX_NORM, "max_lipschitz": MAX_LIPSCHITZ, "every": every}
    return {"images": sources, **limits, "rows": [asdict(row) for row in rows]}


def measure_network(setting: Setting, images: Images, seed: int) -> NetworkRow:
    """Both copies in turns, with readings of the one that is held as a whole."""
    example = images.train[0][:1]
    limits: tuple[dict[str, float], ...] = (
        {"max_norm": MAX_NORM},
        {"max_lipschitz": MAX_LIPSCHITZ},
    )
    each, whole = (Learner(seeded(setting.make, seed), example, limit) for limit in limits)
    layers = whole.attachment.layers
    oracle, rules = TrackedNorms(layers, seed), NetworkRules(whole.model, example, layers)
    generator, bounds = torch.Generator().manual_seed(seed), []
    for step in range(1, setting.steps + 1):
        batch = images.batch(setting.batch, generator)
        for learner in (each, whole) if step % 2 else (whole, each):
            learner.step(*batch)
        if step % setting.every == 0:
            bounds.append(rules.of(oracle.norms()) / MAX_LIPSCHITZ)
    each.attachment.remove()
    whole.attachment.finalize(certify=True)
    assert whole.attachment.network_bound is not None
    return NetworkRow(
        model=setting.name,
        seed=seed,
        batch=setting.batch,
        steps=setting.steps,
        readings=len(bounds),
        bound=max(bounds),
        bound_least=min(bounds),
        loss=statistics.mean(whole.losses[-max(1, setting.steps // 10) :]),
        certified=whole.attachment.network_bound.upper / MAX_LIPSCHITZ,
        **times(each, whole, setting.warm_up),
    )


def times(each: Learner, whole: Learner, warm_up: int) -> dict[str, float]:
    """Of steps, and of the work after them, with a bound for each layer and for the whole."""
    plain = statistics.median(one for run in (each, whole) for one in run.plain[warm_up:])
    medians, means = [], []
    for run in (each, whole):
        pairs = zip(run.plain[warm_up:], run.after[warm_up:], strict=True)
        medians.append(statistics.median(sum(pair) for pair in pairs))
        means.append(statistics.mean(run.after[warm_up:]))
    return {
        "step_seconds": plain,
        "max_norm_seconds": medians[0],
        "max_lipschitz_seconds": medians[1],
        "max_norm_after": means[0],
        "max_lipschitz_after": means[1],
        "median_ratio": medians[1] / medians[0],
        "ratio": (plain + means[1]) / (plain + means[0]),
    }
