"""An attachment beside a training: after every step, saved and resumed, until its end."""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attach_cases import (
    Tried,
    assert_held,
    assert_known,
    attached,
    over_methods,
    over_optimizers,
    through_a_file,
    weights_of,
)
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from training_cases import (
    EXAMPLE,
    assert_identical,
    loss_of,
    sgd,
    small_network,
    snapshot,
    train,
    true_norms,
)
from untouched import HOOKS, assert_same, equal, state, surroundings

from spectralclip import Attachment, NormWarning, attach


@pytest.mark.sampled(4)
@over_optimizers
@over_methods
def test_resume_after_a_kill_is_exact(
    tried: Tried, make_optimizer: Callable[[nn.Module], Any]
) -> None:
    def begin() -> tuple[nn.Module, Any, Attachment]:
        model = small_network()
        optimizer = make_optimizer(model)
        return model, optimizer, attached(tried, model, optimizer, seed=5)

    model, optimizer, attachment = begin()
    train(model, optimizer, 7)
    saved = through_a_file([part.state_dict() for part in (model, optimizer, attachment)])
    train(model, optimizer, 6, first=7)

    again = begin()
    assert again[0] is not model
    for part, part_state in zip(again, saved, strict=True):
        part.load_state_dict(part_state)
    assert again[2].steps == 7
    train(again[0], again[1], 6, first=7)
    for before, after in zip((model, optimizer, attachment), again, strict=True):
        assert_identical(before.state_dict(), after.state_dict())
    assert attachment.norms() == again[2].norms()


@over_methods
def test_a_resumed_attachment_says_at_once_what_it_knew(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attached(tried, model, optimizer)
    assert attachment.norms() == {}
    train(model, optimizer, 2)
    known = attachment.norms()
    assert sorted(known) == sorted(attachment.layers)
    fresh = attached(tried, model, sgd(model))
    fresh.load_state_dict(attachment.state_dict())
    assert fresh.norms() == known


@over_methods
def test_a_saved_state_does_not_change_afterwards(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attached(tried, model, optimizer)
    train(model, optimizer, 3)
    saved = attachment.state_dict()
    kept = through_a_file(saved)
    train(model, optimizer, 3, first=3)
    assert_identical(saved, kept)
    attachment.load_state_dict(saved)
    train(model, optimizer, 3, first=3)
    assert_identical(saved, kept)


@over_methods
def test_gradient_accumulation(tried: Tried) -> None:
    """The work is done once a step, and gradients are what they would be without it."""
    gradients = []
    for with_method in (True, False):
        model = small_network()
        optimizer = sgd(model)
        attachment = attached(tried, model, optimizer, 1e6) if with_method else None
        for start in (0, 4):
            optimizer.zero_grad()
            for index in range(start, start + 4):
                (loss_of(model, index) / 4).backward()
            optimizer.step()
        gradients.append([parameter.grad for parameter in model.parameters()])
        assert attachment is None or attachment.steps == 2
    assert_identical(*gradients)


@over_methods
def test_gradient_clipping(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attached(tried, model, optimizer)
    for index in range(4):
        optimizer.zero_grad()
        (100 * loss_of(model, index)).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.5) > 0.5
        optimizer.step()
        left = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])
        assert float(left.norm()) == pytest.approx(0.5, rel=1e-4)
    assert attachment.steps == 4


@over_methods
def test_autocast(tried: Tried) -> None:
    """Norms are computed in full precision, wherever the step is taken."""
    runs = []
    for inside in (True, False):
        model = small_network()
        optimizer = sgd(model)
        attachment = attached(tried, model, optimizer)
        for index in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, index)
            loss.backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                optimizer.step()
        runs.append([model.state_dict(), attachment.state_dict()])
    assert_identical(*runs)


FUSED: dict[str, Callable[[nn.Module], Any]] = {
    "SGD": sgd,
    "SGD-fused": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, fused=True
    ),
    "Adam-fused": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, fused=True),
}


@pytest.mark.parametrize("make_optimizer", FUSED.values(), ids=FUSED)
@over_methods
def test_steps_that_a_grad_scaler_skips_are_skipped(
    tried: Tried, make_optimizer: Callable[[nn.Module], Any]
) -> None:
    model = small_network()
    optimizer = make_optimizer(model)
    attachment = attached(tried, model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for index, overflows in enumerate((False, True, False, True)):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, index)).backward()
        if overflows:
            model[3].weight.grad[0, 0, 0, 0] = math.inf
        before, steps = snapshot(model), attachment.steps
        known = attachment.state_dict()
        scaler.step(optimizer)
        scaler.update()
        assert attachment.steps == steps + (not overflows)
        if overflows:
            assert_identical(before, model.state_dict())
            assert_identical(known, attachment.state_dict())
    assert attachment.steps == 2


@pytest.mark.sampled(4)
@over_methods
def test_compiled_model(tried: Tried) -> None:
    runs = []
    for compiled in (True, False):
        model = small_network()
        called = torch.compile(model, backend="eager") if compiled else model
        optimizer = sgd(called)
        attachment = attached(tried, called, optimizer)
        train(called, optimizer, 4)
        assert list(attachment.layers) == list(attached(tried, small_network(), None).layers)
        runs.append([model.state_dict(), attachment.state_dict()])
    assert_identical(*runs)


@over_methods
def test_averaged_copies(tried: Tried) -> None:
    """They hold the model's own tensors, and nothing that the method remembers."""
    runs = []
    for averaging in (True, False):
        model = small_network()
        optimizer = sgd(model)
        attached(tried, model, optimizer)
        train(model, optimizer, 2)
        average = AveragedModel(model, use_buffers=True) if averaging else None
        for index in (2, 3, 4):
            train(model, optimizer, 1, first=index)
            if average is not None:
                average.update_parameters(model)
        if average is not None:
            keys = [f"module.{key}" for key in small_network().state_dict()]
            assert list(average.state_dict()) == ["n_averaged", *keys]
        runs.append(model.state_dict())
    assert_identical(*runs)


@over_methods
def test_deepcopy_of_the_model_is_a_plain_model(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    attached(tried, model, optimizer)
    train(model, optimizer, 2)
    clone = copy.deepcopy(model)
    assert_identical(clone.state_dict(), model.state_dict())
    before = snapshot(clone)
    train(model, optimizer, 2, first=2)
    assert_identical(clone.state_dict(), before)
    assert not any(getattr(part, hooks) for part in clone.modules() for hooks in HOOKS)
    free = sgd(clone)
    train(clone, free, 1)
    bare = small_network()
    bare.load_state_dict(before)
    train(bare, sgd(bare), 1)
    assert_identical(clone.state_dict(), bare.state_dict())


@over_methods
def test_closures(tried: Tried) -> None:
    model = small_network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
    attachment = attached(tried, model, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(3)]
    assert attachment.steps == 3
    assert all(map(math.isfinite, losses))
    assert sorted(attachment.norms()) == sorted(attachment.layers)


@over_methods
def test_loops_without_a_torch_optimizer(tried: Tried) -> None:
    """`.step()` after each update by hand does what the hook does."""
    runs = []
    for by_hand in (True, False):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        attachment = attached(tried, model, None if by_hand else optimizer)
        for index in range(5):
            model.zero_grad()
            loss_of(model, index).backward()
            if by_hand:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(parameter.grad, alpha=-0.05)
                attachment.step()
            else:
                optimizer.step()
        assert attachment.steps == 5
        runs.append([model.state_dict(), attachment.norms()])
    assert_identical(*runs)


@over_methods
def test_schedules(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model, lr=1e-3)
    attachment = attached(
        tried, model, optimizer, 0.6, schedule=lambda step: 1e6 if step <= 3 else 1.0
    )
    free = small_network()
    train(model, optimizer, 3)
    assert set(attachment.max_norms.values()) == {0.6e6}
    train(free, sgd(free, lr=1e-3), 3)
    assert_identical(model.state_dict(), free.state_dict())
    train(model, optimizer, tried.steps, first=3)
    assert set(attachment.max_norms.values()) == {0.6}
    assert_held(tried, attachment)


@over_methods
def test_finalize_brings_every_layer_within_its_bound(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attached(tried, model, optimizer)
    train(model, optimizer, 3)
    results = attachment.finalize()
    assert list(results) == list(attachment.layers)
    assert max(true_norms(attachment).values()) <= 1.001 * 0.6
    assert attachment.norms() == {name: found.norm_after for name, found in results.items()}
    with pytest.raises(RuntimeError, match="has been removed"):
        attachment.step()
    assert not optimizer._optimizer_step_post_hooks


@over_methods
def test_only_the_content_of_weights_changes(tried: Tried) -> None:
    """Not gradients, buffers, flags, hooks, attributes, nor any random state."""
    model = small_network().train()
    model[1].eval()
    model[7].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    random.seed(1), np.random.seed(1)
    before = state(model)
    attachment = attached(tried, model, optimizer)
    assert_same(before, state(model))
    for index in range(6):
        optimizer.zero_grad()
        loss_of(model, index).backward()
        before, outside = state(model), surroundings()
        optimizer.step()
        after = state(model)
        assert_same(outside, surroundings())
        assert list(before) == list(after)
        changed = {key for key in before if not equal(before[key], after[key])}
        moved = {id(weight) for weight in weights_of(attachment)}
        # The optimizer itself writes into every parameter, by zero: only content counts.
        for key in changed:
            assert before[key][0] == after[key][0], key
            is_weight = before[key][0] in moved
            assert is_weight or equal(before[key][-1], after[key][-1]), key
    assert attachment.steps == 6


@over_methods
def test_weights_within_the_bound_stay_bit_for_bit(tried: Tried) -> None:
    model, bare = small_network(), small_network()
    optimizer = sgd(model)
    attached(tried, model, optimizer, 1e6)
    train(model, optimizer, 8)
    train(bare, sgd(bare), 8)
    assert_identical(model.state_dict(), bare.state_dict())


@over_methods
def test_checkpoints_load_anywhere(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    attached(tried, model, optimizer)
    train(model, optimizer, 3)
    bare = small_network(seed=1)
    assert list(model.state_dict()) == list(bare.state_dict())
    bare.load_state_dict(through_a_file(model.state_dict()))
    assert_identical(model.state_dict(), bare.state_dict())
    assert type(model) is type(bare)
    assert list(optimizer.state_dict()) == list(sgd(bare).state_dict())


@over_methods
def test_removed_attachments_do_nothing(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attached(tried, model, optimizer)
    assert len(optimizer._optimizer_step_post_hooks) == 1
    train(model, optimizer, 2)
    attachment.remove()
    attachment.remove()
    assert not optimizer._optimizer_step_post_hooks
    for use in (attachment.step, attachment.penalty, attachment.state_dict, attachment.finalize):
        with pytest.raises(RuntimeError, match="attach the method again"):
            use()
    bare, other = copy.deepcopy(model), sgd(model)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    free = sgd(bare)
    free.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 2)
    train(bare, free, 2)
    assert attachment.steps == 2
    assert_identical(model.state_dict(), bare.state_dict())
    assert "removed" in repr(attachment)


@over_methods
def test_context_manager(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    with attached(tried, model, optimizer) as attachment:
        train(model, optimizer, 2)
    assert attachment.steps == 2
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(ZeroDivisionError), attached(tried, model, optimizer):
        raise ZeroDivisionError
    assert not optimizer._optimizer_step_post_hooks


@over_methods
def test_a_nan_step_is_reported_and_does_not_stay(tried: Tried) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attached(tried, model, optimizer)
    train(model, optimizer, 2)
    good = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    for weight in weights_of(attachment):
        weight.grad.view(-1)[0] = math.inf
    with pytest.warns(NormWarning):
        optimizer.step()
    with torch.no_grad():  # one more step, with which the running statistics are lost as well
        model(EXAMPLE)
    optimizer.step()
    model.load_state_dict(good[0])
    optimizer.load_state_dict(good[1])
    train(model, optimizer, 6, first=2)
    assert all(math.isfinite(norm) for norm in attachment.norms().values())
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert_known(tried, attachment)


def test_an_attachment_is_not_copied() -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE)
    for copied in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled: attach the method"):
            copied(attachment)


def test_a_model_that_is_converted_afterwards_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer, torch.zeros(1, 4))
    model.double()
    model(torch.ones(1, 4).double()).sum().backward()
    told = r"'0' has become torch\.float64 on cpu, and was torch\.float32.*first, and then attach"
    with pytest.raises(RuntimeError, match=told):
        optimizer.step()
