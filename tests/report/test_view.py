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
