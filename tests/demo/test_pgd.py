"""The attack of the demo, against closed forms and certificates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from spectralclip import audit
from spectralclip.demo import load_digits
from spectralclip.demo.network import RECIPES, small_network, train
from spectralclip.demo.pgd import nearest_classes, pgd, predictions


def linear(classes: int, seed: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear classifier, points amid the box, their classes, and their distances to others."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, classes)).double().eval()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    images = 0.45 + 0.1 * torch.rand(200, 1, 4, 6, generator=generator, dtype=torch.float64)
    scores = model(images).detach()
    labels = scores.argmax(1)
    weight = model[1].weight.detach()
    gaps = scores.max(1, keepdim=True).values - scores
    slopes = torch.linalg.vector_norm(weight[labels][:, None] - weight[None], dim=2)
    distances = (gaps / slopes).masked_fill(nn.functional.one_hot(labels, classes).bool(), math.inf)
    return model, images, labels, distances.min(1).values


@pytest.mark.parametrize("classes", [2, 10])
def test_a_linear_classifier_falls_where_the_closed_form_says(classes: int) -> None:
    model, images, labels, distances = linear(classes, seed=classes)
    # Within the box from everywhere, so that the closed form, which knows no box, applies.
    radii = distances[distances < 0.4].quantile(torch.tensor([0.2, 0.5, 0.8]).double())
    assert len(radii.unique()) == 3
    for radius in radii.tolist():
        fell = predictions(model, pgd(model, images, labels, radius)) != labels
        clear = (distances / radius - 1).abs() > 1e-3
        assert torch.equal(fell[clear], (distances < radius)[clear])
        assert 0 < int(fell.sum()) < len(fell)


def test_the_nearest_class_of_a_linear_classifier() -> None:
    model, images, labels, distances = linear(10, seed=3)
    weight, scores = model[1].weight.detach(), model(images).detach()
    nearest = nearest_classes(model, images, labels)
    assert nearest.shape == (200, 9) and not (nearest == labels[:, None]).any()
    rows = torch.arange(200)
    gap = scores[rows, labels] - scores[rows, nearest[:, 0]]
    length = torch.linalg.vector_norm(weight[labels] - weight[nearest[:, 0]], dim=1)
    torch.testing.assert_close(gap / length, distances)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    images, labels = (part[:1280] for part in load_digits())
    return train(RECIPES[3], images, labels, epochs=2, seed=0, width=8)


@pytest.mark.parametrize("radius", [0.3, 1.0, 3.0])
def test_an_attack_stays_near_and_within_the_box(network: nn.Module, radius: float) -> None:
    images, labels = (part[:100] for part in load_digits("test"))
    found = pgd(network, images, labels, radius)
    moved = (found - images).double().flatten(1).norm(dim=1)
    assert 0.3 < float(moved.max()) / radius <= 1
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    wrong = predictions(network, images) != labels
    assert torch.equal(found[wrong], images[wrong])
    broken = predictions(network, found) != labels
    assert torch.equal(moved > 0, broken & ~wrong) and int(broken.sum()) > int(wrong.sum())


def test_no_attack_breaks_what_is_certified(network: nn.Module) -> None:
    images, labels = (part[:100] for part in load_digits("test"))
    radii = audit(network, images[:2]).certified_radius(network(images))
    right = predictions(network, images) == labels
    radius = float(radii[right].median())
    safe = right & (radii > radius)
    assert int(safe.sum()) > 20
    found = pgd(network, images, labels, radius)
    assert torch.equal(predictions(network, found)[safe], labels[safe])


def test_an_attack_leaves_the_network_as_it_was(network: nn.Module) -> None:
    images, labels = (part[:20] for part in load_digits("test"))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.zero_grad()
    pgd(network, images, labels, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_an_attack_refuses_what_it_cannot_judge(network: nn.Module) -> None:
    images, labels = (part[:4] for part in load_digits("test"))
    with pytest.raises(ValueError, match=r"training mode.*\.eval\(\)"):
        pgd(small_network(0, 4).train(), images, labels, 1.0)
    with pytest.raises(ValueError, match=r"within \[0, 1\], got values from 0 to 2"):
        pgd(network, 2 * images / images.max(), labels, 1.0)
    assert pgd(network, images[:0], labels[:0], 1.0).shape == (0, 1, 28, 28)
