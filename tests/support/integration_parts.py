"""What the tests of the integrations share: a method with a memory, an oracle, and dashboards."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from seeds import seeded
from torch import Tensor, nn

from spectralclip._models.layers import FoundLayer
from spectralclip._training.attach import attach
from spectralclip._training.attachment import Attachment
from spectralclip._training.distributed.sharing import Sharing
from spectralclip._training.method import Method, MethodState
from spectralclip._training.spectral_clip import SpectralClip
from spectralclip.integrations import NormRecord


def dense_norm(weight: Tensor) -> float:
    return float(torch.linalg.svdvals(weight.detach().double())[0])


class Scale(Method):
    """Scales dense layers by their exact norm, ever less strictly.

    How strictly depends on a count that is the state's own, so that a run that is resumed
    without it takes another way.
    """

    def __init__(self, penalty: float = 0.0) -> None:
        self.factor = penalty

    def takes(self, layer: FoundLayer) -> bool:
        return isinstance(layer.modules[0], nn.Linear)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return _Scaler(sharing, self.factor)


class _Scaler(MethodState):
    def __init__(self, sharing: Sharing, factor: float) -> None:
        self.layers, self.factor = sharing.mine(), factor
        self.counts: dict[str, Tensor] = {name: torch.zeros(()) for name in self.layers}
        self.known: dict[str, float] = {}

    def weight(self, name: str) -> Tensor:
        return self.layers[name].modules[0].weight

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            self.counts[name] += 1
            weight = self.weight(name)
            target = bound * (1 - 0.3 / float(self.counts[name]))
            norm = dense_norm(weight)
            with torch.no_grad():
                weight.mul_(min(1.0, target / norm))
            self.known[name] = min(norm, target)

    def norms(self) -> dict[str, float]:
        return dict(self.known)

    def penalty(self) -> Tensor:
        return self.factor * sum(self.weight(name).square().sum() for name in self.layers)

    def layer_states(self) -> dict[str, Any]:
        return {name: count.clone() for name, count in self.counts.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        self.counts |= {name: state.clone() for name, state in states.items()}


class Training:
    """A small network, held by the method above, whose outputs want to grow."""

    def __init__(self, **settings: Any) -> None:
        with seeded(1):
            self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.attachment: Attachment = attach(
            self.model, self.optimizer, torch.zeros(1, 6), method=Scale(), **settings
        )

    def step(self) -> dict[str, float]:
        """One step; the true norms after it."""
        (-self.model(torch.ones(4, 6)).square().sum()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {name: dense_norm(self.model[int(name)].weight) for name in ("0", "2")}


class Notes:
    """A dashboard that remembers."""

    def __init__(self) -> None:
        self.records: list[NormRecord] = []

    def write(self, record: NormRecord) -> None:
        self.records.append(record)

    @property
    def steps(self) -> list[int]:
        return [record.step for record in self.records]


class BoardNotes:
    """A writer that is no SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.histograms: list[tuple[str, list[float], int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def add_histogram(self, tag: str, values: Any, step: int) -> None:
        self.histograms.append((tag, list(values), step))


class RunNotes:
    """What a run is told."""

    def __init__(self) -> None:
        self.axes: dict[str, Any] = {}
        self.rows: list[dict[str, float]] = []

    def define_metric(self, name: str, step_metric: str | None = None, **more: Any) -> None:
        assert name not in self.axes
        self.axes[name] = step_metric

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)


def read_lines(path: Path) -> dict[tuple[int, str], float]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(int(row["step"]), row["name"]): float(row["value"]) for row in rows}
    assert len(found) == len(rows)  # nothing is there twice
    return found


# What the tests are run with: a method with a memory, and the library's own.
METHODS = (Scale, SpectralClip)


def assert_equal_weights(model: nn.Module, other: nn.Module) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def differ(model: nn.Module, other: nn.Module) -> bool:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return any(not torch.equal(mine, its) for mine, its in pairs)
