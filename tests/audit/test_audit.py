"""The numbers of an audit, against dense matrices in float64 and torch's own spectral_norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from audit_cases import audited, dense, norm
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from zoo import BY_NAME

from spectralclip._audit import audit, examine
from spectralclip._bounds import norm_bounds_and_vector
from spectralclip._lipschitz.certified import certified_radius
from spectralclip._models import survey


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BY_NAME)
def test_intervals_hold_the_dense_truth(name: str) -> None:
    model, found = audited(name)
    assert found.layers and found.layers[0].role == "layer"
    for layer in found.layers:
        truth = norm(dense(model, layer))
        assert layer.norm.lower <= truth <= layer.norm.upper, layer.name
        assert layer.norm.width <= 0.01 and layer.norm.failure in (0.0, 1e-6), layer.name


def test_deterministic_bounds_rest_on_no_probability() -> None:
    specimen = BY_NAME["resnet"]
    model = specimen.model()
    found = audit(model, specimen.inputs(), deterministic=True, lipschitz=False)
    for layer in found.layers:
        assert layer.norm.failure == 0 and layer.norm.kind != "probabilistic"
        assert norm(dense(model, layer)) in layer.norm


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        (row,) = audit(nn.Linear(3, 3), torch.zeros(1, 3), lipschitz=False).layers
    assert row.norm.kind == "exact"


def test_weights_without_values() -> None:
    with pytest.raises(ValueError, match=r"'weight' of Linear is on the meta device"):
        audit(nn.Linear(3, 3, device="meta"), torch.zeros(1, 3, device="meta"))
    with pytest.raises(ValueError, match="no size yet"):
        audit(nn.LazyLinear(3), torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be"),
        ({"k": True}, "k must be"),
        ({"tol": 0.0}, "tol must be"),
        ({"failure": 1.0}, "failure must be"),
        ({"workers": 0}, "workers must be"),
        ({"workers": "ranks"}, "not initialized"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(nn.Linear(2, 2), torch.zeros(1, 2), **arguments)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return factor * self.layer(x) * mask


def test_an_audit_takes_positional_and_keyword_inputs() -> None:
    model, x, mask = Masked(), torch.randn(2, 4), torch.ones(2, 3)
    plain = audit(model, {"x": x, "mask": mask, "factor": 2.0})
    for args in ((x,), x, [x]):
        found = audit(model, args, {"mask": mask, "factor": 2.0})
        assert found.inputs == ((2, 4), (2, 3)) and found.layers == plain.layers
        assert found.lipschitz == plain.lipschitz
    assert audit(model, (), {"x": x, "mask": mask}).layers == plain.layers


def test_inputs_that_are_no_such_things_are_refused() -> None:
    model, x = Masked(), torch.randn(2, 4)
    with pytest.raises(TypeError, match=r"example_kwargs must be a dictionary.*got Tensor"):
        audit(model, x, torch.ones(2, 3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="given twice"):
        audit(model, {"x": x}, {"mask": torch.ones(2, 3)})
    with pytest.raises(TypeError, match="example_inputs must be"):
        audit(model, (), {"factor": 2.0})


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
