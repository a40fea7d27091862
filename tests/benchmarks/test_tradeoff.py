"""Accuracy against accuracy under attack: its networks, its order, its figures and its page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.common.images import data
from benchmarks.common.runs import ROOT
from benchmarks.common.training_runs import Found
from benchmarks.tradeoff import rates
from benchmarks.tradeoff.cells import core_hours, order, step_seconds, tasks
from benchmarks.tradeoff.curves import NOT_RUN, Point, figures, leads, most_pgd
from benchmarks.tradeoff.recipe import QUICK, Recipe, finish, network
from benchmarks.tradeoff.render import render
from benchmarks.tradeoff.series import NORMED, PLAIN, SERIES
from benchmarks.tradeoff.training import Task, Training
from spectralclip import find_layers, lipschitz_bounds
from spectralclip.nn import CenterNorm, ScalarBatchNorm

NOWHERE = Path("there is no such folder")
OURS, NONE, NORM_NONE, CENTER = (
    "SpectralClip",
    "unclipped",
    "unclipped + BatchNorm",
    "SpectralClip + CenterNorm",
)
OTHERS = ("FastClip", "Gouk", "Parametrize")
QUICKLY = (NONE, OURS)  # trained in every run of the tests; the others are slow


def task(name: str, **changes: Any) -> Task:
    bound = SERIES[name].middle
    settings = {"bound": bound, "seed": 0, "steps": 6, "rate": 1e-3, "recipe": QUICK}
    return Task(name, **{**settings, "images": "synthetic", **changes})


def start(name: str, bound: float | None) -> nn.Module:
    return network(SERIES[name], bound, QUICK, data("synthetic", NOWHERE), seed=0).eval()


def largest_slope(model: nn.Module, image: Tensor) -> float:
    """The norm of the Jacobian, by a dense decomposition in float64."""
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x[None])[0], image)
    assert isinstance(jacobian, Tensor)
    return float(torch.linalg.matrix_norm(jacobian.flatten(1).double(), 2))


# --- Networks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.slow) for name in SERIES],
)
def test_a_trained_network_is_bounded_and_ours_is_within_what_it_is_held_at(name: str) -> None:
    dataset = data("synthetic", NOWHERE)
    one = task(name)
    run = Training(one, dataset, (dataset.train_images, dataset.train_labels))
    for _ in range(one.steps):
        run.step()
    finish(SERIES[name], run.attachment)
    model = run.model.eval()
    image = dataset.test_images[0].float() / 255
    bound = lipschitz_bounds(model, image[None], local=False)
    assert largest_slope(model, image) <= bound.upper * (1 + 1e-5)
    if SERIES[name].is_ours:
        assert one.bound is not None
        assert bound.upper <= one.bound * (1 + 1e-6)


def test_the_score_scale_is_part_of_the_constant() -> None:
    with_layers_at_one = start("Parametrize", 1.0)
    found = lipschitz_bounds(with_layers_at_one, torch.zeros(1, 3, 32, 32), local=False)
    # 100 times the largest 1 / std of a channel, and the mean over 4 x 4 pixels is 1/4.
    deviations = data("synthetic", NOWHERE).std
    assert found.upper == pytest.approx(100 / min(deviations) / 4, rel=0.01)
    at_300 = lipschitz_bounds(start(OURS, 300.0), torch.zeros(1, 3, 32, 32), local=False)
    assert at_300.upper == pytest.approx(300, rel=0.01)


@pytest.mark.parametrize("name", [n for n in SERIES if SERIES[n].panel == NORMED])
def test_each_series_has_the_norm_that_it_says(name: str) -> None:
    found = {type(module) for module in start(name, SERIES[name].middle).modules()}
    norms = found & {nn.BatchNorm2d, ScalarBatchNorm, CenterNorm}
    assert norms == {SERIES[name].norm}


def test_methods_of_layers_hold_all_of_them_at_the_same_bound() -> None:
    dataset = data("synthetic", NOWHERE)
    run = Training(task("FastClip"), dataset, (dataset.train_images, dataset.train_labels))
    assert run.attachment is not None
    layers = find_layers(start(NONE, None), torch.zeros(1, 3, 32, 32))
    assert len(layers) == 21
    assert run.attachment.max_norms == dict.fromkeys(layers, SERIES["FastClip"].middle)


# --- Cells --------------------------------------------------------------------------------


def test_the_first_seed_of_all_comes_first_and_every_cell_once() -> None:
    cells = order()
    number = sum(len(series.bounds) for series in SERIES.values())
    assert len(cells) == len(set(cells)) == 9 + 2 * 15 + 3 * 11 + 2
    assert {seed for *_, seed in cells[:number]} == {0}
    assert [name for name, *_ in cells[:3]] == [NONE, "unclipped + orthogonal start", OURS]
    lowest = [i for i, (name, at, seed) in enumerate(cells) if (name, at) == (OURS, 100.0) and seed]
    middle = [i for i, (name, at, seed) in enumerate(cells) if (name, at) == (OURS, 300.0) and seed]
    assert len(middle) == len(lowest) == 2 and max(middle) < min(lowest)


@pytest.mark.parametrize(
    ("name", "bound", "seeds"),
    [
        *[(NONE, None, 3), (OURS, 100.0, 3), (CENTER, 1e6, 3), ("Gouk", 0.7, 1), ("Gouk", 1.0, 3)],
        *[("Gouk", 4.0, 1), ("SpectralClip + BatchNorm", 1e4, 1)],
    ],
)
def test_three_seeds_where_a_figure_rests_on_them(
    name: str, bound: float | None, seeds: int
) -> None:
    assert [cell for cell in order() if cell[:2] == (name, bound)] == [
        (name, bound, seed) for seed in range(seeds)
    ]


def test_eight_epochs_are_6250_steps_and_series_without_a_rate_wait() -> None:
    wanted = tasks(False, 8.0, {OURS: 0.01, NONE: 0.02})
    assert {one.steps for one in wanted} == {6250}
    assert {(one.series, one.rate) for one in wanted} == {(OURS, 0.01), (NONE, 0.02)}
    assert len(wanted) == 3 * (5 + 1)


def test_the_best_rate_on_held_out_images_is_taken() -> None:
    def at(name: str, rate: float, accuracy: float) -> dict[str, Any]:
        return {"task": task(name, rate=rate).described(), "accuracy": accuracy}

    found = [at(OURS, 0.1, 0.2), at(OURS, 0.2, 0.4), at(OURS, 0.3, 0.3), at(NONE, 0.1, 0.9)]
    waiting = [task(NONE, rate=0.2).label]
    assert rates.chosen(Found(found, [], waiting)) == {OURS: 0.2}
    assert {(one.series, one.bound) for one in rates.tasks(False)} == {
        (name, series.middle) for name, series in SERIES.items()
    }


def test_times_are_those_of_the_short_runs_where_there_are_any() -> None:
    rows = [{"task": task(OURS, steps=10).described(), "cpu_seconds": s} for s in (1.0, 3.0)]
    found = step_seconds({"rows": rows}, "cpu_seconds")
    assert found[OURS] == pytest.approx(0.2)
    assert found[NONE] == SERIES[NONE].seconds
    hours = core_hours(8.0, {"rows": rows})[OURS]
    assert hours == pytest.approx(15 * (6250 * 0.2 + 45) / 3600)


# --- Figures ------------------------------------------------------------------------------


def row(
    name: str,
    held_at: float | None,
    test: float,
    pgd: float,
    *,
    seed: int = 0,
    bound: float | None = 100.0,
) -> dict[str, Any]:
    described = task(name, bound=held_at, seed=seed, recipe=Recipe()).described()
    found = {"accuracy": test / 100, "pgd": pgd / 100, "bound": bound, "lower": 2.0}
    return {"task": described, **found, "largest_norm": 1.0, "loss": 1.5}


def curve(*of: tuple[float, float]) -> list[Point]:
    return [Point(NONE, None, (row(NONE, None, test, pgd),)) for test, pgd in of]


@pytest.mark.parametrize(
    ("test", "expected"),
    [(30, 40), (50, 40), (55, 35), (60, 30), (65, 20), (70, 10), (70.1, None)],
)
def test_curves_are_straight_between_neighbours(test: float, expected: float | None) -> None:
    found = most_pgd(curve((40, 10), (50, 40), (60, 30), (70, 10)), test)
    assert found is None if expected is None else found == pytest.approx(expected)


def plain_rows() -> list[dict[str, Any]]:
    """Ours goes through (50, 40) and (66, 12); the best of the others is at (60, 20)."""
    others = [row(name, 1.5, 60, 20) for name in OTHERS]
    bare = [row(NONE, None, 67, 5), row("unclipped + orthogonal start", None, 66, 5)]
    return [*others, *bare, row(OURS, 100.0, 50, 40), row(OURS, 300.0, 58, 18)]


def answers(rows: list[dict[str, Any]]) -> list[str]:
    return [figure.answer for figure in figures(rows)]


def test_points_above_all_others_at_equal_test_accuracy() -> None:
    assert answers(plain_rows())[0] == "1 of 2 (L = 100)"
    more = [*plain_rows(), row(OURS, 3000.0, 70, 1)]
    assert answers(more)[0] == "2 of 3 (L = 100, 3000)"


def test_leads_are_taken_seed_by_seed() -> None:
    rival = [row("Gouk", 1.0, 50 + s, 20 + s, seed=s) for s in range(2)]
    rival += [row("Gouk", 1.5, 60 + s, 10 + s, seed=s) for s in range(2)]
    own = Point(OURS, 300.0, tuple(row(OURS, 300.0, 55, 30, seed=s) for s in range(3)))
    # Straight lines through (50, 20) and (60, 10), and through (51, 21) and (61, 11).
    assert leads(own, rival, "Gouk") == pytest.approx([0.15, 0.13])
    above = Point(OURS, 300.0, (row(OURS, 300.0, 62, 30),))
    assert leads(above, rival, "Gouk") == []


def test_a_point_near_the_unclipped_network() -> None:
    assert answers(plain_rows())[1].startswith("no: no point meets")
    more = [*plain_rows(), row(OURS, 1000.0, 65.5, 12)]
    assert answers(more)[1].startswith(f"yes: {OURS} at 1000: test 65.5, PGD 12.0")
    less = [*plain_rows(), row(OURS, 1000.0, 65.5, 9)]
    assert answers(less)[1].startswith("no: ")


def test_accuracy_and_attack_at_once() -> None:
    assert answers(plain_rows())[3].startswith("no: ")
    assert answers([*plain_rows(), row(CENTER, 1e3, 56, 36)])[3].startswith(f"yes: {CENTER}")


def test_a_small_constant_with_a_norm() -> None:
    bare = row(NORM_NONE, None, 82, 2, bound=1e7)
    small, large = row(CENTER, 1e4, 76, 9, bound=1e4), row(CENTER, 1e6, 80, 9, bound=9e5)
    assert answers([bare, large])[4].startswith("no: no point")
    assert answers([bare, large, small])[4].startswith(f"yes: {CENTER} at 10000")
    unbounded = row(NORM_NONE, None, 82, 2, bound=None)
    assert f"{CENTER} at 1e+06" in answers([unbounded, large, small])[4]


def test_figures_without_cells_are_not_run_yet() -> None:
    assert answers([]) == [NOT_RUN] * 5
    assert answers([row(OURS, 100.0, 50, 40)])[:2] == [NOT_RUN] * 2
    assert not any(figure.is_final for figure in figures(plain_rows()))


def test_figures_are_final_when_all_cells_are_there() -> None:
    rows = [row(name, bound, 60, 20, seed=seed) for name, bound, seed in order()]
    assert all(figure.is_final for figure in figures(rows))
    assert not figures(rows[:-1])[2].is_final


# --- Page ---------------------------------------------------------------------------------


def test_the_page_has_intervals_and_names_what_is_missing() -> None:
    rows = [row(OURS, 300.0, 60 + s, 30, seed=s) for s in range(3)] + [row(NONE, None, 67, 5)]
    train = {
        **{"epochs": 8.0, "steps": 6250, "images": "cifar10", "pgd_images": 500, "processes": 2},
        **{"rows": rows, "failed": [], "left": [], "wall_over_cpu": None},
        **{"versions": {"torch": "2"}, "machine": {"cpu": "one", "cores": 2, "threads": 1}},
    }
    page = render({"quick": False, "parts": {"train": train}})
    # Student's interval of three numbers 1 apart: 4.3027 / sqrt(3).
    assert f"| {OURS} | 300 | 3 | 61.0 ± 2.5 | 30.0 ± 0.0 | 100 |" in page
    assert "| 300 | 61.0 | +25.0 |" in page.split("## How far above")[1]
    assert "4 of 74 cells" in page and f"{OURS} (3 of 15)" in page and "Gouk (0 of 11)" in page
    assert NOT_RUN in page and "**(so far)**" in page


def test_the_page_before_any_run() -> None:
    page = render({"quick": False, "parts": {}})
    assert "No network has been trained yet" in page and page.count(NOT_RUN) == 5
    assert f"**{sum(core_hours(8.0).values()):.1f} hours**" in page


@pytest.mark.slow
def test_a_quick_run_of_all_parts(tmp_path: Path) -> None:
    out = tmp_path / "trial.json"
    options = ["--quick", "--only", f"{NONE},{OURS}", "--anew", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tradeoff", *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = out.with_suffix(".md").read_text()
    assert "6 of 74 cells" in page and "## Learning rates" in page
    assert out.with_suffix(".png").stat().st_size > 1000
    assert {series.panel for series in SERIES.values()} == {PLAIN, NORMED}
