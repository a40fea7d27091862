"""What an audit leaves alone, and the forms that its record takes."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from audit_cases import audited, dense, norm
from torch import nn
from zoo import BY_NAME, ZOO

from spectralclip import clip_model_
from spectralclip._audit import audit


def test_largest() -> None:
    _, found = audited("resnet")
    for role in (None, "layer", "chain"):
        among = [layer for layer in found.layers if role in (None, layer.role)]
        assert found.largest(role).norm.upper == max(layer.norm.upper for layer in among)
    empty = audit(nn.ReLU(), torch.zeros(1, 2), lipschitz=False)
    with pytest.raises(ValueError, match="has no chain"):
        empty.largest("chain")
    with pytest.raises(ValueError, match="lipschitz=True"):
        empty.certified_radius(torch.zeros(1, 2))


def test_texts_name_every_layer_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = audited("resnet")
    for module in ("rich.table", "rich.text"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    text = str(found)
    for layer in found.layers:
        assert f"\n{layer.name} " in text and f"{layer.norm.lower:.4g}" in text
    with pytest.raises(ImportError, match=r"spectralclip\[cli\]"):
        found.table()


def test_table_shows_names_as_they_stand() -> None:
    from rich.console import Console

    model = nn.ModuleDict({"[bold]": nn.Linear(2, 2)})
    model.forward = lambda x: model["[bold]"](x)  # type: ignore[method-assign]
    console = Console(width=150, record=True, file=io.StringIO())
    found = audit(model, torch.zeros(1, 2), lipschitz=False)
    console.print(found.table())
    assert "[bold]" in console.export_text()


def test_compare() -> None:
    specimen = BY_NAME["resnet"]
    model, before = audited("resnet")
    clipped = copy.deepcopy(model)
    clip_model_(clipped, specimen.inputs(), 1.0, progress=False)
    after = audit(clipped, specimen.inputs(), lipschitz=False)
    comparison = before.compare(after)
    rows = {row.name: row for row in comparison.rows}
    assert list(rows) == [layer.name for layer in before.layers]
    chain = rows["conv1+bn1"]
    assert chain.before == before["conv1+bn1"].norm and chain.after == after["conv1+bn1"].norm
    ratio = norm(dense(clipped, after["conv1+bn1"])) / norm(dense(model, before["conv1+bn1"]))
    assert chain.change == pytest.approx(ratio - 1, abs=0.01)
    assert rows["bn1"].change == 0
    other = before.compare(audited("mlp")[1])
    gone = {row.name: row for row in other.rows}
    assert gone["conv1"].after is None and gone["conv1"].change is None
    assert gone["1"].before is None and "-" in str(other)
    with pytest.raises(TypeError, match="another Audit"):
        before.compare(None)  # type: ignore[arg-type]


def test_records_pickle() -> None:
    _, found = audited("resnet")
    assert pickle.loads(pickle.dumps(found)) == found


def test_zoo_is_whole() -> None:
    assert len(ZOO) == len(BY_NAME) == 8
