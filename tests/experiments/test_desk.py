"""The scale between laptop and paper: its grids, its learning rates, and what claims rest on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from table_records import GAINS, TABLES, made_up

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

from experiments import figure_compensation, figure_concat, registry, table_rates
from experiments.accuracy import grid as accuracy_grid
from experiments.accuracy.claims import Column, beats, values
from experiments.accuracy.grid import BOUNDED, CLAMPED, CONCAT, METHODS, PAPER, PAPERS
from experiments.accuracy.rates import FILE, rate_key
from experiments.experiment import Record, Table
from experiments.figure_layer_norms.measured import norms
from experiments.judging.verdicts import judge
from experiments.measuring import stopwatch
from experiments.measuring.stopwatch import Stopwatch
from experiments.store import Store
from experiments.table_rates.choose import chosen
from experiments.trained import resnet
from experiments.training import TrainConfig

RESULTS = Path(__file__).parents[2] / "results"
NO_BN = Column("resnet18", "cifar10", batch_norm=False)


@pytest.fixture
def rated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all rates were chosen."""
    monkeypatch.setattr(accuracy_grid, "chosen_rate", lambda key: 0.0123)


def test_runs_wait_for_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    only = rate_key("cifar10", True, PAPER, "gouk")
    monkeypatch.setattr(accuracy_grid, "chosen_rate", {only: 0.7}.get)
    found = TABLES["table_resnet"].grid("desk")
    assert {(one["method"], one["dataset"], one["lr"]) for one in found} == {
        ("gouk", "cifar10", 0.7)
    }
    clamped = TABLES["table_batchnorm"].grid("desk")
    assert {(one["method"], one["lr"]) for one in clamped} == {("gouk+bn", 0.7)}


@pytest.mark.usefixtures("rated")
@pytest.mark.parametrize("name", list(TABLES))
def test_every_run_can_be_done(name: str) -> None:
    cells = registry.cells([name], "desk")
    own = [cell for cell in cells if cell.experiment == name]
    assert own and len({cell.id for cell in own}) == len(own)
    for cell in own:
        for one in cell.config.get("trainings", [cell.config]):
            config = TrainConfig.of(one)
            assert (config.lr, config.schedule) == (0.0123, "one_cycle")
            assert config.train_images is None or "trainings" in cell.config


@pytest.mark.usefixtures("rated")
def test_cells_that_claims_rest_on_have_three_seeds() -> None:
    counts: Counter[Any] = Counter()
    for name in ("table_resnet", "table_dla", "table_batchnorm"):
        for config in TABLES[name].grid("desk"):
            key = (config["model"], config["dataset"], config["batch_norm"])
            recipe = config.get("recipe", PAPER)
            counts[(*key, recipe, config.get("row") or config["method"])] += 1
    for dataset in ("mnist", "cifar10"):
        for method in METHODS:
            assert counts["resnet18", dataset, True, PAPER, method] == 3
            assert counts["resnet18", dataset, False, BOUNDED, method] == 3
            assert counts["resnet18", dataset, False, PAPER, method] == 1
        for method in PAPERS:
            assert counts["dla", dataset, True, PAPER, method] == 3
            assert counts["dla", dataset, False, PAPER, method] == 3
    for model in ("resnet18", "dla"):
        for method in CLAMPED:
            assert counts[model, "cifar10", True, BOUNDED, method] == 3
        assert counts[model, "cifar10", True, PAPER, f"{CONCAT}:concat_every=100"] == 3
    assert counts["resnet18", "cifar10", False, BOUNDED, "spectral_clip_network"] == 3
    assert counts["resnet18", "cifar10", True, BOUNDED, "spectral_clip_center"] == 1
    assert counts["resnet18", "cifar10", True, BOUNDED, "none"] == 1


@pytest.mark.usefixtures("rated")
def test_claims_without_batch_norm_rest_on_the_recipe_for_bounds(tmp_path: Path) -> None:
    store, table = Store(tmp_path), TABLES["table_resnet"]
    for cell in table.cells("desk"):
        is_paper = not cell.config["batch_norm"] and "recipe" not in cell.config
        result, run = made_up(cell.config, {"fast_clip": -0.15} if is_paper else GAINS)
        store.save(cell, result, run)
    records = store.records("table_resnet", "desk")
    by_paper = values(records, NO_BN, "fast_clip", "test_accuracy")
    by_bounds = values(records, NO_BN.learning(records), "fast_clip", "test_accuracy")
    assert list(by_paper) == [0] and sorted(by_bounds) == [0, 1, 2]
    assert by_bounds[0] > by_paper[0] + 0.2
    first = table.claims[0].judge(records)
    assert first.kind == "reproduced", first.reason
    captions = [one.caption for one in table.section(records).blocks if isinstance(one, Table)]
    assert len(captions) == 6  # three accuracies by either recipe


@pytest.mark.usefixtures("rated")
def test_claims_on_clipped_batch_norms_rest_on_the_recipe_for_bounds(tmp_path: Path) -> None:
    store, table = Store(tmp_path), TABLES["table_batchnorm"]
    for cell in registry.cells(["table_batchnorm"], "desk"):
        at_chance = cell.config["method"].endswith("+bn") and "recipe" not in cell.config
        result, run = made_up(cell.config, GAINS)
        chance = dict.fromkeys(("test_accuracy", "pgd_accuracy", "cw_accuracy"), 0.1)
        store.save(cell, result | (chance if at_chance else {}), run)
    records = [one for name in (*table.uses, table.name) for one in store.records(name, "desk")]
    column = Column("resnet18", "cifar10")
    assert set(values(records, column, "gouk+bn", "test_accuracy").values()) == {0.1}
    assert not values(records, column, "gouk+bn", "pgd_accuracy")
    assert len(values(records, column.learning(records), "gouk+bn", "pgd_accuracy")) == 3
    assert "not run" not in [claim.judge(records).kind for claim in table.claims]
    assert len([one for one in table.section(records).blocks if isinstance(one, Table)]) == 4
    assert len(table.findings(records)) == 1


def test_a_network_at_chance_is_no_robust_one() -> None:
    def records(method: str, accuracy: float, pgd: float) -> list[Record]:
        config = {"model": "dla", "dataset": "cifar10", "batch_norm": True, "method": method}
        result = {"test_accuracy": accuracy, "pgd_accuracy": pgd}
        return [
            Record("table_dla", f"{method} {seed}", "desk", {**config, "seed": seed}, result, {})
            for seed in range(3)
        ]

    column = Column("dla", "cifar10")
    found = [*records("none", 0.8, 0.01), *records("fast_clip", 0.1, 0.1)]
    questions = beats(found, [column], ["pgd_accuracy"], "fast_clip", ["none"])
    assert judge(questions).kind == "not at this scale"
    assert "have not learned" in judge(questions).reason
    learned = [*records("none", 0.8, 0.01), *records("fast_clip", 0.6, 0.1)]
    questions = beats(learned, [column], ["pgd_accuracy"], "fast_clip", ["none"])
    assert judge(questions).kind == "reproduced"
    missing = beats(found, [column], ["pgd_accuracy"], "fast_clip", ["gouk"])
    assert judge(missing).kind == "not run"


def test_networks_at_chance_do_not_make_the_others_look_steady() -> None:
    def records(method: str, *accuracies: float) -> list[Record]:
        config = {"model": "dla", "dataset": "cifar10", "batch_norm": True, "method": method}
        return [
            Record("x", f"{method} {seed}", "desk", {**config, "seed": seed}, result, {})
            for seed, result in enumerate({"test_accuracy": one} for one in accuracies)
        ]

    column = Column("dla", "cifar10")
    learned = [*records("none", 0.7, 0.72, 0.71), *records("fast_clip", 0.73, 0.72, 0.75)]
    at_chance = [one for name in ("gouk", "delattre") for one in records(name, 0.1, 0.1, 0.1)]
    (alone,) = beats(learned, [column], ["test_accuracy"], "fast_clip", ["none"])
    (beside,) = beats([*learned, *at_chance], [column], ["test_accuracy"], "fast_clip", ["none"])
    assert alone.interval() == beside.interval()
    assert alone.shared is not None and alone.shared.freedom == 2


@pytest.mark.usefixtures("rated")
def test_the_first_seed_of_everything_comes_first() -> None:
    seeds = [cell.config.get("seed", 0) for cell in registry.cells(["all"], "desk")]
    assert seeds == sorted(seeds) and len(set(seeds)) > 3


@pytest.mark.usefixtures("rated")
def test_attacks_on_cifar_are_as_strong_in_pixels_as_the_papers_on_normalized_images() -> None:
    by_dataset = {
        config["dataset"]: config["attacks"]
        for config in TABLES["table_resnet"].grid("desk")
        if config["attacks"]
    }
    assert by_dataset["cifar10"]["pgd"]["eps"] == 0.02 / 4
    assert by_dataset["cifar10"]["cw"]["initial_const"] == 0.02 / 16
    assert by_dataset["mnist"]["pgd"]["eps"] == by_dataset["mnist"]["cw"]["initial_const"] == 0.1


@pytest.mark.usefixtures("rated")
def test_figures_share_the_trainings_of_the_tables() -> None:
    for scale in ("desk", "paper"):
        assert figure_concat.EXPERIMENT.grid(scale) == []
        cells = registry.cells(["figure_concat"], scale)
        records = [Record(c.experiment, c.id, scale, c.config, {"x": 1}, {}) for c in cells]
        for method in resnet.METHODS:
            found = resnet.of(records, method)
            datasets = {record.config["dataset"] for record in found}
            seeds = 5 if scale == "paper" else 1 if method == resnet.OURS else 3
            assert datasets == {"cifar10"} and len(found) == seeds
        assert figure_compensation.EXPERIMENT.used(scale) == ("table_resnet",)


def test_norms_of_layers_leave_batch_norms_and_compositions_out() -> None:
    found = {"conv1": 1.0, "bn1": 5.0, "conv1+bn1": 3.0, "head": 0.5}
    record = Record("table_resnet", "x", "desk", {}, {"norms": found}, {})
    assert norms(record) == {"conv1": 1.0, "head": 0.5}


def test_rates_are_searched_for_all_that_is_trained() -> None:
    wanted = set()

    def noted(key: str) -> float:
        wanted.add(key)
        return 0.1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accuracy_grid, "chosen_rate", noted)
        for name in TABLES:
            TABLES[name].grid("desk")
    searched = [config["search"] for config in table_rates.EXPERIMENT.grid("desk")]
    assert set(searched) == wanted
    assert set(Counter(searched).values()) == {3}
    for config in table_rates.EXPERIMENT.grid("desk"):
        settings = TrainConfig.of(config)
        assert (settings.epochs, settings.held_out, settings.attacks) == (1, 5000, None)
        assert settings.seed not in range(10)


def searched(accuracies: dict[str, list[float | None]]) -> list[Record]:
    """Records of searches; None is a training that diverged."""
    found, left = [], {key: list(own) for key, own in accuracies.items()}
    for config in sorted(table_rates.EXPERIMENT.grid("desk"), key=lambda one: one["lr"]):
        if left.get(config["search"]):
            value = left[config["search"]].pop(0)
            result = {"diverged": "nan"} if value is None else {"test_accuracy": value}
            found.append(Record("table_rates", config["label"], "desk", config, result, {}))
    return found


def test_the_highest_rate_that_is_as_good_as_the_best_is_taken() -> None:
    gouk, miyato, few = (rate_key("cifar10", True, PAPER, m) for m in ("gouk", "miyato", "none"))
    # 5,000 images tell a half from 0.49, and no better.
    records = searched({gouk: [0.45, 0.5, None], miyato: [0.5, 0.488, 0.492], few: [0.1, 0.2]})
    assert chosen(records) == {gouk: 0.1, miyato: 0.2}
    records = searched({gouk: [0.5, 0.488, 0.1], miyato: [None, None, None]})
    assert chosen(records)[gouk] == 0.05
    assert table_rates.EXPERIMENT.section(records).blocks


def test_the_rates_in_use_are_those_that_were_found() -> None:
    records = Store(RESULTS).records("table_rates", "desk")
    assert json.loads(FILE.read_text()) == chosen(records)


def test_the_time_of_several_calls_is_their_median(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(stopwatch.time, "process_time", lambda: 0.5 * now[0])
    durations = iter([5.0, 1.0, 2.0])

    def work() -> float:
        now[0] += next(durations)
        return now[0]

    watch = Stopwatch()
    assert watch.time("x", work, repeats=3) == 8.0
    assert watch.seconds == {"x": 2.0} and watch.shares == {"x": 0.5}
