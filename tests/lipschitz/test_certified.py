"""What a Lipschitz constant certifies, and the loss that trains for it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from zoo import BY_NAME

from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.certified import (
    certified_accuracy,
    certified_radius,
    margin_cross_entropy,
)
from spectralclip._lipschitz.result import NetworkBound

SHAPES = [(7, 4), (2, 3, 5), (3,)]


def drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(shape, generator=generator, dtype=dtype)
    return logits, torch.randint(shape[-1], shape[:-1], generator=generator)


def margins(logits: Tensor, labels: Tensor) -> list[float]:
    """How far the label's logit is above all others, row by row."""
    rows = zip(
        logits.reshape(-1, logits.shape[-1]).tolist(), labels.flatten().tolist(), strict=True
    )
    return [row[y] - max(row[:y] + row[y + 1 :]) for row, y in rows]


def raised(logits: Tensor, labels: Tensor, by: float, temperature: float) -> Tensor:
    """The logits with all but the label's raised, by a mask."""
    others = 1 - F.one_hot(labels, logits.shape[-1]).to(logits)
    return (logits + by * others) / temperature


def test_the_certified_radius_is_the_margin_over_root_two_times_the_constant() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 5.0, 5.0]])
    assert certified_radius(logits, 2.0).tolist() == pytest.approx([2 / (2 * math.sqrt(2)), 0])
    assert certified_radius(logits, math.inf).tolist() == [0, 0]
    assert certified_radius(logits, 0.0).tolist() == [math.inf, 0]
    bound = NetworkBound(lower=1.0, upper=4.0, failure=0.0, product=8.0)
    assert torch.equal(certified_radius(logits, bound), certified_radius(logits, 4.0))
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="not negative"):
            certified_radius(logits, bad)
    with pytest.raises(ValueError, match="two classes"):
        certified_radius(torch.zeros(3, 1), 1.0)


def test_no_input_within_the_radius_is_classified_otherwise() -> None:
    model = BY_NAME["mlp"].model().double()
    x = BY_NAME["mlp"].inputs(20, seed=4).double()
    with torch.no_grad():
        logits = model(x)
        radius = certified_radius(logits, lipschitz_bounds(model, x, local=False))
        for seed in range(50):
            move = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).double()
            move *= radius[:, None, None, None] / move.flatten(1).norm(dim=1)[:, None, None, None]
            assert torch.equal(model(x + 0.999 * move).argmax(1), logits.argmax(1))


def test_integer_logits_have_a_radius() -> None:
    logits = torch.tensor([[3, 1, 0], [0, 5, 5]])
    assert certified_radius(logits, 0.0).tolist() == [math.inf, 0]
    assert certified_radius(logits, 2.0).tolist() == pytest.approx([2 / (2 * math.sqrt(2)), 0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("radius", [0.0, 0.1, 1.0, 10.0])
def test_certified_accuracy_counts_margins(shape: tuple[int, ...], radius: float) -> None:
    logits, labels = drawn(shape)
    labels = torch.where(labels % 2 == 0, logits.argmax(-1), labels)  # some of them right
    found = certified_accuracy(logits, labels, lipschitz=1.5, radius=radius)
    large = [margin > math.sqrt(2) * 1.5 * radius for margin in margins(logits, labels)]
    assert found.shape == () and float(found) == pytest.approx(sum(large) / len(large))
    right = logits.argmax(-1) == labels
    certain = right & (certified_radius(logits, 1.5) > radius)
    assert float(found) == pytest.approx(float(certain.double().mean()))


def test_certified_accuracy_at_the_ends() -> None:
    logits, labels = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 0, 0])
    third = pytest.approx(1 / 3)
    for lipschitz in (0.0, 1.0, math.inf):
        assert certified_accuracy(logits, labels, lipschitz=lipschitz, radius=0.0) == third
    assert certified_accuracy(logits, labels, lipschitz=math.inf, radius=1e-9) == 0
    assert certified_accuracy(logits, labels, lipschitz=0.0, radius=1e9) == third
    bound = NetworkBound(lower=1.0, upper=4.0, failure=0.0, product=8.0)
    assert certified_accuracy(logits, labels, lipschitz=bound, radius=0.34) == third
    assert certified_accuracy(logits, labels, lipschitz=bound, radius=0.36) == 0
    assert certified_accuracy(logits.int(), labels.int(), lipschitz=1.0, radius=0.5) == third


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_margin_is_added_to_all_other_classes(
    shape: tuple[int, ...], temperature: float, reduction: Any
) -> None:
    logits, labels = drawn(shape)
    logits.requires_grad_()
    settings: Any = {"radius": 0.3, "temperature": temperature, "reduction": reduction}
    found = margin_cross_entropy(logits, labels, lipschitz=2.0, **settings)
    shifted = raised(logits, labels, math.sqrt(2) * 2.0 * 0.3, temperature)
    probabilities = shifted.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    expected = {"mean": -probabilities.mean(), "sum": -probabilities.sum(), "none": -probabilities}
    torch.testing.assert_close(found, expected[reduction])
    mine, plain = (
        torch.autograd.grad(loss.sum(), logits)[0] for loss in (found, expected[reduction])
    )
    torch.testing.assert_close(mine, plain)
    without = margin_cross_entropy(logits, labels, lipschitz=2.0, radius=0.0)
    rows = logits.reshape(-1, shape[-1])
    torch.testing.assert_close(without, F.cross_entropy(rows, labels.flatten()))


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_the_loss_are_those_of_differences(shape: tuple[int, ...]) -> None:
    logits, labels = drawn(shape)
    constant = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)

    def loss(logits: Tensor, constant: Tensor) -> Tensor:
        return margin_cross_entropy(logits, labels, lipschitz=constant, radius=0.4)

    assert torch.autograd.gradcheck(loss, (logits.requires_grad_(), constant))


def test_a_small_loss_is_a_certificate() -> None:
    """Where the loss of a row is below log 2, its label is ahead by more than the margin."""
    logits, labels = drawn((200, 3))
    losses = margin_cross_entropy(logits, labels, lipschitz=1.0, radius=0.5, reduction="none")
    certain = torch.tensor(margins(logits, labels)) > math.sqrt(2) * 0.5
    small = losses < math.log(2)
    assert small.any() and bool(certain[small].all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_computed_in_single_precision(dtype: torch.dtype) -> None:
    logits, labels = drawn((50, 4), torch.float32)
    logits = logits.to(dtype)
    found = margin_cross_entropy(logits, labels, lipschitz=1.0, radius=0.01)
    exact = margin_cross_entropy(logits.double(), labels, lipschitz=1.0, radius=0.01)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=0)


def test_the_loss_under_vmap_and_compiled() -> None:
    logits, labels = drawn((6, 4))

    def loss(row: Tensor, label: Tensor) -> Tensor:
        return margin_cross_entropy(row, label, lipschitz=1.0, radius=0.5)

    expected = margin_cross_entropy(logits, labels, lipschitz=1.0, radius=0.5, reduction="none")
    torch.testing.assert_close(torch.func.vmap(loss)(logits, labels), expected)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, labels), expected.mean())
    torch._dynamo.reset()


@pytest.mark.parametrize("function", [certified_accuracy, margin_cross_entropy])
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"radius": -0.1}, r"radius must be .*not negative, got -0\.1"),
        ({"radius": math.nan}, r"radius must be"),
        ({"radius": math.inf}, r"radius must be a finite number"),
        ({"lipschitz": -1.0}, r"lipschitz must be a number that is not negative, got -1"),
        ({"lipschitz": math.nan}, r"lipschitz must be"),
        ({"labels": torch.tensor([0, 1])}, r"labels must have shape \(3,\).*got shape \(2,\)"),
        ({"labels": torch.zeros(3, 4)}, r"labels must be integers, got torch\.float32"),
        ({"labels": torch.tensor([0, 1, 4])}, r"labels must be from 0 to 3, for 4 classes"),
        ({"labels": torch.tensor([0, -100, 1])}, r"labels must be from 0 to 3"),
        ({"logits": torch.zeros(3, 1)}, r"at least two classes.*got shape \(3, 1\)"),
        ({"logits": torch.tensor(1.0)}, r"at least two classes"),
    ],
)
def test_what_makes_no_sense_is_refused(function: Any, changed: Any, told: str) -> None:
    labels = torch.tensor([0, 1, 2])
    asked = {"logits": torch.zeros(3, 4), "labels": labels, "lipschitz": 1.0, "radius": 0.5}
    with pytest.raises(ValueError, match=told):
        function(**{**asked, **changed})


def test_no_inputs_have_no_accuracy() -> None:
    none = torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match="at least one input"):
        certified_accuracy(torch.zeros(0, 4), none, lipschitz=1.0, radius=0.0)


@pytest.mark.parametrize("function", [certified_accuracy, margin_cross_entropy])
def test_maps_of_logits_have_their_classes_last(function: Any) -> None:
    logits, labels = torch.randn(2, 4, 3, 5), torch.randint(4, (2, 3, 5))
    with pytest.raises(ValueError, match=r"Put the classes last: logits\.movedim\(1, -1\)"):
        function(logits, labels, lipschitz=1.0, radius=0.5)
    assert function(logits.movedim(1, -1), labels, lipschitz=1.0, radius=0.5) >= 0


@pytest.mark.parametrize("function", [certified_accuracy, margin_cross_entropy])
@pytest.mark.parametrize("name", ["logits", "labels", "lipschitz", "radius"])
@pytest.mark.parametrize("wrong", [None, [1.0, 2.0], "none"])
def test_what_is_of_another_type_is_named(function: Any, name: str, wrong: Any) -> None:
    labels = torch.tensor([0, 1, 2])
    asked = {"logits": torch.zeros(3, 4), "labels": labels, "lipschitz": 1.0, "radius": 0.5}
    with pytest.raises(TypeError, match=f"{name} must be a .*, got"):
        function(**{**asked, name: wrong})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"lipschitz": math.inf}, r"lipschitz must be finite"),
        ({"temperature": 0.0}, r"temperature must be a positive number, got 0\.0"),
        ({"reduction": "max"}, r"reduction must be .*got 'max'"),
    ],
)
def test_a_loss_that_makes_no_sense_is_refused(changed: Any, told: str) -> None:
    asked: Any = {"lipschitz": 1.0, "radius": 0.5, **changed}
    with pytest.raises(ValueError, match=told):
        margin_cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, 2]), **asked)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_a_constant_for_each_row_is_refused(shape: tuple[int, ...]) -> None:
    logits, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    with pytest.raises(ValueError, match="one constant for all rows"):
        margin_cross_entropy(logits, labels, lipschitz=torch.ones(shape), radius=0.3)
