"""The momentum of every optimizer: found where it is known, and left alone where it is not."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from optimizer_cases import Make, X, backward, largest_change, network, norms_of, quietly_attached
from torch import nn, optim

from spectralclip import NormWarning, attach, clip_model_
from spectralclip._training.momentum import Momentum, momentum_of, project_outward_, without_outward
from spectralclip.methods import SpectralClip


def stepped(make: Any, steps: int = 3) -> tuple[Any, nn.Linear]:
    layer = nn.Linear(4, 3)
    optimizer = make([layer.weight])
    x = torch.randn(5, 4)
    for _ in range(steps):
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()
    return optimizer, layer


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), "momentum_buffer"),
        (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True), "momentum_buffer"),
        (lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9), "momentum_buffer"),
        (lambda p: torch.optim.Adam(p, lr=0.01), "exp_avg"),
        (lambda p: torch.optim.AdamW(p, lr=0.01), "exp_avg"),
        (lambda p: torch.optim.NAdam(p, lr=0.01), "exp_avg"),
    ],
    ids=["sgd", "nesterov", "rmsprop", "adam", "adamw", "nadam"],
)
def test_the_momentum_is_the_optimizers_own_tensor(make: Any, key: str) -> None:
    optimizer, layer = stepped(make)
    momentum = momentum_of(optimizer, layer.weight)
    assert momentum is not None
    assert momentum.buffer is optimizer.state[layer.weight][key]
    assert (momentum.squares is None) == (key == "momentum_buffer")


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_metric_is_the_one_of_adams_step(kind: Any) -> None:
    """A step with no gradient follows the momentum alone, which is compared with the formula."""
    optimizer, layer = stepped(lambda p: kind(p, lr=0.01, weight_decay=0.0))
    momentum = momentum_of(optimizer, layer.weight)
    assert momentum is not None
    assert momentum.squares is not None
    # In units of the learning rate, at the next step, from the parameters' own movement.
    expected = momentum.buffer / (momentum.squares.sqrt() + momentum.eps)
    layer.weight.grad = torch.zeros_like(layer.weight)
    before = layer.weight.detach().clone()
    optimizer.step()
    moved = (before - layer.weight.detach()).flatten()
    cosine = torch.nn.functional.cosine_similarity(moved, expected.flatten(), dim=0)
    assert cosine > 1 - 1e-5
    beta1, beta2 = 0.9, 0.999
    size = 0.01 * beta1 / (1 - beta1**4) * ((1 - beta2**4) / beta2) ** 0.5
    torch.testing.assert_close(moved, size * expected.flatten(), rtol=1e-3, atol=1e-7)


def test_in_place_and_all_at_once_are_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [[(3, 4), (3, 4)], [(2, 3, 5)]]

    def draws() -> list[list[torch.Tensor]]:
        return [[torch.randn(shape, generator=generator) for shape in own] for own in shapes]

    buffers, directions, squares = draws(), draws(), draws()
    buffers[0][1].copy_(directions[0][1])  # pushes inward: stays as it is
    momenta = [
        [Momentum(b, s.square() if b.ndim == 2 else None, 1e-8) for b, s in zip(*own, strict=True)]
        for own in zip(buffers, squares, strict=True)
    ]
    expected = without_outward(momenta, directions)
    kept = buffers[0][1].clone()
    project_outward_(momenta, directions)
    for new, buffer in zip(expected, [b for own in buffers for b in own], strict=True):
        torch.testing.assert_close(buffer, new)
    assert torch.equal(buffers[0][1], kept)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam], ids=["sgd", "adam"])
def test_what_pushes_outward_is_taken_out_and_nothing_else(make: Any) -> None:
    settings = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer, layer = stepped(lambda p: make(p, lr=0.01, **settings))
    momentum = momentum_of(optimizer, layer.weight)
    assert momentum is not None
    metric = torch.ones(()) if momentum.squares is None else momentum.squares.sqrt() + momentum.eps
    generator = torch.Generator().manual_seed(0)
    inward = torch.randn(layer.weight.shape, generator=generator)
    inward *= -torch.sign((inward * momentum.buffer / metric).sum())  # a step would undo it
    (new,) = without_outward([[momentum]], [[inward]])
    step, left = momentum.buffer / metric, new / metric
    assert (inward * step).sum() < 0
    assert abs((inward * left).sum()) < 1e-4 * inward.norm() * step.norm()
    # Of all steps that do not push outward, the nearest.
    torch.testing.assert_close(
        left - step, ((left - step) * inward).sum() / inward.norm() ** 2 * inward
    )
    assert left.norm() <= step.norm()
    (same,) = without_outward([[momentum]], [[-inward]])
    assert torch.equal(same, momentum.buffer)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.01),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
    ],
    ids=["sgd", "rmsprop", "adagrad"],
)
def test_optimizers_without_momentum_have_none(make: Any) -> None:
    optimizer, layer = stepped(make)
    assert momentum_of(optimizer, layer.weight) is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_before_the_first_step_there_is_none_and_no_state_is_made(kind: Any) -> None:
    layer = nn.Linear(4, 3)
    optimizer = kind(layer.parameters(), lr=0.01)
    assert momentum_of(optimizer, layer.weight) is None
    assert momentum_of(optimizer, nn.Parameter(torch.zeros(2))) is None
    assert len(optimizer.state) == 0


def test_entries_without_gradients_leave_the_momentum_finite() -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.Adam([layer.weight], lr=0.01, eps=0.0)
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.param_groups[0]["eps"] = 1e-8
    optimizer.step()
    optimizer.param_groups[0]["eps"] = 0.0
    momentum = momentum_of(optimizer, layer.weight)
    assert momentum is not None
    (buffer,) = without_outward([[momentum]], [[-torch.ones(3, 4)]])
    assert torch.isfinite(buffer).all()


def of_torch() -> dict[str, Make]:
    """Every optimizer of torch.optim that moves these weights, at its own rate or 0.01."""
    found: dict[str, Make] = {}
    for name, kind in vars(optim).items():
        if not inspect.isclass(kind) or not issubclass(kind, optim.Optimizer):
            continue
        if name in ("Optimizer", "SparseAdam", "Muon"):  # abstract; sparse gradients; matrices
            continue
        found[name] = kind
    found["SGD"] = lambda p: optim.SGD(p, lr=0.01, momentum=0.9)
    found["SGD-nesterov"] = lambda p: optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True)
    found["Adam-amsgrad"] = lambda p: optim.Adam(p, amsgrad=True)
    found["RMSprop-momentum"] = lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.9)
    return found


def assert_steps_as_long_as_plain_ones(make: Make, steps: int) -> None:
    plain, attached = network(), network()
    plainly = largest_change(plain, make(plain.parameters()), steps)
    optimizer = make(attached.parameters())
    quietly_attached(attached, optimizer)
    largest_change(attached, optimizer, 1)  # brings it within its bounds
    assert largest_change(attached, optimizer, steps) <= 3 * plainly


QUICK = ("SGD", "Adam", "Adamax", "Rprop")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, make in of_torch().items()
    ],
)
def test_steps_are_no_longer_than_those_of_the_plain_optimizer(make: Make) -> None:
    assert_steps_as_long_as_plain_ones(make, 8)


def third_party() -> list[str]:
    """Every optimizer of pytorch-optimizer that trains these weights as they are."""
    package = pytest.importorskip("pytorch_optimizer")
    # These train by calls of their own, need a model, sparse gradients or several processes, or
    # refuse weights of these shapes; schedule-free ones are refused by `attach`. LBFGS without a
    # line search makes steps of any length, and Shampoo takes roots that may be NaN by themselves.
    own_ways = (
        "adahessian",
        "adalomo",
        "alig",
        "bsam",
        "demo",
        "distributedmuon",
        "lbfgs",
        "lomo",
        "shampoo",
        "sophiah",
    )
    return [n for n in package.get_supported_optimizers() if n not in own_ways]


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.99, 1.0])
def test_steps_of_third_party_optimizers(start: float) -> None:
    """All in one test: the package is imported once, and those that cannot train are counted."""
    package = pytest.importorskip("pytorch_optimizer")
    wrong, trained = {}, 0
    for name in third_party():
        plain, attached = network(), network()
        for model in (plain, attached):
            clip_model_(model, X[:1], max_norm=start)
            # On small images, zero-padded layers are held by their norm on an endless one.
            with attach(model, None, X[:1], method=SpectralClip(), max_norm=start) as within:
                within.step()
        kind = package.load_optimizer(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                plainly = largest_change(plain, kind(plain.parameters()), 8)
            except Exception:
                continue
            optimizer = kind(attached.parameters())
            try:
                attach(attached, optimizer, X[:1], method=SpectralClip())
            except ValueError as error:
                assert "evaluates other weights" in str(error)
                continue
            changed = largest_change(attached, optimizer, 8)
        trained += 1
        norm = max(norms_of(attached).values())
        if changed > 3 * plainly + 1e-3 or norm > 1.02:
            wrong[name] = (plainly, changed, norm)
    assert not wrong
    assert trained >= 80


def test_a_momentum_that_is_not_known_is_left_alone_and_said_once() -> None:
    class Own(optim.Adam):
        """Its own way to step is not known, whatever it inherits."""

    model = network()
    optimizer = Own(model.parameters(), lr=0.05)
    with pytest.warns(NormWarning, match="The momentum of Own is left as it is") as said:
        attach(model, optimizer, X[:1], method=SpectralClip())
    assert len(said) == 1
    plain = network()
    plainly = Own(plain.parameters(), lr=0.05)
    backward(model, 0), backward(plain, 0)
    optimizer.step(), plainly.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(optimizer.state[ours]["exp_avg"], plainly.state[theirs]["exp_avg"])
    other = network()
    attach(other, Own(other.parameters()), X[:1], method=SpectralClip(project_momentum=False))


def test_lbfgs_begins_anew_only_where_weights_were_moved() -> None:
    """Far within the bounds it goes on as without them, bit for bit."""
    runs = []
    for bound in (None, 1e6):
        model = network()
        optimizer = optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        if bound is not None:
            attach(model, optimizer, X[:1], method=SpectralClip(), max_norm=bound)
        largest_change(model, optimizer, 3)
        runs.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, *runs))
