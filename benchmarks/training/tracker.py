"""How near tracked norms are to the truth on steps that clip nothing, and at what price."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.common.session import Session
from benchmarks.training.data import digits
from benchmarks.training.methods import FASTCLIP, OURS, attached, bounded_layers, num_matvecs
from benchmarks.training.models import PADDINGS, Padding, seeded, small_convnet
from benchmarks.training.pool import outcomes
from oracle import TrackedNorms

COMPARED = (FASTCLIP, OURS)
OUT_OF_REACH = 1e6  # a bound that nothing comes near
STEPS, WARM_UP = 300, 15
WITHIN = 1e-3


@dataclass(frozen=True)
class TrackerRow:
    """One method on one padding, over all convolutions and steps."""

    padding: Padding
    method: str
    steps: int
    share: float  # of norms within 1e-3 of the truth
    median_error: float  # relative
    largest_error: float
    pairs: float  # a step and layer; 0 where they are not counted


def measure(session: Session, folder: Path, processes: int) -> dict[str, Any]:
    """One training for each padding, followed by both at once: they change nothing in it."""
    paddings, steps = (PADDINGS[:1], 20) if session.quick else (PADDINGS, STEPS)
    rows: list[TrackerRow] = []
    for found in outcomes(partial(_follow, steps=steps, folder=folder), paddings, processes):
        rows += found
        said = ", ".join(f"{r.method} {r.share:.3f} at {r.pairs:.2f} pairs" for r in found)
        session.say(f"tracker: {found[0].padding}: {said}")
    rows.sort(key=lambda row: PADDINGS.index(row.padding))
    source = digits(folder).source
    return {"images": source, "warm_up": WARM_UP, "rows": [asdict(row) for row in rows]}


def _follow(padding: Padding, steps: int, folder: Path) -> list[TrackerRow]:
    images = digits(folder)
    model = seeded(lambda: small_convnet(padding), 0)
    example, generator = images.train[0][:1], torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    layers = bounded_layers(model, example)
    # Dense layers are decomposed, and would only improve the figures.
    followed = {n: f for n, f in layers.items() if isinstance(f.modules[0], nn.Conv2d)}
    bounds = dict.fromkeys(followed, OUT_OF_REACH)
    trackers = {name: attached(name, model, example, optimizer, bounds) for name in COMPARED}
    oracle = TrackedNorms(followed)
    errors: dict[str, list[float]] = {name: [] for name in COMPARED}
    spent = dict.fromkeys(COMPARED, 0.0)
    for step in range(1, WARM_UP + steps + 1):
        inputs, labels = images.batch(64, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if step == WARM_UP:
            spent = {name: num_matvecs(tracker) for name, tracker in trackers.items()}
        if step > WARM_UP:
            truth = oracle.norms()
            for name, tracker in trackers.items():
                errors[name] += _errors(tracker.norms(), truth)
    return [
        _row(padding, name, steps, errors[name], num_matvecs(tracker) - spent[name])
        for name, tracker in trackers.items()
    ]


def _errors(tracked: Mapping[str, float], truth: Mapping[str, float]) -> list[float]:
    return [abs(tracked[name] / norm - 1) for name, norm in truth.items()]


def _row(padding: Padding, name: str, steps: int, errors: list[float], spent: float) -> TrackerRow:
    return TrackerRow(
        padding,
        name,
        steps,
        sum(error <= WITHIN for error in errors) / len(errors),
        statistics.median(errors),
        max(errors),
        spent / 2 / len(errors),
    )
