"""The whole study: all of it at the smoke scale, and the first steps at the scale of the paper."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from docs_blocks import fenced_blocks

from experiments import data as datasets
from experiments import registry
from experiments.__main__ import main
from experiments.data import Dataset
from experiments.experiment import Cell, Context
from experiments.store import Store
from experiments.training import TrainConfig
from experiments.training import run as training_run

NAMES = [
    "figure_circulant_error",
    "figure_compensation",
    "figure_concat",
    "figure_layer_norms",
    "figure_powerqr_time",
    "figure_simple_clip",
    "table_batchnorm",
    "table_dla",
    "table_rates",
    "table_resnet",
]
FIRST_STEPS = 2
STAND_INS = {"mnist": "digits", "cifar10": "synthetic"}


def test_every_figure_and_table_is_there() -> None:
    assert sorted(registry.find()) == NAMES


@pytest.mark.slow
def test_the_experiment_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    (code,) = [b.code for b in fenced_blocks(page) if "EXPERIMENT = " in b.code]
    package = tmp_path / "study_of_my_own"
    package.mkdir()
    (package / "__init__.py").write_text('"""A study of my own."""\n')
    (package / "figure_mine.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # of the workers
    results = str(tmp_path / "results")
    assert main(["run", "figure_mine", "--results", results], package=package.name) == 0
    assert main(["report", "--results", results], package=package.name) == 0
    text = (tmp_path / "results" / "index.md").read_text(encoding="utf-8")
    assert "## Mine" in text and "gouk:power_iterations=20 seed 1" in text
    assert "ResNet-18" not in text


@pytest.mark.slow
def test_the_smoke_scale_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no data folder, and its numbers decide nothing."""
    monkeypatch.delenv("SPECTRALCLIP_DATA", raising=False)
    results = tmp_path / "results"
    assert main(["run", "all", "--workers", "2", "--results", str(results)]) == 0
    store = Store(results)
    for name, experiment in registry.find().items():
        assert len(store.records(name, "smoke")) == len(experiment.cells("smoke"))
    assert main(["report", "--results", str(results)]) == 0
    page = (results / "index.html").read_text()
    text = (results / "index.md").read_text()
    for experiment in registry.find().values():
        assert experiment.title in text and experiment.title in page
    assert not re.findall(r"(?:src|href)=\"https?:", page.partition("<body")[0])
    verdicts = [
        claim.judge([r for used in (name, *one.uses) for r in store.records(used, "smoke")]).kind
        for name, one in registry.find().items()
        if name.startswith("table")
        for claim in one.claims
    ]
    assert set(verdicts) <= {"not at this scale", "not run"}
    # What is finished is never repeated.
    assert main(["run", "table_dla", "--results", str(results)]) == 0


class _Enough(Exception):
    """The first steps are done."""


def _settings(cell: Cell) -> Mapping[str, Any]:
    """Those of a training within the configuration too, as of runs that only take times."""
    return {**cell.config, **cell.config.get("trainings", [{}])[0]}


def _one_of_each_kind() -> Iterator[Cell]:
    """Of each experiment, network and data set at the paper's scale one run, of many methods."""
    for experiment in registry.find().values():
        kinds: dict[tuple[object, ...], list[Cell]] = {}
        for cell in experiment.cells("paper"):
            settings = _settings(cell)
            if settings["seed"] == 0:
                keys = ("model", "dataset", "batch_norm", "setting")
                kinds.setdefault(tuple(map(settings.get, keys)), []).append(cell)
        for index, cells in enumerate(kinds.values(), 1):
            yield cells[index % len(cells)]


def _cells(training: bool) -> list[Cell]:
    return [cell for cell in _one_of_each_kind() if ("epochs" in cell.config) == training]


def test_every_experiment_has_runs_that_are_begun() -> None:
    begun = {cell.experiment for cell in _one_of_each_kind()}
    assert begun == {name for name, one in registry.find().items() if one.cells("paper")}
    assert {"figure_circulant_error", "figure_powerqr_time"} <= begun


@pytest.mark.slow
@pytest.mark.parametrize("cell", _cells(training=True), ids=lambda cell: cell.id)
def test_the_first_steps_at_the_scale_of_the_paper(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig.of(cell.config)
    assert config.train_images is None and config.test_images is None
    assert config.width == 64 and config.epochs >= 120
    images = datasets.load(STAND_INS[config.dataset])
    monkeypatch.setattr(training_run.datasets, "load", lambda name, folder: images)
    steps = 0

    def say(share: float, words: str) -> None:
        nonlocal steps
        steps += words == "training"
        if steps == FIRST_STEPS:
            raise _Enough

    experiment = registry.find()[cell.experiment]
    context = Context(None, tmp_path, threads=1, say=say)
    torch.manual_seed(0)
    with pytest.raises(_Enough):
        experiment.run(cell.config, context)


def _as_many(dataset: Dataset, images: int = 60_000) -> Dataset:
    """The data set with its training images so often that a whole one could be taken from it."""
    times = -(-images // len(dataset.train_images))
    return replace(
        dataset,
        train_images=dataset.train_images.repeat(times, 1, 1, 1),
        train_labels=dataset.train_labels.repeat(times),
    )


@pytest.mark.slow
@pytest.mark.parametrize("cell", _cells(training=False), ids=lambda cell: cell.id)
def test_measurements_at_the_scale_of_the_paper_begin(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = datasets.needed(cell.config)
    images = {name: _as_many(datasets.load(STAND_INS[name])) for name in needed}
    monkeypatch.setattr(training_run.datasets, "load", lambda name, folder: images[name])
    words: list[str] = []

    def say(share: float, what: str) -> None:
        words.append(what)
        if len(words) == FIRST_STEPS:  # what was said first has been done
            raise _Enough

    with pytest.raises(_Enough):
        registry.find()[cell.experiment].run(cell.config, Context(None, tmp_path, say=say))
