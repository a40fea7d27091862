"""What an audit leaves alone, and the forms that its record takes."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from audit_cases import audited, dense, norm
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from zoo import BY_NAME, ZOO

from spectralclip import clip_model_
from spectralclip._audit import audit, examine
from spectralclip._bounds import norm_bounds_and_vector
from spectralclip._lipschitz.result import certified_radius
from spectralclip._models import survey

# --- Promises --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet", "gpt2"])
def test_the_model_is_left_as_it_was(name: str) -> None:
    specimen = BY_NAME[name]
    model = specimen.model().train()
    next(model.modules()).register_forward_hook(lambda module, args, output: None)
    first = next(p for p in model.parameters() if p.ndim > 1)
    first.grad = torch.ones_like(first)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    places = {key: value.data_ptr() for key, value in model.state_dict().items()}
    tables = {key: dict(vars(module)) for key, module in model.named_modules()}
    random = torch.random.get_rng_state()
    audit(model, specimen.inputs(), lipschitz=False)
    assert torch.equal(random, torch.random.get_rng_state())
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]) and value.data_ptr() == places[key], key
    for key, module in model.named_modules():
        assert vars(module) == tables[key], key
    assert first.grad is not None and bool((first.grad == 1).all())


def test_a_parametrized_layer_counts_as_in_evaluation_and_keeps_its_buffers() -> None:
    layer = spectral_norm(nn.Conv2d(2, 3, 3, padding=1), n_power_iterations=1).train()
    buffers = {key: value.clone() for key, value in layer.named_buffers()}
    row = audit(layer, torch.zeros(1, 2, 5, 5), lipschitz=False)[""]
    for key, value in layer.named_buffers():
        assert torch.equal(value, buffers[key]), key
    truth = norm(layer.eval().weight.detach().double().flatten(1))  # training would move it on
    assert row.kind == "Conv2d" and row.reshaped_norm == pytest.approx(truth, rel=1e-6)


class Counting(nn.Module):
    """Writes down what it did, even when only its weight is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[Any] | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen = [x]
        return x @ self.weight.T

    @property
    def weight(self) -> Tensor:
        self.looked_at = True
        return self.matrix


def test_layers_that_write_things_down_do_so_elsewhere() -> None:
    layer = Counting()
    before = dict(vars(layer))
    (row,) = audit(layer, torch.zeros(1, 3), lipschitz=False).layers
    assert float(layer.calls) == 0 and layer.seen is None and vars(layer) == before
    assert norm(layer.matrix.detach().double()) in row.norm
    assert row.reshaped_norm == pytest.approx(row.norm.upper, rel=1e-4)


def test_same_seed_same_audit() -> None:
    specimen = BY_NAME["resnet"]
    model, found = audited("resnet")
    again = audit(model, specimen.inputs(), lipschitz=False)
    assert again.layers == found.layers
    other = audit(model, specimen.inputs(), lipschitz=False, seed=5)
    assert other.layers != found.layers and other.settings["seed"] == 5


def test_progress_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    specimen = BY_NAME["vgg"]
    audit(
        specimen.model(),
        specimen.inputs(),
        lipschitz=False,
        progress=lambda *step: told.append(step),
    )
    assert [step[0] for step in told] == list(range(1, len(told) + 1))
    assert {step[1] for step in told} == {len(told)}
    assert told[0][2] == "0" and told[2][2] == "0+1"


def test_progress_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    audit(nn.Linear(2, 2), torch.zeros(1, 2), lipschitz=False, progress=True)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == "audit 1/1 the model itself\n"


def test_the_network_shares_the_norms_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    specimen = BY_NAME["resnet"]
    model, found = audited("resnet")
    asked: list[Any] = []

    def counted(layer: Any, *args: Any) -> Any:
        parts = layer if isinstance(layer, list) else [layer]
        asked.extend([parts] if set(parts) <= set(model.modules()) else [])
        return norm_bounds_and_vector(layer, *args)

    monkeypatch.setattr(examine, "norm_bounds_and_vector", counted)
    audit(model, specimen.inputs(), lipschitz=False)
    alone = len(asked)
    whole = audit(model, specimen.inputs())
    assert len(asked) == 2 * alone  # none for the network
    bound = whole.lipschitz
    assert bound is not None and bound.lower <= bound.upper <= bound.product
    factors = {step.where: step.factor for step in bound.steps}
    assert factors["conv1+bn1"] == found["conv1+bn1"].norm.upper
    used = [found[name].norm.failure for name in factors if name in {x.name for x in found.layers}]
    assert bound.failure >= sum(used) > 0
    logits = model(specimen.inputs())
    assert torch.equal(whole.certified_radius(logits), certified_radius(logits, bound.upper))


def test_the_model_is_surveyed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    surveys: list[Any] = []
    original = survey.watch
    monkeypatch.setattr(survey, "watch", lambda *args: surveys.append(args) or original(*args))
    audit(model, torch.zeros(1, 2, 6, 6))
    assert len(surveys) == 1


# --- The record ------------------------------------------------------------------------------


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
