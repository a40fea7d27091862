"""Experiments found by name, and refused where they are not as they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import registry


def test_the_papers_figures_and_tables_are_all_there() -> None:
    assert registry.names() == [
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


EXPERIMENT = """
from fake_study.adding import config, experiment
EXPERIMENT = experiment({})
"""


CHECKED = """
from dataclasses import replace
from experiments.table_resnet import EXPERIMENT as KNOWN
wrong = {**KNOWN.grid("paper")[0], "dataset": "nothing like it"}
EXPERIMENT = replace(KNOWN, name="figure_odd", grid=lambda scale: [wrong])
"""


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1", r"figure_odd: expected an Experiment named EXPERIMENT, got none"),
        (EXPERIMENT.format("'figure_even', lambda scale: []"), "name of its file, got 'figure_ev"),
        (EXPERIMENT.format("'figure_odd', lambda scale: [], ['x']"), "uses x: no such"),
        (
            EXPERIMENT.format("'figure_odd', lambda scale: [config('a'), config('a')]"),
            "figure_odd at scale paper: two cells are the same, a-",
        ),
        (
            EXPERIMENT.format("'figure_odd', lambda scale: [config('a', at={1})]"),
            "figure_odd at scale paper: a configuration that JSON cannot hold: .*set",
        ),
        (CHECKED, "figure_odd at scale paper: a run that cannot be done: .*'nothing like it'"),
    ],
)
def test_an_experiment_that_is_not_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, complaint: str
) -> None:
    package = f"odd_study_{abs(hash(source))}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "figure_odd.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(registry.Unknown, match=complaint):
        registry.cells(["all"], "paper", package)


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(registry.Unknown, match="got 'no_such_study'"):
        registry.names("no_such_study")
