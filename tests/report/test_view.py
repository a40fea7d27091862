"""What the page shows, worked out from the document."""

from __future__ import annotations

import copy

import pytest
import report_documents as documents

from spectralclip.report._view import view_of


def test_comparison_matches_rows_by_name() -> None:
    document = copy.deepcopy(documents.comparison(12))
    del document["after"]["layers"][0], document["before"]["layers"][1]
    document["after"]["layers"][1]["norm"] = document["before"]["layers"][1]["norm"]
    view = view_of(document)
    rows = {row["name"]: row for row in view["data"]["rows"]}
    assert rows["block0.conv"]["cells"][2:] == ["–", "removed"]
    assert rows["block0.bn"]["cells"][1] == "–" and rows["block0.bn"]["cells"][3] == "added"
    assert rows["block0.conv+block0.bn"]["cells"][3] == "same"
    before, after = (document[side]["layers"] for side in ("before", "after"))
    change = after[2]["norm"]["upper"] / before[2]["norm"]["upper"]
    assert before[2]["name"] == after[2]["name"] == "block1.conv"
    assert rows["block1.conv"]["keys"][3] == pytest.approx(change, rel=1e-5)


def test_layers_that_are_held_have_two_more_columns() -> None:
    document = copy.deepcopy(documents.audit(6))
    plain = view_of(document)
    document["layers"][0] |= {"max_norm": 0.5, "pressure": 0.25}
    document["layers"][1] |= {"max_norm": None, "pressure": None}
    view = view_of(document)
    labels = [column["label"] for column in view["data"]["columns"]]
    assert labels[-2:] == ["Held at", "Pressure"] and len(labels) == 7
    held, free = view["data"]["rows"][:2]
    assert held["cells"][-2:] == ["0.500", "0.250"] and held["keys"][-2:] == [0.5, 0.25]
    assert free["cells"][-2:] == ["–", "–"] and len(free["keys"]) == len(labels)
    assert len(plain["data"]["columns"]) == len(plain["data"]["rows"][0]["cells"]) == 5


def test_gain_and_spread_are_in_words() -> None:
    document = copy.deepcopy(documents.audit(6))
    assert view_of(document)["sides"][0]["scores"] is None
    for over, words in (("example", "the example inputs"), ("normal", "standard normal inputs")):
        document["scores"] = {"spread": 0.0123, "gain": None, "over": over}
        shown = view_of(document)["sides"][0]["scores"]
        assert shown == {"spread": "0.0123", "gain": "–", "over": words}
