"""Attention heads in an audit: the table, the document and the page."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema
import pytest
import torch
from seeds import seeded
from torch import nn

from spectralclip import Audit, HeadAudit, attention_heads, audit
from spectralclip._audit.heads import heads_text

X = torch.zeros(1, 5, 8)


@pytest.fixture(scope="module")
def found() -> Audit:
    return audit(encoder(), X, k=2, lipschitz=False)


def encoder() -> nn.Module:
    with seeded(0):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for parameter in model.layers[1].parameters():  # which is a copy of the first
            nn.init.normal_(parameter)
        return model


def test_they_are_those_of_attention_heads(found: Audit) -> None:
    heads = attention_heads(encoder(), X)
    assert [head.name for head in found.heads] == list(heads)
    for head in found.heads:
        own = heads[head.name]
        assert (head.logit, head.value, head.layer) == (own.logit, own.value, own.layer)


def test_the_table_names_the_largest(found: Audit) -> None:
    def largest(about: str) -> HeadAudit:
        return max(found.heads, key=lambda head: getattr(head, about).upper)

    logit, value = map(largest, ("logit", "value"))
    assert logit.logit is not None
    line = next(one for one in str(found).splitlines() if "attention heads" in one)
    assert line.startswith("4 attention heads, largest logit norm ")
    assert f"{logit.logit.upper:.4g} at {logit.name}" in line and value.name in line
    assert heads_text(()) == "" and "attention heads" not in str(audit(nn.Linear(2, 2), X[..., :2]))


def test_they_go_through_json_and_fit_the_schema(found: Audit) -> None:
    schema = json.loads((files("spectralclip.report") / "audit.schema.json").read_text("utf-8"))
    document = json.loads(found.to_json())
    jsonschema.Draft202012Validator(schema).validate(document)
    assert Audit.from_json(document) == found and len(document["heads"]) == 4
    del document["heads"]  # as of a version that did not know them
    jsonschema.Draft202012Validator(schema).validate(document)
    assert Audit.from_json(document).heads == ()


def test_the_page_shows_a_grid_of_layers_and_heads(found: Audit) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    page = found.to_html()
    assert page.count('<table class="heads">') == 2
    assert page.count("--share: 1.000") == 2
    assert "layers.1.self_attn" in page and "the product of the query and key matrices" in page
    both = found.compare(found).to_html()
    assert both.count('<table class="heads">') == 4
    other = audit(nn.Linear(2, 2), torch.zeros(1, 2)).to_html()
    assert '<table class="heads">' not in other
