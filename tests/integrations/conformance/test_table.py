"""The table of the documentation: rendered from its numbers, in which our functions are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance import table


def test_the_page_shows_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "conformance.md"
    shown = table.PAGE.read_text()
    page.write_text(shown.replace("200 of 200", "199 of 200"))
    monkeypatch.setattr(table, "PAGE", page)
    table.render()
    assert page.read_text() == shown


def test_our_functions_are_right_on_every_layer() -> None:
    results = json.loads(table.RESULTS.read_text())
    ours = {name: one for name, one in results.items() if name in table.ours()}
    assert ours.keys() == table.ours().keys()
    for one in ours.values():
        assert one["counts"]["right"] == sum(one["layers by kind"].values()) == 200


def test_one_function_is_measured_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = table.load()[:3]
    monkeypatch.setattr(table, "load", lambda: layers)
    monkeypatch.setattr(table, "RESULTS", tmp_path / "table.json")
    (tmp_path / "table.json").write_text('{"another": {"group": "other packages"}}')
    table.measure(["torch "])
    results = json.loads((tmp_path / "table.json").read_text())
    (name,) = results.keys() - {"another"}
    assert name.startswith("torch ")
    assert sum(results[name]["counts"].values()) == 3
