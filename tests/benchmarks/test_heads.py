"""Attention heads held in a language model, as the training benchmark measures it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.common.session import Session
from benchmarks.training.figures import figures
from benchmarks.training.heads import QUICK, LanguageModel, measure, true_norms
from benchmarks.training.models import seeded
from benchmarks.training.render import _heads
from spectralclip import attention_heads


@pytest.fixture(scope="module")
def part() -> dict[str, Any]:
    return measure(Session(quick=True))


def test_all_products_are_held_and_their_work_is_timed(part: dict[str, Any]) -> None:
    free, logits, both = part["rows"]
    assert [row["products"] for row in part["rows"]] == [0, 4, 8]
    assert free["norm"] is None
    assert 0.9 < logits["norm"] <= 1.02 and 0.9 < both["norm"] <= 1.02
    assert 0 < free["after_seconds"] < logits["after_seconds"]


def test_figures_and_page_are_made_of_the_rows(part: dict[str, Any]) -> None:
    rows = [row | {"overhead": 0.06, "loss": 2.0} for row in part["rows"]]
    found = {one["figure"]: one for one in figures({"parts": {"heads": {"rows": rows}}})}
    assert not found["heads: overhead, %, largest"]["met"]
    assert found["heads: loss above that of the free copy, largest"]["measured"] == 0
    assert "| logits and values | 8 |" in _heads(part)


def test_true_norms_are_those_of_the_heads() -> None:
    model = seeded(lambda: LanguageModel(10, QUICK), 0)
    found = attention_heads(model, torch.arange(5)[None])
    norms = true_norms(model)
    assert norms[".logit"] == pytest.approx([head.logit.upper for head in found.values()], rel=1e-6)
    # The oracle leaves out the offset of the layer behind a head, as a head does.
    assert norms[".value"] == pytest.approx([head.value.upper for head in found.values()], rel=1e-6)
