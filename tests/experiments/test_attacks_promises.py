"""What every attack keeps: images, batches and the world around it; and what it refuses."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from attack_models import ATTACKS, Attack, Digits, some_cw, some_pgd, trained, wrong
from torch import nn

from experiments.attacks import carlini_wagner_l2, pgd_linf, robust_accuracy


@pytest.fixture(scope="module")
def digits() -> Digits:
    return trained(24, torch.float64)


@ATTACKS
@pytest.mark.parametrize("protocol", ["pixels", "paper"])
def test_batches_of_any_size_agree(attack: Attack, protocol: str, digits: Digits) -> None:
    model, images, labels = digits
    whole = attack(model, images, labels, protocol=protocol)
    assert not torch.equal(whole, images)
    for batch in (1, 7):
        parts = attack(model, images, labels, protocol=protocol, batch=batch)
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-9)


@ATTACKS
@pytest.mark.parametrize("protocol", ["pixels", "paper"])
def test_images_that_are_wrong_already_are_left_alone(
    attack: Attack, protocol: str, digits: Digits
) -> None:
    model, images, labels = digits
    labels = torch.where(torch.arange(24) % 2 == 0, labels, (labels + 1) % 10)
    already = wrong(model, images, labels)
    found = attack(model, images, labels, protocol=protocol)
    assert torch.equal(found[already], images[already])
    assert not torch.equal(found[~already], images[~already])
    nothing = attack(model, images[already], labels[already], protocol=protocol)
    assert torch.equal(nothing, images[already])


@ATTACKS
def test_the_same_again_and_nothing_else_is_touched(attack: Attack, digits: Digits) -> None:
    model, images, labels = digits
    before = copy.deepcopy((model.state_dict(), images, labels))
    random_state = torch.get_rng_state()
    first, again = attack(model, images, labels), attack(model, images, labels)
    assert torch.equal(first, again)
    assert torch.equal(random_state, torch.get_rng_state())
    torch.testing.assert_close((model.state_dict(), images, labels), before, rtol=0, atol=0)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not model.training
    assert first.dtype == images.dtype
    assert not first.requires_grad
    assert first.min() >= 0
    assert first.max() <= 1


def test_random_starts_come_from_the_generator(digits: Digits) -> None:
    model, images, labels = digits
    make = torch.Generator().manual_seed(3)
    options: dict[str, Any] = {"eps": 0.05, "steps": 1, "generator": make}
    first = pgd_linf(model, images, labels, **options)
    assert not torch.equal(first, pgd_linf(model, images, labels, **options))


@pytest.mark.parametrize("pixel", [0.0, 0.5])
def test_an_attack_that_found_nothing_is_no_success(pixel: float) -> None:
    """The model gets black images of class 1 wrong: one returned for lack of any would count."""
    dense = nn.Linear(4, 2)
    with torch.no_grad():
        dense.weight.copy_(torch.tensor([[0.0] * 4, [10.0] * 4]))
        dense.bias.copy_(torch.tensor([1.0, 0.0]))
    model = nn.Sequential(nn.Flatten(), dense).double().eval()
    images = torch.full((3, 1, 2, 2), pixel, dtype=torch.float64)
    labels = torch.full((3,), int(pixel > 0))
    options: dict[str, Any] = {"confidence": 0.1, "iterations": 20, "initial_const": 1e-12}
    found = carlini_wagner_l2(model, images, labels, **options)
    assert torch.equal(found, images)
    assert robust_accuracy(model, images, found, labels) == 1
    black = torch.zeros_like(images)
    assert robust_accuracy(model, images, black, labels) == (0 if pixel else 1)


def test_robust_accuracy_counts_what_is_right_and_stays_right() -> None:
    model = nn.Identity().eval()
    images = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8], [0.1, 0.9]])
    moved = torch.tensor([[0.4, 0.6], [0.8, 0.2], [0.6, 0.4], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 0, 0])
    for batch in (1, 3, 256):
        assert robust_accuracy(model, images, moved, labels, batch=batch) == 1 / 4
    assert robust_accuracy(model, images, images, labels) == 2 / 4
    assert robust_accuracy(model, images, moved, labels + 1) == 1 / 4
    with pytest.raises(ValueError, match="no images"):
        robust_accuracy(model, images[:0], moved[:0], labels[:0])
    with pytest.raises(ValueError, match="adversarial"):
        robust_accuracy(model, images, moved[:2], labels)


@ATTACKS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.full((2, 1, 5, 5), 1.5)}, r"in \[0, 1\], got values from 1.5"),
        ({"images": torch.full((2, 1, 5, 5), torch.nan)}, "normalization belongs"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "one class for each of 2"),
        ({"protocol": "normalized"}, "'normalized'"),
        ({"protocol": "paper", "model": nn.Flatten().eval()}, 'protocol="pixels"'),
        ({"model": nn.Flatten()}, "training mode"),
        ({"batch": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    attack: Attack, change: dict[str, Any], message: str
) -> None:
    usual: dict[str, Any] = {
        "model": nn.Flatten().eval(),
        "images": torch.full((2, 1, 5, 5), 0.5),
        "labels": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=message):
        attack(**usual | change)


@ATTACKS
def test_bytes_and_diverged_models_are_refused(attack: Attack) -> None:
    images, labels = torch.zeros(2, 1, 5, 5), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(TypeError, match="divide bytes by 255"):
        attack(nn.Flatten().eval(), images.byte(), labels)
    dense = nn.Linear(25, 2)
    nn.init.constant_(dense.weight, torch.nan)
    diverged = nn.Sequential(nn.Flatten(), dense).eval()
    with pytest.raises(ValueError, match="not finite"):
        attack(diverged, images, labels)


POSITIVE = (0, -1.0, math.nan, math.inf, True, "1")
NOT_NEGATIVE = (-0.1, math.nan, math.inf, None)
COUNT = (0, -1, 1.5, 2.0, math.nan, True, None)
REFUSED: list[tuple[Attack, str, tuple[object, ...]]] = [
    (some_pgd, "eps", NOT_NEGATIVE),
    (some_pgd, "steps", COUNT),
    (some_pgd, "step_size", POSITIVE),
    (some_pgd, "batch", COUNT),
    (some_cw, "confidence", NOT_NEGATIVE),
    (some_cw, "initial_const", POSITIVE),
    (some_cw, "lr", POSITIVE),
    (some_cw, "iterations", COUNT),
    (some_cw, "search_steps", COUNT),
    (some_cw, "batch", COUNT),
]


@pytest.mark.parametrize(
    ("attack", "name", "value"),
    [(attack, name, value) for attack, name, values in REFUSED for value in values],
)
def test_numbers_out_of_range_are_refused_by_name(attack: Attack, name: str, value: object) -> None:
    images, labels = torch.zeros(2, 1, 5, 5), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got .*\.$"):
        attack(nn.Flatten().eval(), images, labels, **{name: value})


def test_images_that_an_attack_spoilt_are_not_blamed_on_the_model() -> None:
    images, labels = torch.full((2, 3), 0.5), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="adversarial must be finite"):
        robust_accuracy(nn.Identity().eval(), images, images * math.nan, labels)


def test_a_random_start_needs_a_generator() -> None:
    images, labels = torch.zeros(2, 1, 5, 5), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="generator"):
        pgd_linf(nn.Flatten().eval(), images, labels, eps=0.1)
