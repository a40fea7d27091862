"""The demo: what it writes, prints and refuses."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spectralclip import Audit, AuditComparison
from spectralclip.demo import tour as demo
from spectralclip.demo.network import RECIPES

KEYS = ("unclipped", "layers", "composition", "unclipped-tuned")
TIMES = "seconds of training"


class Ran:
    """What one quick run left behind."""

    def __init__(self, folder: Path, output: str, before: Tensor, after: Tensor) -> None:
        self.folder, self.output = folder, output
        self.random_state = before, after

    def table(self) -> dict[str, list[str]]:
        lines = self.output.splitlines()
        start = next(at for at, line in enumerate(lines) if line.startswith("clipped:"))
        rows = lines[start + 2 : start + 12]
        return {line[:27].strip(): line[27:].split() for line in rows}


def ran(folder: Path, seed: int = 0) -> Ran:
    output = io.StringIO()
    before = torch.get_rng_state()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        demo.run(folder, seed, True)
    return Ran(folder, output.getvalue(), before, torch.get_rng_state())


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("demo") / "made" / "on the way")


# the run


def test_writes_the_report(first: Ran) -> None:
    names = {f"{key}.{kind}" for key in (*KEYS, "comparison") for kind in ("json", "html")}
    assert {path.name for path in first.folder.iterdir()} == names
    audits = {key: Audit.from_json(first.folder / f"{key}.json") for key in KEYS}
    change = AuditComparison.from_json(first.folder / "comparison.json")
    assert change.before == audits["unclipped"] and change.after == audits["composition"]
    for key in (*KEYS, "comparison"):
        assert (first.folder / f"{key}.html").read_text().startswith("<!doctype html>")
    assert str(first.folder / "comparison.html") in first.output


def test_the_table_says_what_the_audits_say(first: Ran) -> None:
    table = first.table()
    for column, key in enumerate(KEYS):
        document = json.loads((first.folder / f"{key}.json").read_text())
        layers = document["layers"]
        norms = {
            "largest conv or dense norm": [x for x in layers if x["kind"] in ("Conv2d", "Linear")],
            "largest conv+BN norm": [x for x in layers if x["kind"] == "Conv2d + BatchNorm2d"],
        }
        # Ends are rounded outward: what is printed is still a bound.
        for row, among in norms.items():
            upper = max(layer["norm"]["upper"] for layer in among)
            assert 0.999999 * upper <= float(table[row][column]) <= 1.01 * upper
        lower, upper = (document["lipschitz"][end] for end in ("lower", "upper"))
        assert (
            0.99 * lower <= float(table["Lipschitz constant at least"][column]) <= 1.000001 * lower
        )
        assert (
            0.999999 * upper <= float(table["Lipschitz constant at most"][column]) <= 1.01 * upper
        )


def test_a_quick_run_draws_no_conclusions_from_what_was_hardly_learned(
    first: Ran, results: list[demo.Result]
) -> None:
    said = " ".join(first.output.split())
    assert "which certifies that" not in said and "The demo without --quick" in said
    named = {one.recipe.key: one for one in results}
    said = " ".join(demo._after(named, quick=False).split())
    assert "which certifies that 50.0% of the digits" in said and "--quick" not in said


def test_clipped_is_clipped(first: Ran) -> None:
    table = {row: [float(c.rstrip("%")) for c in cells] for row, cells in first.table().items()}
    none, layers, both, _ = table["largest conv or dense norm"]
    assert layers <= 1.001 and both <= 1.001 < none
    free, _, composed, _ = table["largest conv+BN norm"]
    assert composed <= 1.001 < free
    assert table["Lipschitz constant at most"][2] <= 1.01
    for column in range(4):
        falling = [table[row][column] for row in list(table)[:4]]
        assert falling == sorted(falling, reverse=True)


@pytest.mark.slow
def test_a_seed_gives_one_table(first: Ran, tmp_path: Path) -> None:
    mine, again = first.table(), ran(tmp_path / "again").table()
    for table in (mine, again):
        assert len(table.pop(TIMES)) == len(KEYS)
    assert again == mine
    other = demo.sheet([demo.measure(RECIPES[0], demo.QUICK, 1)]).rows
    assert {row[0]: row[1] for row in other[:-1]} != {row: one[0] for row, one in mine.items()}


def test_the_global_random_state_is_left_alone(first: Ran) -> None:
    before, after = first.random_state
    assert torch.equal(before, after)


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(demo, "measure", lambda *given: pytest.fail("the work has begun"))
    with pytest.raises(OSError, match="file"):
        demo.run(tmp_path / "file" / "below", quick=True)


# without optional packages


@pytest.fixture
def results(first: Ran) -> list[demo.Result]:
    audits = [Audit.from_json(first.folder / f"{key}.json") for key in KEYS]
    shares = 0.9, (0.8, 0.7, 0.6), 0.5
    return [
        demo.Result(one, *shares, found, 1.0) for one, found in zip(RECIPES, audits, strict=True)
    ]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither rich nor what pages are made of."""
    absent, real_import, real_find = (
        ("rich", "jinja2"),
        builtins.__import__,
        importlib.util.find_spec,
    )

    def imports(name: str, *given: Any) -> Any:
        if name.partition(".")[0] in absent:
            raise ImportError(f"No module named {name!r}", name=name)
        return real_import(name, *given)

    monkeypatch.setattr(builtins, "__import__", imports)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *given: None if name in absent else real_find(name),
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    yield


def test_pages_and_colours_are_optional(
    results: list[demo.Result], bare: None, capsys: pytest.CaptureFixture[str]
) -> None:
    files, complaint = demo.report(results)
    assert set(files) == {f"{key}.json" for key in (*KEYS, "comparison")}
    assert "jinja2" in complaint and "spectralclip[report]" in complaint
    demo._show(demo.sheet(results))
    assert "under attack, radius 0.5" in capsys.readouterr().out
