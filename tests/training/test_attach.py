"""An attachment beside the optimizer, with any method: what users do while they train."""

from __future__ import annotations

import copy
import importlib.util
import io
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
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

from oracle import dense_norm
from spectralclip import (
    Attachment,
    FoundLayer,
    Method,
    MethodState,
    NormWarning,
    attach,
    find_layers,
)
from spectralclip._training.distributed.sharing import Sharing
from spectralclip.methods import (
    AOL,
    LOT,
    ClipBatchNorm,
    Farnia,
    FastClip,
    Gouk,
    Miyato,
    Parametrize,
    SpectralClip,
)


@dataclass(frozen=True)
class Tried:
    """A method, and how it keeps layers that training hardly moves.

    Attributes:
        make: Makes it.
        margin: How many times the bound the norm may be.
        lag: By which part of the norm the tracked one may be too small.
        steps: How many steps it takes to get there.
        parts: How many modules of a layer are held by that time.
    """

    make: Callable[[], Method]
    margin: float
    lag: float
    steps: int
    parts: int = 2


def spectral_clip(**settings: Any) -> Method:
    from spectralclip._training.spectral_clip import SpectralClip

    return SpectralClip(**settings)


TRIED = {
    "FastClip": Tried(lambda: FastClip(lr=0.1, inner_steps=3, every=2), 1.25, 0.3, 44),
    # Compositions take hundreds of rounds.
    "FastClip-concat": Tried(
        lambda: FastClip(lr=0.1, every=2, concat=True, concat_lr=1e-3, concat_every=3),
        1.25,
        0.5,
        44,
        1,
    ),
    "ClipBatchNorm": Tried(ClipBatchNorm, 1 + 1e-6, 1e-6, 4),
    "SpectralClip": Tried(spectral_clip, 1.01, 0.05, 12),
    "SpectralClip-composed": Tried(lambda: spectral_clip(compose="conv_bn"), 1.03, 0.05, 12),
}
HAS_OURS = importlib.util.find_spec("spectralclip._training.spectral_clip") is not None
needs_ours = pytest.mark.skipif(not HAS_OURS, reason="SpectralClip is not there")
# Its rounds on compositions are unstable now and then, and say so.
undone = pytest.mark.filterwarnings("ignore:FastClip on layer .* was undone")
MARKS = {
    "FastClip-concat": [undone],
    "SpectralClip": [needs_ours],
    "SpectralClip-composed": [needs_ours],
}
over_methods = pytest.mark.parametrize(
    "tried",
    [pytest.param(each, id=name, marks=MARKS.get(name, ())) for name, each in TRIED.items()],
)

OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "SGD": sgd,
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01),
}
over_optimizers = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def attached(
    tried: Tried, model: nn.Module, optimizer: Any, max_norm: Any = 0.6, **settings: Any
) -> Attachment:
    return attach(model, optimizer, EXAMPLE, method=tried.make(), max_norm=max_norm, **settings)


def weights_of(attachment: Attachment) -> list[Tensor]:
    """The weights that the attached method may move."""
    return [
        parameter
        for layer in attachment.layers.values()
        for module in layer.modules
        for name, parameter in module.named_parameters()
        if not name.endswith("bias")
    ]


def assert_held(tried: Tried, attachment: Attachment) -> None:
    for name, layer in attachment.layers.items():
        norm = dense_norm(layer.modules[: tried.parts], layer.in_shapes[0])
        assert norm <= tried.margin * attachment.max_norms[name], name


def assert_known(tried: Tried, attachment: Attachment) -> None:
    """Tracked norms are not far off, and hardly ever too large."""
    for name, norm in true_norms(attachment).items():
        assert (1 - tried.lag) * norm <= attachment.norms()[name] <= 1.05 * norm, name


def through_a_file(content: Any) -> Any:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# --- The run goes on -------------------------------------------------------------------------


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
def test_states_that_do_not_fit_are_refused(tried: Tried) -> None:
    model = small_network()
    attachment = attached(tried, model, sgd(model))
    saved = attachment.state_dict()
    with pytest.raises(ValueError, match="This state is of 'Other'"):
        attachment.load_state_dict({**saved, "method": "Other"})
    with pytest.raises(ValueError, match=r"speaks of the layers \['there'\]"):
        attachment.load_state_dict({**saved, "layers": {"there": []}})


# --- Beside other things that people do ------------------------------------------------------


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


def test_two_methods_beside_each_other() -> None:
    model = small_network()
    optimizer = sgd(model, lr=1e-3)
    first = attached(TRIED["FastClip"], model, optimizer, 0.6)
    second = attached(TRIED["ClipBatchNorm"], model, optimizer, 0.9)
    assert not set(first.layers) & set(second.layers)
    train(model, optimizer, TRIED["FastClip"].steps)
    assert_held(TRIED["FastClip"], first)
    assert_held(TRIED["ClipBatchNorm"], second)


# --- Which layers ----------------------------------------------------------------------------


def small_dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))


RIVALS = [
    (SpectralClip, Miyato),
    (SpectralClip, Parametrize),
    (Gouk, Parametrize),
    (LOT, SpectralClip),
    (LOT, Parametrize),
    (AOL, Parametrize),
    (Miyato, Gouk),
    (Parametrize, Parametrize),
]
LEFT_ALONE = [(LOT, Parametrize), (AOL, Parametrize), (Miyato, Gouk), (Parametrize, Parametrize)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("first", "second"), RIVALS)
def test_two_methods_on_one_layer(first: Any, second: Any) -> None:
    """Refused where one of them computes with another weight; nothing has changed by then."""
    model, example = small_dense(), torch.ones(2, 6)
    optimizer = sgd(model)
    held = attach(model, optimizer, example, method=first(), max_norm={"0": 0.5})
    before, hooks = snapshot(model), len(optimizer._optimizer_step_post_hooks)
    names = f"Layer '0' is held by {first.__name__}, and {second.__name__} cannot be attached"
    if (first, second) in LEFT_ALONE:  # outside of the domain of the second, which has the rest
        other = attach(model, optimizer, example, method=second(), max_norm=100.0)
        assert list(other.layers) == ["2"]
        other.remove()
        with pytest.raises(ValueError, match=names):
            attach(nn.Sequential(model[0]), optimizer, example, method=second())
    else:
        with pytest.raises(ValueError, match=names):
            attach(model, optimizer, example, method=second())
    assert_identical(snapshot(model), before)
    assert len(optimizer._optimizer_step_post_hooks) == hooks
    model(example).square().mean().backward()
    optimizer.step()
    other = attach(model, optimizer, example, method=second(), max_norm={"2": 0.5})
    held.remove()
    attach(model, optimizer, example, method=second(), max_norm={"0": 0.5}).remove()
    other.remove()
    assert list(model.state_dict()) == list(small_dense().state_dict())


def test_two_methods_that_project_may_have_the_same_layer() -> None:
    model = small_dense()
    first = attach(model, None, torch.ones(2, 6), method=SpectralClip(), max_norm=0.5)
    second = attach(model, None, torch.ones(2, 6), method=Gouk(power_iterations=50), max_norm=0.4)
    first.step(), second.step()
    assert dense_norm([model[0]], (6,)) <= 0.41


def test_attachments_that_are_forgotten_are_in_nobodys_way() -> None:
    model, example = small_dense(), torch.ones(2, 6)
    attach(model, sgd(model), example, method=SpectralClip())
    attach(model, sgd(model), example, method=Miyato()).remove()


@pytest.mark.parametrize("make", [Farnia, Gouk, FastClip, SpectralClip, Parametrize])
def test_a_layer_that_is_not_finite_at_the_start_is_named(make: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Conv1d(3, 3, 3, padding=1))
    with torch.no_grad():
        model[2].weight[0, 0, 0] = math.nan
    before = snapshot(model)
    with pytest.raises(ValueError, match=rf"{make.__name__} cannot start on layer '2': its 'weigh"):
        attach(model, None, torch.zeros(1, 3, 4), method=make())
    assert list(model.state_dict()) == list(before)
    assert list(
        attach(model, None, torch.zeros(1, 3, 4), method=make(), max_norm={"0": 1.0}).layers
    ) == ["0"]


@over_methods
def test_layers_are_held(tried: Tried) -> None:
    """Training moves them little here, so that what is left is the method's doing."""
    model = small_network()
    optimizer = sgd(model, lr=1e-3)
    attachment = attached(tried, model, optimizer)
    assert max(true_norms(attachment).values()) > 1.4 * 0.6
    train(model, optimizer, tried.steps)
    assert_held(tried, attachment)
    assert_known(tried, attachment)


@over_methods
def test_parameter_groups(tried: Tried) -> None:
    """Each with its own learning rate; what is in none is left alone, bit for bit."""
    model = small_network()
    groups = [
        {"params": model[0].parameters(), "lr": 1e-3},
        {"params": model[1].parameters(), "lr": 0.0},
        {"params": [*model[6].parameters(), *model[9].parameters()], "lr": 2e-3},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    with pytest.warns(NormWarning, match="are not held: .* not among the parameters of SGD"):
        attachment = attached(tried, model, optimizer)
    left_out = [copy.deepcopy(model[3].state_dict()), model[4].weight.detach().clone()]
    train(model, optimizer, tried.steps)
    assert_identical([model[3].state_dict(), model[4].weight.detach()], left_out)
    assert len(attachment.layers) > 0 and list(attachment.max_norms) == list(attachment.layers)
    assert set(attachment.uncovered) == set(attachment.found) - set(attachment.layers) != set()
    for layer in attachment.layers.values():
        assert dense_norm(layer.modules[: tried.parts], layer.in_shapes[0]) <= tried.margin * 0.6


@over_methods
def test_frozen_layers_stay_until_they_are_freed(tried: Tried) -> None:
    model = small_network()
    for parameter in model[:6].parameters():
        parameter.requires_grad_(False)
    model[0].eval(), model[1].eval(), model[3].eval(), model[4].eval()
    optimizer = sgd(model, lr=1e-3)
    attachment = attached(tried, model, optimizer)
    assert set(attachment.uncovered.values()) == {"frozen"}
    before = snapshot(model[:6])
    train(model, optimizer, 6)
    assert_identical(model[:6].state_dict(), before)
    for parameter in model[:6].parameters():
        parameter.requires_grad_(True)
    train(model, optimizer, tried.steps, first=6)
    assert_held(tried, attachment)


@over_methods
def test_parameters_added_later(tried: Tried) -> None:
    model = small_network()
    optimizer = torch.optim.SGD([{"params": model[9].parameters(), "lr": 1e-3}])
    with pytest.warns(NormWarning, match="are not held"):
        attachment = attached(tried, model, optimizer)
    before = [parameter.detach().clone() for parameter in model[:7].parameters()]
    train(model, optimizer, 6)
    assert_identical([p.detach() for p in model[:7].parameters()], before)
    optimizer.add_param_group({"params": model[:7].parameters(), "lr": 1e-3})
    train(model, optimizer, tried.steps, first=6)
    assert not attachment.uncovered
    assert_held(tried, attachment)


@pytest.mark.sampled(4)
@over_methods
def test_targets_by_name_and_by_function(tried: Tried) -> None:
    model = small_network()
    names = list(attached(tried, model, None).layers)
    chosen, other = names[0], names[1]
    optimizer = sgd(model, lr=1e-3)
    by_name = attached(tried, model, optimizer, {chosen: 0.6})
    assert list(by_name.layers) == [chosen]
    assert by_name.max_norms == {chosen: 0.6}
    train(model, optimizer, tried.steps)
    assert_held(tried, by_name)

    def wish(name: str, layer: FoundLayer) -> float | None:
        assert layer.name == name
        return {chosen: 0.6, other: 0.7}.get(name)

    model = small_network()
    optimizer = sgd(model, lr=1e-3)
    by_function = attached(tried, model, optimizer, wish)
    assert by_function.max_norms == {chosen: 0.6, other: 0.7}
    train(model, optimizer, tried.steps)
    assert_held(tried, by_function)


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


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_schedules_that_make_no_sense(factor: float) -> None:
    model = small_network()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match=r"schedule\(0\) must be a positive number"):
        attached(TRIED["FastClip"], model, optimizer, schedule=lambda step: factor)
    attached(TRIED["FastClip"], model, optimizer, schedule=lambda step: factor if step else 1.0)
    loss_of(model, 0).backward()
    with pytest.raises(ValueError, match=r"schedule\(1\) must be a positive number"):
        optimizer.step()


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


# --- Nothing else changes --------------------------------------------------------------------


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


# --- The end ---------------------------------------------------------------------------------


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


# --- Accidents -------------------------------------------------------------------------------


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


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf, "1"])
def test_bounds_that_make_no_sense(bound: Any) -> None:
    model = small_network()
    optimizer = sgd(model)
    for wish in (bound, {"0": bound}, lambda name, layer: bound):
        with pytest.raises(ValueError, match=r"max_norm( of layer '0')? must be a positive"):
            attach(model, optimizer, EXAMPLE, method=FastClip(), max_norm=wish)
    assert not optimizer._optimizer_step_post_hooks


def test_bad_requests() -> None:
    model = small_network()
    with pytest.raises(TypeError, match=r"method must be a Method such as SpectralClip\(\)"):
        attach(model, None, EXAMPLE, method="fast_clip")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="method must be a Method"):
        attach(model, None, EXAMPLE, method=FastClip)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"max_norm names \['nowhere'\], which are not among"):
        attach(model, None, EXAMPLE, method=FastClip(), max_norm={"nowhere": 1.0})
    with pytest.raises(ValueError, match="FastClip found no layer to take care of"):
        attach(nn.Sequential(nn.ReLU()), None, EXAMPLE, method=FastClip())
    with pytest.raises(ValueError, match=r"ClipBatchNorm found no layer .* among \['0'\]"):
        attach(nn.Sequential(nn.Conv2d(1, 2, 3)), None, EXAMPLE, method=ClipBatchNorm())
    with pytest.raises(ValueError, match="found no layer"):
        attach(model, None, EXAMPLE, method=FastClip(), max_norm=lambda name, layer: None)


# --- One loop for all kinds of methods -------------------------------------------------------


class Penalizing(Method):
    """Adds to the loss what is above the bound."""

    def takes(self, layer: FoundLayer) -> bool:
        return isinstance(layer.modules[0], nn.Linear)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return _Penalties(sharing.mine(), bounds)


class _Penalties(MethodState):
    def __init__(self, layers: Mapping[str, FoundLayer], bounds: Mapping[str, float]) -> None:
        self._weights = {name: layer.modules[0].weight for name, layer in layers.items()}
        self._bounds = dict(bounds)

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        self._bounds = dict(bounds)

    def penalty(self) -> Tensor:
        excess = [
            (torch.linalg.svdvals(self._weights[name]) - bound).relu().sum()
            for name, bound in self._bounds.items()
        ]
        return 10 * torch.stack(excess).sum()

    def norms(self) -> dict[str, float]:
        return {
            name: float(torch.linalg.matrix_norm(weight.detach(), 2))
            for name, weight in self._weights.items()
        }


class _Divided(nn.Module):
    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.bound / torch.linalg.matrix_norm(weight, 2)).clamp(max=1.0)


class Dividing(Method):
    """Computes each dense weight from another one."""

    def takes(self, layer: FoundLayer) -> bool:
        return isinstance(layer.modules[0], nn.Linear)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return _Divisions(sharing.mine(), bounds)


class _Divisions(MethodState):
    def __init__(self, layers: Mapping[str, FoundLayer], bounds: Mapping[str, float]) -> None:
        self._modules = {name: layer.modules[0] for name, layer in layers.items()}
        for name, module in self._modules.items():
            parametrize.register_parametrization(module, "weight", _Divided(bounds[name]))

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        pass

    def norms(self) -> dict[str, float]:
        return {
            name: float(torch.linalg.matrix_norm(module.weight.detach(), 2))
            for name, module in self._modules.items()
        }

    def stop(self) -> None:
        for module in self._modules.values():
            if parametrize.is_parametrized(module):
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


KINDS: dict[str, Callable[[], Method]] = {
    "projects": lambda: FastClip(lr=1.0, every=1),
    "penalizes": Penalizing,
    "reparametrizes": Dividing,
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_one_loop_carries_every_kind_of_method(make: Callable[[], Method]) -> None:
    model = small_network()
    keys, dense = sorted(model.state_dict()), model[9]
    bound = 0.6 * dense_norm([dense], (150,))
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3)
    attachment = attach(model, optimizer, EXAMPLE, method=make(), max_norm={"9": bound})
    for index in range(40):
        optimizer.zero_grad()
        (loss_of(model, index) + attachment.penalty()).backward()
        optimizer.step()
    assert 0.8 * bound < attachment.norms()["9"] < 1.06 * bound
    before = dense.weight.detach().clone()
    attachment.remove()
    assert sorted(model.state_dict()) == keys
    assert type(dense) is nn.Linear
    assert isinstance(dense.weight, nn.Parameter)
    torch.testing.assert_close(dense.weight.detach(), before)
    assert 0.8 * bound < dense_norm([dense], (150,)) < 1.2 * bound
    train(model, optimizer, 1)
    assert not torch.equal(dense.weight, before)


@over_methods
def test_no_penalty_changes_no_loss(tried: Tried) -> None:
    model = small_network()
    attachment = attached(tried, model, sgd(model))
    penalty = attachment.penalty()
    assert penalty.shape == ()
    assert float(penalty) == 0
    loss = loss_of(model, 0)
    assert torch.equal(loss + penalty, loss)


@pytest.mark.parametrize("make", [Penalizing, Dividing])
def test_methods_without_state_of_their_own_resume_too(make: Callable[[], Method]) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=make())
    train(model, optimizer, 2)
    again = attach(small_network(), None, EXAMPLE, method=make())
    again.load_state_dict(through_a_file(attachment.state_dict()))
    assert again.steps == 2
    assert again.norms() == attachment.norms()


def test_finalize_of_a_reparametrized_model() -> None:
    model = small_network()
    attachment = attach(model, sgd(model), EXAMPLE, method=Dividing(), max_norm=0.3)
    assert attachment.finalize()["9"].norm_after <= 0.3003
    assert sorted(model.state_dict()) == sorted(small_network().state_dict())
    assert list(find_layers(model, EXAMPLE)) == list(find_layers(small_network(), EXAMPLE))
