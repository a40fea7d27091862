"""What is left to run, and how long it will take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from table_records import tiny

from experiments.experiment import Cell, Claim, Verdict
from experiments.judging.verdicts import Question, judge
from experiments.plan import Left, claim_row, left_of, rows
from experiments.store import Store


def test_runs_take_what_others_of_their_kind_took(tmp_path: Path) -> None:
    def config(size: int, seed: int) -> dict[str, object]:
        return {"label": f"{size} seed {seed}", "size": size, "seed": seed}

    configs = [config(size, seed) for size in (1, 2, 3) for seed in range(3)]
    experiment = replace(tiny(), grid=lambda scale: configs)
    store = Store(tmp_path)
    for size, seed, seconds in ((1, 0, 10.0), (1, 1, 20.0), (2, 0, 100.0)):
        cell = Cell(experiment.name, "desk", config(size, seed))
        store.save(cell, {"a": 1}, {"timing": {"total": seconds}})
    found = left_of(experiment, "desk", store)
    # One more of the first kind, two of the second; the third is not known.
    assert found == Left(experiment.name, finished=3, left=6, seconds=215.0, unknown=3)
    assert rows([found, found])[-1] == ("all", "6", "12", "0.1", "6")


def test_trainings_that_are_timed_are_of_one_kind_too(tmp_path: Path) -> None:
    def config(seed: int) -> dict[str, object]:
        return {"label": str(seed), "seed": seed, "trainings": [{"method": "gouk"}]}

    experiment = replace(tiny(), grid=lambda scale: [config(0), config(1)])
    store = Store(tmp_path)
    store.save(Cell(experiment.name, "desk", config(0)), {"a": 1}, {"seconds": 7.0})
    assert left_of(experiment, "desk", store).seconds == 7.0


def test_a_claim_is_told_with_what_its_verdict_hangs_on() -> None:
    claim = Claim("c", "w", "r", lambda records: Verdict("not run", "nothing"))
    assert claim_row(claim, claim.judge(())) == ("c", "not run", *5 * "–")
    weak = Question("a against b", [0.01, 0.02, 0.05])
    needed = f"{weak.seeds_to_tell():.0f}"
    expected = ("c", "not at this scale", "a against b", "+2.7", "2.1", "3", needed)
    assert claim_row(claim, judge([weak])) == expected
    alone = judge([Question("a against b", [0.01])])
    assert claim_row(claim, alone)[-4:] == ("+1.0", "–", "1", "–")
