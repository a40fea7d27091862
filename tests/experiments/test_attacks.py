"""Attacks find what they should: closed forms on linear models, plain loops on a trained one."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from attack_models import (
    ATTACKS,
    Attack,
    Digits,
    Normalize,
    distances,
    halves,
    seeded_pgd,
    some_cw,
    trained,
    wrong,
)
from torch import Tensor, nn
from torch.nn import functional

from experiments.attacks import carlini_wagner_l2, pgd_linf
from experiments.models.normalize import Normalize as NormalizeLayer

# Steps that are short against the distances of the linear model, whose images are 0.03 to 0.3 away.
CW: dict[str, Any] = {"confidence": 0.1, "iterations": 400, "lr": 0.002}


@pytest.fixture(scope="module")
def digits() -> Digits:
    return trained(60, torch.float64)


# Linear models


@pytest.mark.parametrize("random_start", [False, True])
def test_pgd_breaks_what_is_nearer_than_eps_in_the_l1_norm_of_the_weights(
    random_start: bool,
) -> None:
    model, images, labels, normal, lead = halves()
    needed = lead / normal.flatten(1).abs().sum(1)
    eps = float(needed.median()) + 1e-6
    found = seeded_pgd(model, images, labels, eps=eps, random_start=random_start)
    assert torch.equal(wrong(model, found, labels), needed < eps)
    assert (needed < eps).sum() == 20
    assert (found - images).abs().max() <= eps + 1e-12


@pytest.mark.parametrize("random_start", [False, True])
def test_pgd_ends_in_the_worst_corner_of_ball_and_box(random_start: bool) -> None:
    model, images, labels, normal, _ = halves(low=0.0, high=1.0)
    options: dict[str, Any] = {"eps": 0.2, "random_start": random_start, "stop_early": False}
    found = seeded_pgd(model, images, labels, **options)
    torch.testing.assert_close(found, (images + 0.2 * normal.sign()).clamp(0, 1))


def test_pgd_moves_by_its_step_size() -> None:
    model, images, labels, normal, _ = halves()
    options: dict[str, Any] = {"eps": 0.2, "random_start": False, "stop_early": False}
    for size, moved in ((None, 0.06), (0.01, 0.03), (0.5, 0.2)):
        found = pgd_linf(model, images, labels, steps=3, step_size=size, **options)
        torch.testing.assert_close(found, images + moved * normal.sign())


def test_cw_finds_the_distance_to_the_hyperplane() -> None:
    model, images, labels, normal, lead = halves()
    exact = (lead + 0.1) / normal.flatten(1).norm(dim=1)
    found = carlini_wagner_l2(model, images, labels, initial_const=0.2, **CW)
    assert wrong(model, found, labels).all()
    ratio = distances(found, images) / exact
    assert ratio.min() >= 1 - 1e-9
    assert ratio.max() <= 1.02


def test_cw_breaks_what_its_constant_can_pay_for() -> None:
    """The minimum of t^2 + c max(lead + confidence - |w| t, 0) is broken iff c >= 2 t / |w|."""
    model, images, labels, normal, lead = halves()
    price = 2 * (lead + 0.1) / normal.flatten(1).norm(dim=1) ** 2
    const = float(price.median())
    found = carlini_wagner_l2(model, images, labels, initial_const=const, **CW)
    broken = wrong(model, found, labels)
    assert broken[price < 0.95 * const].all()
    assert not broken[price > 1.05 * const].any()
    assert torch.equal(found[~broken], images[~broken])


def test_cw_breaks_more_than_its_constant_can_pay_for_with_long_steps() -> None:
    """Adam goes beyond the minimum, and points there count as well."""
    model, images, labels, normal, lead = halves()
    price = 2 * (lead + 0.1) / normal.flatten(1).norm(dim=1) ** 2
    const = float(price.median())
    options: dict[str, Any] = {"confidence": 0.1, "iterations": 400, "initial_const": const}
    broken = {}
    for lr in (0.002, 0.05, 0.2):
        found = carlini_wagner_l2(model, images, labels, lr=lr, **options)
        broken[lr] = wrong(model, found, labels)
        assert broken[lr][price < const].all()
    assert int((price <= const).sum()) == 20
    assert broken[0.002].sum() < broken[0.05].sum() < broken[0.2].sum()


def test_cw_searches_a_constant_that_is_large_enough() -> None:
    model, images, labels, normal, lead = halves()
    exact = (lead + 0.1) / normal.flatten(1).norm(dim=1)
    options: dict[str, Any] = CW | {"initial_const": 1e-4, "iterations": 200}
    assert not wrong(model, carlini_wagner_l2(model, images, labels, **options), labels).any()
    found = carlini_wagner_l2(model, images, labels, search_steps=7, **options)
    assert wrong(model, found, labels).all()
    torch.testing.assert_close(distances(found, images), exact, rtol=0.02, atol=0)


# Plain loops


def plain_pgd(
    model: nn.Module, images: Tensor, labels: Tensor, start: Tensor, eps: float, steps: int
) -> tuple[Tensor, Tensor]:
    """The last point of every image, and the first that is wrong or else the last."""
    x, first = (images + start).clamp(0, 1), images.clone()
    open_ = torch.ones(len(images), dtype=torch.bool)
    for _ in range(steps):
        first[open_] = x[open_]
        open_ &= ~wrong(model, x, labels)
        x.requires_grad_()
        (slope,) = torch.autograd.grad(functional.cross_entropy(model(x), labels), x)
        x = x.detach() + eps / 10 * slope.sign()
        x = torch.minimum(torch.maximum(x, images - eps), images + eps).clamp(0, 1)
    first[open_] = x[open_]
    return x, first


def test_pgd_is_the_plain_loop_with_idle_work_left_out(digits: Digits) -> None:
    model, images, labels = digits
    start = torch.rand(images.shape, generator=torch.Generator().manual_seed(3))
    start = 0.06 * (2 * start.double() - 1)
    last, first = plain_pgd(model, images, labels, start, 0.06, 20)
    right = ~wrong(model, images, labels)
    options: dict[str, Any] = {"eps": 0.06, "steps": 20}
    for stop_early, expected in ((False, last), (True, first)):
        found = seeded_pgd(model, images, labels, stop_early=stop_early, **options)
        torch.testing.assert_close(found[right], expected[right])
    assert 10 < wrong(model, first, labels).sum() < 50
    assert not torch.equal(first, last)


def plain_cw(
    model: nn.Module, image: Tensor, label: Tensor, const: float, confidence: float, iterations: int
) -> list[Tensor]:
    """The broken points of one image in their order."""
    w = torch.atanh((2 * image - 1) * (1 - 1e-6)).requires_grad_()
    optimizer, broken = torch.optim.Adam([w], 0.01), []
    for _ in range(iterations):
        point = (w.tanh() + 1) / 2
        scores = model(point)[0]
        others = torch.cat([scores[:label], scores[label + 1 :]])
        lead = scores[label] - others.max() + confidence
        if lead <= 0:
            broken.append(point.detach())
        optimizer.zero_grad()
        loss = (point - image).square().sum() + const * lead.clamp_min(0)
        loss.backward(inputs=[w])
        optimizer.step()
    return broken


def test_cw_is_the_plain_loop_with_idle_work_left_out(digits: Digits) -> None:
    model, images, labels = digits
    right = (~wrong(model, images, labels)).nonzero().flatten()[:10]
    images, labels = images[right], labels[right]
    options: dict[str, Any] = {"confidence": 0.1, "iterations": 60, "initial_const": 3.0}
    nearest = carlini_wagner_l2(model, images, labels, **options)
    first = carlini_wagner_l2(model, images, labels, stop_early=True, **options)
    kinds = set()
    for at in range(10):
        image = images[at : at + 1]
        broken = plain_cw(model, image, labels[at], 3.0, 0.1, 60) or [image]
        kinds.add(len(broken) > 1)
        closest = min(broken, key=lambda point: float(distances(point, image)))
        torch.testing.assert_close(nearest[at : at + 1], closest)
        torch.testing.assert_close(first[at : at + 1], broken[0])
    assert kinds == {False, True}


def test_cw_breaks_as_many_when_it_stops_early(digits: Digits) -> None:
    model, images, labels = digits
    options: dict[str, Any] = {"search_steps": 2, "initial_const": 1.0}
    near = wrong(model, some_cw(model, images, labels, **options), labels)
    early = wrong(model, some_cw(model, images, labels, stop_early=True, **options), labels)
    assert torch.equal(near, early)
    assert wrong(model, images, labels).sum() < near.sum() < 60


# The protocol of the paper


def test_paper_pgd_moves_normalized_inputs_in_the_box() -> None:
    model, images, labels, normal, _ = halves(low=0.2, high=0.8, mean=0.4, std=0.25)
    options: dict[str, Any] = {"eps": 0.1, "stop_early": False, "protocol": "paper"}
    found = seeded_pgd(model, images, labels, **options)
    inputs = ((images - 0.4) / 0.25 + 0.1 * normal.sign()).clamp(0, 1)
    torch.testing.assert_close(found, 0.4 + 0.25 * inputs)
    # The box cuts into the images themselves, far beyond eps.
    assert (found - images).abs().max() > 0.15


def test_paper_protocol_normalizes_channel_by_channel() -> None:
    mean, std = (0.2, 0.4, 0.5), (0.2, 0.25, 0.1)
    dense = nn.Linear(12, 2)
    parts = OrderedDict(normalize=NormalizeLayer(mean, std), flat=nn.Flatten(), dense=dense)
    model = nn.Sequential(parts).double().eval()
    images = torch.rand(9, 3, 2, 2, dtype=torch.float64)
    labels = model(images).argmax(1)
    options: dict[str, Any] = {"eps": 0.1, "stop_early": False, "protocol": "paper"}
    found = seeded_pgd(model, images, labels, **options)
    means, stds = torch.tensor(mean).reshape(3, 1, 1), torch.tensor(std).reshape(3, 1, 1)
    weight = (dense.weight[1] - dense.weight[0]).detach().reshape(3, 2, 2)
    towards = torch.where(labels == 0, 1, -1).reshape(-1, 1, 1, 1) * weight.sign()
    inputs = ((images - means) / stds + 0.1 * towards).clamp(0, 1)
    torch.testing.assert_close(found, means + stds * inputs)


def test_paper_cw_is_the_attack_on_normalized_inputs_cut_by_the_box(digits: Digits) -> None:
    model, images, labels = digits
    bare = nn.Sequential(*list(model.children())[1:]).eval()
    inputs = ((images - 0.1307) / 0.3081).clamp(0, 1)
    stays = ~wrong(model, images, labels) & ~wrong(bare, inputs, labels)
    # Long steps: most inputs are at an end of the box, where tanh is flat.
    expected = some_cw(bare, inputs, labels, lr=0.2)
    found = (some_cw(model, images, labels, lr=0.2, protocol="paper") - 0.1307) / 0.3081
    moved = stays & (distances(expected, inputs) > 0)
    assert 10 < moved.sum() < stays.sum()
    torch.testing.assert_close(found[moved], expected[moved], atol=1e-6, rtol=0)
    # Those that were not broken come back whole.
    kept = 0.1307 + 0.3081 * found[stays & ~moved]
    torch.testing.assert_close(kept, images[stays & ~moved])


@ATTACKS
def test_the_protocols_agree_where_nothing_is_normalized(attack: Attack, digits: Digits) -> None:
    model, images, labels = digits
    bare = copy.deepcopy(model)
    bare.normalize = Normalize(0.0, 1.0)
    pixels = attack(bare, images, labels)
    torch.testing.assert_close(attack(bare, images, labels, protocol="paper"), pixels)
    assert not torch.equal(pixels, images)
