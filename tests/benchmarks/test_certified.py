"""Certified accuracy at equal time: its networks, its rules, and how its runs go on."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.certified import rates
from benchmarks.certified.competitors import COMPETITORS, NONE, OURS, finish
from benchmarks.certified.recipe import QUICK, Recipe, network, schedule
from benchmarks.certified.render import render
from benchmarks.certified.steps import steps_within
from benchmarks.certified.training import Task, Training, said
from benchmarks.common import training_runs as runs
from benchmarks.common.command import seconds_of as seconds_given
from benchmarks.common.images import batches, data
from benchmarks.common.runs import ROOT
from benchmarks.common.session import Session
from benchmarks.common.training_runs import Found, run_all
from spectralclip import lipschitz_bounds

NOWHERE = Path("there is no such folder")
ORTHOGONAL = ("SOC", "Cayley", "LOT", "AOC")
OTHERS_PACKAGE = ("Cayley", "AOC")


def task(name: str, **changes: Any) -> Task:
    settings = {"seed": 0, "steps": 6, "rate": 1e-3, "recipe": QUICK, "images": "synthetic"}
    return Task(name, **{**settings, **changes})


def training(name: str) -> Training:
    if name in OTHERS_PACKAGE:
        pytest.importorskip("orthogonium")
    dataset = data("synthetic", NOWHERE)
    return Training(task(name), dataset, (dataset.train_images, dataset.train_labels))


def largest_slope(model: nn.Module, image: Tensor) -> float:
    """The norm of the Jacobian, by a dense decomposition in float64."""
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x[None])[0], image)
    assert isinstance(jacobian, Tensor)
    return float(torch.linalg.matrix_norm(jacobian.flatten(1).double(), 2))


# --- Networks -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPETITORS)
def test_a_trained_network_is_certified_from_above(name: str) -> None:
    run = training(name)
    for _ in range(6):
        run.step()
    finish(run.model, run.attachment)
    model = run.model.eval()
    image = data("synthetic", NOWHERE).test_images[0].float() / 255
    bound = lipschitz_bounds(model, image[None], local=False)
    assert largest_slope(model, image) <= bound.upper * (1 + 1e-5)
    assert {type(m) for m in model if list(m.parameters())} == {nn.Conv2d, nn.Linear}
    if name != NONE:
        assert bound.upper <= 1 + 1e-3
    if name in ORTHOGONAL:
        assert bound.upper >= 1 - 1e-3


def test_layers_of_others_become_plain_ones_that_do_the_same() -> None:
    run = training("AOC")
    run.step()
    model = run.model.eval()
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = model(images)
    finish(model, run.attachment)
    torch.testing.assert_close(model(images), before)


def test_the_network_is_the_one_that_the_page_speaks_of() -> None:
    model = network(Recipe(), data("synthetic", NOWHERE))
    widths = [layer.out_channels for layer in model if isinstance(layer, nn.Conv2d)]
    assert widths == [32, 32, 64, 64, 128, 128, 128]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("steps", [1, 7, 200])
def test_the_rate_rises_once_and_falls_to_zero(steps: int) -> None:
    rates = [schedule(Recipe(), steps)(step) for step in range(steps)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(1) and min(rates) > 0
    assert peak == max(0, round(0.1 * steps) - 1)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert schedule(Recipe(), steps)(steps) == 0


def test_an_epoch_has_each_image_once() -> None:
    part = torch.zeros(12, 3, 8, 8, dtype=torch.uint8), torch.arange(12)
    drawn = batches(part, 4, torch.Generator().manual_seed(0), 4)
    labels = torch.cat([next(drawn)[1] for _ in range(3)])
    assert sorted(labels.tolist()) == list(range(12))
    assert labels.tolist() != list(range(12))


def test_images_that_are_not_moved_are_mirrored() -> None:
    images = torch.arange(64 * 12, dtype=torch.uint8).reshape(64, 1, 3, 4)
    drawn, labels = next(batches((images, torch.arange(64)), 64, torch.Generator(), 0))
    found = [
        ((drawn * 255).round() == form[labels].float()).all(dim=(1, 2, 3))
        for form in (images, images.flip(3))
    ]
    assert bool((found[0] ^ found[1]).all()) and 20 < int(found[0].sum()) < 44


# --- Times --------------------------------------------------------------------------------


def test_as_many_steps_as_fit() -> None:
    rows = [{"competitor": "a", "step_seconds": 0.5}, {"competitor": "b", "step_seconds": 7.0}]
    assert steps_within({"rows": rows}, minutes=1.0) == {"a": 120, "b": 8}


@pytest.mark.parametrize(("text", "seconds"), [("150m", 9000), ("2h", 7200), ("1.5s", 1.5)])
def test_times_on_the_command_line(text: str, seconds: float) -> None:
    assert seconds_given(text) == seconds


@pytest.mark.parametrize("text", ["150", "m", "-3m", "2 h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="150m"):
        seconds_given(text)


# --- Runs ---------------------------------------------------------------------------------


def row(one: Task, certified: float, accuracy: float = 0.5) -> dict[str, Any]:
    return {
        "task": one.described(),
        "certified": {"36": certified, "72": 0.1, "108": 0.0},
        "accuracy": accuracy,
        "accuracy_before": accuracy,
        "pgd": 0.2,
        "bound": 1.0,
        "lower": 0.5,
        "product": 1.0,
        "loss": 2.0,
        "seconds": 60.0,
        "total_seconds": 100.0,
    }


def test_the_rate_with_the_most_certified_is_taken_and_accuracy_decides_between_equals() -> None:
    def at(name: str, rate: float, *found: float) -> dict[str, Any]:
        return row(task(name, rate=rate), *found)

    ours = [at(OURS, 0.1, 0.2, 0.9), at(OURS, 0.2, 0.3, 0.3), at(OURS, 0.3, 0.1, 0.3)]
    none = [at(NONE, 0.1, 0.0, 0.5), at(NONE, 0.2, 0.0, 0.6), at(NONE, 0.3, 0.0, 0.2)]
    waiting = Found([*ours, *none, at("AOL", 0.1, 0.5)], [], ["AOL, rate 0.2, seed 100"])
    assert rates.chosen(waiting) == {OURS: 0.2, NONE: 0.2}


def test_a_rate_that_does_not_learn_is_taken_only_where_none_does() -> None:
    constant, learned = row(task(OURS, rate=0.1), 0.1, 0.1), row(task(OURS, rate=0.2), 0.01, 0.4)
    assert rates.chosen(Found([learned, constant], [], [])) == {OURS: 0.2}
    assert rates.chosen(Found([constant], [], [])) == {OURS: 0.1}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The runs that were begun, one by one in this process."""

    def one_by_one(function: Callable[..., Any], tasks: Sequence[Task], _: int) -> Iterator[Any]:
        return map(function, tasks)

    monkeypatch.setattr(runs, "outcomes", one_by_one)
    return []


def went(begun: list[Task], tasks: list[Task], file: Path, **changes: Any) -> Found:
    """Runs that end at once; AOL fails."""

    def train(one: Task) -> dict[str, Any]:
        begun.append(one)
        if one.competitor == "AOL":
            raise ArithmeticError("the loss is nan")
        return row(one, 0.3)

    settings = {"only": COMPETITORS, "finished": file, "processes": 1, "said": said}
    return run_all(Session(quick=True), tasks, train, **{**settings, **changes})


def test_what_is_stored_is_not_run_again(begun: list[Task], tmp_path: Path) -> None:
    first, second = task(OURS), task(OURS, seed=1)
    file = tmp_path / "runs.jsonl"
    assert len(went(begun, [first], file).rows) == 1
    assert len(went(begun, [first, second], file).rows) == 2
    assert begun == [first, second]
    other = task(OURS, steps=7)
    assert [r["task"]["steps"] for r in went(begun, [other], file).rows] == [7]
    assert begun[2:] == [other]


def test_a_run_that_fails_is_named_and_the_others_go_on(begun: list[Task], tmp_path: Path) -> None:
    found = went(begun, [task("AOL"), task(OURS)], tmp_path / "runs.jsonl")
    assert [r["task"]["competitor"] for r in found.rows] == [OURS]
    (failed,) = found.failed
    assert "AOL" in failed["run"] and "the loss is nan" in failed["error"]


def test_no_run_is_begun_that_could_not_end(begun: list[Task], tmp_path: Path) -> None:
    tasks, file = [task(OURS), task(OURS, seed=1)], tmp_path / "runs.jsonl"
    nominal = {OURS: 60.0}
    enough = 60 * runs.SLOWER + runs.ENDING + 30
    short = went(begun, tasks, file, seconds=enough - 60, nominal=nominal)
    assert not begun and not short.rows and len(short.left) == 2
    went(begun, tasks[:1], file, seconds=enough, nominal=nominal)
    assert begun == tasks[:1]
    # The first took 100 s in all: there is time for the second after all.
    assert not went(begun, tasks, file, seconds=enough - 60, nominal=nominal).left


def test_competitors_that_were_not_asked_for_wait(begun: list[Task], tmp_path: Path) -> None:
    found = went(begun, [task(OURS), task(NONE)], tmp_path / "runs.jsonl", only=[NONE])
    assert begun == [task(NONE)]
    assert len(found.left) == 1 and OURS in found.left[0]


# --- Page ---------------------------------------------------------------------------------


def test_the_page_sorts_by_what_is_certified_and_names_what_is_missing() -> None:
    found = [row(task(OURS, seed=s), 0.30 + 0.01 * s) for s in range(3)] + [row(task("AOL"), 0.4)]
    train = {
        **{"minutes": 20.0, "seeds": [0, 1, 2], "images": "cifar10", "pgd_images": 1000},
        **{"processes": 2, "rows": found, "failed": [], "left": [], "wall_over_cpu": None},
        **{"versions": {"torch": "2"}, "machine": {"cpu": "one", "cores": 2, "threads": 1}},
    }
    page = render({"quick": False, "parts": {"train": train}})
    # Student's interval of three numbers 1 apart: 4.3027 / sqrt(3).
    assert f"| {OURS} | 3 | 6 | 31.0 ± 2.5 |" in page
    table = page[page.index("## Accuracy") :]
    assert table.index("| AOL | 1 | 6 | 40.0 |") < table.index(f"| {OURS} |")
    assert "4 of 30 runs" in page and "AOL (1 of 3)" in page and "LOT (0 of 3)" in page
    assert "Steps have not been timed yet" in page


def test_the_page_before_any_run() -> None:
    assert "No network has been trained yet" in render({"quick": False, "parts": {}})


@pytest.mark.slow
def test_a_quick_run_of_all_parts(tmp_path: Path) -> None:
    out = tmp_path / "trial.json"
    options = ["--quick", "--only", f"{NONE},{OURS}", "--anew", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.certified", *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = out.with_suffix(".md").read_text()
    assert "4 of 20 runs" in page and "## Learning rates" in page
    assert out.with_suffix(".png").stat().st_size > 1000
