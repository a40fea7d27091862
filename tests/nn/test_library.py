"""The norms of this room as the rest of the library sees them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spectralclip as sc
from oracle import dense_matrix, dense_norm
from spectralclip.methods import ClipBatchNorm, SpectralClip
from spectralclip.nn import CenterNorm, ScalarBatchNorm

SHAPE = (3, 6, 6)


def images(count: int = 8) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def network(kind: Any, **settings: Any) -> nn.Sequential:
    """A norm after a convolution, and one after a nonlinearity."""
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1),
        kind(5, **settings),
        nn.ReLU(),
        kind(5, **settings),
        nn.Conv2d(5, 4, 3),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("1.", "3.")):
                parameter.normal_(1.0, 0.5)
    for _ in range(3):
        model(3 * images() + 1)
    return model


def norm_of(norm: ScalarBatchNorm) -> float:
    assert norm.running_var is not None and norm.weight is not None
    return float((norm.weight.detach().abs() / (norm.running_var + norm.eps).sqrt()).max())


@pytest.mark.parametrize("kind", [CenterNorm, ScalarBatchNorm])
def test_operators_are_those_of_the_modules_in_evaluation(kind: Any) -> None:
    norm = network(kind)[1]
    for layer, shape in ((norm, (5, 3, 2)), (norm, (5,)), ([nn.Conv2d(3, 5, 3), norm], SHAPE)):
        truth = torch.from_numpy(dense_matrix(layer, shape))
        found = sc.as_operator(layer, shape).to_dense().double()
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)
    assert norm.training


def test_a_scalar_norm_has_the_norm_of_its_largest_weight() -> None:
    norm = network(ScalarBatchNorm)[1]
    bounds = sc.norm_bounds(norm, (5, 6, 6))
    assert bounds.kind == "exact" and bounds.lower <= norm_of(norm) * (1 + 1e-6)
    assert bounds.upper == pytest.approx(norm_of(norm), rel=1e-6)
    result = sc.clip_(norm, (5, 6, 6), 0.25)
    assert result.norm_after <= 0.25 * (1 + 1e-6) and norm_of(norm) == pytest.approx(0.25)
    assert sc.norm_bounds_all_sizes(norm).upper == pytest.approx(0.25)


def test_a_center_norm_has_norm_one() -> None:
    norm = network(CenterNorm)[1]
    for bounds in (sc.norm_bounds(norm, (5, 6, 6)), sc.norm_bounds_all_sizes(norm)):
        assert bounds.kind == "exact"
        assert (bounds.lower, bounds.upper) == pytest.approx((1, 1), abs=1e-8)
    with pytest.raises(ValueError, match="nothing to clip"):
        sc.clip_(norm, (5, 6, 6), 0.5)


@pytest.mark.parametrize("kind", [CenterNorm, ScalarBatchNorm])
def test_a_norm_beside_a_convolution(kind: Any) -> None:
    conv, norm = network(kind)[:2]
    truth = dense_norm([conv, norm], SHAPE)
    bounds = sc.norm_bounds([conv, norm], SHAPE)
    assert bounds.lower <= truth * (1 + 1e-6) and truth <= bounds.upper <= truth * 1.011
    assert sc.norm_bounds_all_sizes([conv, norm]).upper >= truth
    before = [parameter.clone() for parameter in norm.parameters()]
    sc.clip_([conv, norm], SHAPE, 0.5, exact=True)
    assert dense_norm([conv, norm], SHAPE) <= 0.5 * 1.001
    for old, new in zip(before, norm.parameters(), strict=True):
        assert torch.equal(old, new)


def test_layers_and_compositions() -> None:
    scalar, center = network(ScalarBatchNorm), network(CenterNorm)
    assert list(sc.find_layers(scalar, images())) == ["0+1", "3", "4", "6"]
    assert list(sc.find_layers(scalar, images(), "chains")) == ["0+1", "3+4+5+6"]
    assert list(sc.find_layers(center, images())) == ["0", "4", "6"]
    between = nn.Sequential(nn.Conv2d(3, 5, 3), CenterNorm(5), nn.Conv2d(5, 4, 3))
    assert list(sc.find_layers(between, images(), "chains")) == ["0+1+2"]
    for model in (scalar, center, between):
        assert sc.skipped_layers(model, images()) == {}


@pytest.mark.parametrize("kind", [CenterNorm, ScalarBatchNorm])
@pytest.mark.parametrize("hooked", [True, False])
def test_audits_and_bounds_of_networks(kind: Any, hooked: bool) -> None:
    model = network(kind)
    model.requires_grad_(False)
    if hooked:
        model[1].register_forward_hook(lambda module, inputs, output: None)
    found = sc.audit(model, images(), progress=False)
    assert not found.skipped
    assert "norm" in str(found)
    bound = sc.lipschitz_bounds(model, images())
    parts = dense_norm([model[0], model[1]], SHAPE), dense_norm(list(model[3:]), (5, 6, 6))
    product = parts[0] * parts[1]
    assert bound.lower <= product * (1 + 1e-6)
    assert product * (1 - 1e-6) <= bound.upper <= product * 1.03
    assert not bound.unbounded


@pytest.mark.parametrize("kind", [CenterNorm, ScalarBatchNorm])
def test_without_running_statistics_they_are_no_layers(kind: Any) -> None:
    model = network(kind, track_running_stats=False)
    assert list(sc.find_layers(model, images())) == ["0", "4", "6"]
    skipped = sc.skipped_layers(model, images())
    assert list(skipped) == ["1", "3"] and "depends on the batch" in skipped["1"]


@pytest.mark.parametrize("bound", [0.3, 2.0])
def test_a_model_is_clipped(bound: float) -> None:
    center = network(CenterNorm)
    own = [parameter.clone() for index in (1, 3) for parameter in center[index].parameters()]
    results = sc.clip_model_(center, images(), bound)
    assert list(results) == ["0", "4", "6"]
    kept = [parameter for index in (1, 3) for parameter in center[index].parameters()]
    assert all(torch.equal(old, new) for old, new in zip(own, kept, strict=True))
    scalar = network(ScalarBatchNorm)
    assert list(sc.clip_model_(scalar, images(), bound)) == ["0+1", "3", "4", "6"]
    assert dense_norm([scalar[0], scalar[1]], SHAPE) <= bound * 1.001
    assert norm_of(scalar[3]) <= bound * 1.001


def train(model: nn.Module, method: Any, steps: int = 12, lr: float = 0.2) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    attachment = sc.attach(model, optimizer, images(), method=method, max_norm=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(images()) - 3).square().mean().backward()
        optimizer.step()
    return attachment


@pytest.mark.parametrize("compose", ["conv_bn", "none"])
def test_a_center_norm_leaves_training_alone(compose: Any) -> None:
    model = network(CenterNorm)
    before = model[1].bias.detach().clone()
    attachment = train(model, SpectralClip(compose=compose, batch_norm=True))
    assert list(attachment.layers) == ["0", "4", "6"] and not attachment.uncovered
    assert not torch.equal(model[1].bias, before)  # the optimizer's work
    assert dense_norm(model[0], SHAPE) <= 0.5 * 1.01


def test_a_scalar_norm_is_held_with_its_convolution_by_its_weight() -> None:
    model = network(ScalarBatchNorm)
    attachment = train(model, SpectralClip(compose="conv_bn", batch_norm=True))
    assert list(attachment.layers) == ["0+1", "3", "4", "6"]
    assert dense_norm([model[0], model[1]], SHAPE) <= 0.5 * 1.02
    assert norm_of(model[3]) <= 0.5 * (1 + 1e-5)
    truth = dense_norm([model[0], model[1]], SHAPE)
    assert float(attachment.norms()["0+1"]) == pytest.approx(truth, rel=0.02)


def test_a_scalar_norm_is_held_as_torchs_batch_norm_is() -> None:
    """With statistics that stand still, the two are the same layer."""
    ours = network(ScalarBatchNorm)
    theirs = network(nn.BatchNorm2d)
    theirs.load_state_dict(ours.state_dict())
    attachments = [
        train(model.eval(), SpectralClip(compose="conv_bn", batch_norm=True), steps=5)
        for model in (ours, theirs)
    ]
    assert list(attachments[0].layers) == list(attachments[1].layers)
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))


def test_the_clamp_of_batch_norms_takes_scalar_ones_alone() -> None:
    model = network(ScalarBatchNorm)
    attachment = train(model, ClipBatchNorm(), lr=0.01)
    assert list(attachment.layers) == ["1", "3"]
    assert max(norm_of(model[1]), norm_of(model[3])) <= 0.5 * (1 + 1e-6)
    with pytest.raises(ValueError, match="no layer"):
        train(network(CenterNorm), ClipBatchNorm())
