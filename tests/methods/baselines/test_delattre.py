"""Delattre et al.: the Gram iteration bounds what it is said to bound, and nothing else."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torus_cases import TwoSizes, random_conv, random_linear, step_once
from training_cases import EXAMPLE, assert_identical, loss_of, sgd, small_network, snapshot, train

from oracle import dense_norm, symbols
from spectralclip import NormWarning, attach
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines.delattre import Delattre
from spectralclip.methods.baselines.senderovich import Senderovich

# --- The bound of 2023 ------------------------------------------------------------------------

INSIDE = {
    "3x3": (random_conv(3, 5, 3), (3, 8, 8)),
    "wide in": (random_conv(6, 2, 3), (6, 7, 7)),
    "5x5": (random_conv(4, 4, 5), (4, 6, 9)),
    "one axis": (random_conv(3, 4, 3, axes=1), (3, 11)),
    "three axes": (random_conv(2, 3, 3, axes=3), (2, 4, 3, 5)),
    "dense": (random_linear(9, 12), (9,)),
}


def channels_of(module: Any) -> int:
    return min(module.weight.shape[:2])


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("name", INSIDE)
def test_it_is_above_the_norm_by_no_more_than_the_rank_allows(name: str, iterations: int) -> None:
    module, in_shape = INSIDE[name]
    truth = dense_norm(module, in_shape)
    bound = Delattre.estimate(module, in_shape, iterations=iterations)
    factor = channels_of(module) ** (1 / 2 ** (iterations + 1))
    assert truth * (1 - 1e-6) <= bound <= factor * truth * (1 + 1e-6)


@pytest.mark.parametrize("iterations", [1, 3, 6])
def test_it_is_the_schatten_norm_of_the_worst_symbol(iterations: int) -> None:
    conv = random_conv(4, 3, 3).double()
    values = np.linalg.svd(symbols(conv, (7, 6)).numpy(), compute_uv=False)
    order = 2 ** (iterations + 1)
    expected = ((values**order).sum(-1) ** (1 / order)).max()
    found = Delattre.estimate(conv, (4, 7, 6), iterations=iterations)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_usual_numbers_of_iterations() -> None:
    module, in_shape = INSIDE["3x3"]
    assert Delattre.estimate(module, in_shape) == Delattre.estimate(module, in_shape, iterations=6)
    bounds = {
        t: Delattre.estimate(module, in_shape, padding_form="zeros", iterations=t)
        for t in (None, 4)
    }
    assert bounds[None] == bounds[4]
    assert Delattre() == Delattre("rescale", "circular", None, 0.1)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("form", ["circular", "zeros"])
def test_it_scales_with_the_weights(form: Any, scale: float) -> None:
    conv = random_conv(3, 4, 3)
    before = Delattre.estimate(conv, (3, 6, 6), padding_form=form, iterations=4)
    with torch.no_grad():
        conv.weight.mul_(scale)
    after = Delattre.estimate(conv, (3, 6, 6), padding_form=form, iterations=4)
    assert after / scale == pytest.approx(before, rel=1e-4)


# --- The bound of 2024 ------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_it_bounds_zero_and_circular_padding_at_every_size(padding_mode: str, padding: int) -> None:
    conv = random_conv(3, 4, 3, padding_mode=padding_mode, padding=padding)
    bounds = set()
    for side in (3, 4, 9):
        bounds.add(Delattre.estimate(conv, (3, side, side), padding_form="zeros", iterations=5))
        if padding_mode == "zeros" or padding < 2:  # beyond, the torus is covered more than once
            assert dense_norm(conv, (3, side, side)) <= min(bounds)
    assert len(bounds) == 1


def test_one_and_three_axes() -> None:
    for axes, in_shape in ((1, (3, 7)), (3, (3, 4, 4, 4))):
        conv = random_conv(3, 2, 3, axes=axes, padding_mode="zeros")
        bound = Delattre.estimate(conv, in_shape, padding_form="zeros", iterations=4)
        truth = dense_norm(conv, in_shape)
        assert truth <= bound <= 2 * truth


# --- Outside of its domain --------------------------------------------------------------------


def test_the_circular_form_is_no_bound_for_zero_padding() -> None:
    # See the test of the same kernel for `Sedghi`.
    conv = nn.Conv1d(1, 1, 2, padding=1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[[1.0, -1.0]]]))
    truth = math.sqrt(2 + math.sqrt(2))
    assert Delattre.estimate(conv, (1, 3)) == pytest.approx(math.sqrt(3), rel=1e-6)
    assert Delattre.estimate(conv, (1, 3), padding_form="zeros") > truth


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate"])
def test_neither_is_one_for_borders_that_repeat_the_image(padding_mode: str) -> None:
    conv = random_conv(4, 4, 5, padding_mode=padding_mode)
    truth = dense_norm(conv, (4, 6, 6))
    assert Delattre.estimate(conv, (4, 6, 6)) < 0.95 * truth
    assert Delattre.estimate(conv, (4, 6, 6), padding_form="zeros", iterations=5) < truth


def test_a_stride_is_taken_for_1_which_is_worse_than_the_symbols_of_the_stride() -> None:
    ratios = []
    for seed in range(5):
        conv = random_conv(4, 4, 3, seed=seed, stride=2)
        truth = dense_norm(conv, (4, 8, 8))
        assert Senderovich.estimate(conv, (4, 8, 8)) == pytest.approx(truth, rel=1e-5)
        ratios.append(Delattre.estimate(conv, (4, 8, 8)) / truth)
    assert min(ratios) > 1.1 and np.mean(ratios) > 1.2 and max(ratios) < 1.8


REFUSED = {
    "one group, not 2": (nn.Conv2d(2, 2, 3, groups=2), (2, 8, 8)),
    "without dilation, not (2, 2)": (nn.Conv2d(2, 2, 3, dilation=2), (2, 8, 8)),
    "not ConvTranspose2d": (nn.ConvTranspose2d(2, 2, 3), (2, 8, 8)),
    "larger than the image": (nn.Conv2d(2, 2, 3, padding=1), (2, 2, 8)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_layers_that_it_refuses(why: str) -> None:
    module, in_shape = REFUSED[why]
    with pytest.raises(OutsideDomain, match="Delattre is not defined for") as caught:
        Delattre.estimate(module, in_shape)
    assert why in caught.value.why


def test_the_zero_padding_form_takes_images_smaller_than_the_kernel() -> None:
    conv = random_conv(2, 2, 5, padding_mode="zeros")
    bound = Delattre.estimate(conv, (2, 2, 2), padding_form="zeros", iterations=4)
    assert dense_norm(conv, (2, 2, 2)) <= bound


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        Delattre(iterations=0)
    with pytest.raises(ValueError, match="weight must be a positive finite number, got 0"):
        Delattre(weight=0)
    with pytest.raises(ValueError, match='use must be "rescale" or "penalty", got \'clip\''):
        Delattre(use="clip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='padding_form must be "circular" or "zeros"'):
        Delattre(padding_form="reflect")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='padding_form must be "circular" or "zeros"'):
        Delattre.estimate(nn.Linear(2, 2), (2,), padding_form="same")  # type: ignore[arg-type]


# --- Rescaling --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSIDE)
def test_rescaled_layers_are_within_the_bound(name: str) -> None:
    shape_of, in_shape = INSIDE[name]
    module = random_linear(9, 12)
    if name != "dense":
        sizes = shape_of.in_channels, shape_of.out_channels, shape_of.kernel_size
        module = random_conv(*sizes, axes=len(in_shape) - 1)
    before = module.weight.detach().clone()
    attachment = step_once(Delattre(), module, in_shape, 0.5)
    after = dense_norm(module, in_shape)
    assert 0.5 / channels_of(module) ** (1 / 2**7) * (1 - 1e-5) <= after <= 0.5 * (1 + 1e-5)
    torch.testing.assert_close(module.weight / module.weight.norm(), before / before.norm())
    assert list(attachment.norms().values()) == [0.5]


def test_the_form_for_zero_padding_keeps_the_bound_for_it() -> None:
    conv = random_conv(3, 4, 3, padding_mode="zeros", stride=2)
    step_once(Delattre(padding_form="zeros", iterations=4), conv, (3, 8, 8), 0.5)
    assert 0.25 < dense_norm(conv, (3, 8, 8)) <= 0.5


def test_rescaling_comes_after_each_step_of_training() -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=Delattre(), max_norm={"6": 0.7, "9": 0.6})
    assert min(dense_norm(model[6], (6, 5, 5)), dense_norm(model[9], (150,))) > 0.7
    for step in range(3):
        train(model, optimizer, 1, first=step)
        found = attachment.norms()
        assert dense_norm(model[6], (6, 5, 5)) <= found["6"] * (1 + 1e-5) <= 0.7 * (1 + 2e-5)
        assert dense_norm(model[9], (150,)) <= found["9"] * (1 + 1e-5) <= 0.6 * (1 + 2e-5)
    assert float(attachment.penalty()) == 0.0


def test_a_layer_with_several_input_sizes_is_bounded_at_the_worst() -> None:
    model = TwoSizes()
    attachment = step_once(Delattre(), model, TwoSizes.in_shape, 1.0)
    assert dense_norm(model.conv, (1, 8)) == pytest.approx(1.0, rel=1e-5)
    assert attachment.norms() == {"conv": 1.0}


def test_layers_within_the_bound_and_frozen_ones_stay_bit_for_bit() -> None:
    model = small_network()
    model[6].weight.requires_grad_(False)
    before = snapshot(model)
    attachment = attach(model, None, EXAMPLE, method=Delattre(), max_norm={"0": 50.0, "6": 0.1})
    attachment.step()
    assert_identical(model.state_dict(), before)
    assert attachment.norms() == {"0": Delattre.estimate(model[0], (1, 10, 10))}


def test_weights_that_are_not_finite_are_reported_once_and_come_back() -> None:
    layer = random_linear(4, 4)
    good = layer.weight.detach().clone()
    attachment = attach(layer, None, torch.zeros(1, 4), method=Delattre(), max_norm=0.1)
    for value in (math.nan, math.inf, torch.finfo(torch.float32).max):
        with torch.no_grad():
            layer.weight[0] = value
        with pytest.warns(NormWarning, match="Delattre on layer .* NaN, infinite"):
            attachment.step()
        attachment.step()
        assert layer.weight.detach()[1:].equal(good[1:])
        with torch.no_grad():
            layer.weight.copy_(good)
        attachment.step()
        assert dense_norm(layer, (4,)) == pytest.approx(0.1, rel=0.02)
        with torch.no_grad():
            layer.weight.copy_(good)


def test_half_precision() -> None:
    conv = random_conv(3, 3, 3).bfloat16()
    bound = Delattre.estimate(conv, (3, 6, 6))
    assert dense_norm(conv, (3, 6, 6)) == pytest.approx(bound, rel=0.02)
    step_once(Delattre(), conv, (3, 6, 6), 1.0)
    assert conv.weight.dtype == torch.bfloat16
    assert dense_norm(conv, (3, 6, 6)) < 1.01


# --- The penalty ------------------------------------------------------------------------------


def test_the_penalty_is_a_tenth_of_the_sum_of_the_bounds_above() -> None:
    model = small_network()
    bounds = {
        name: Delattre.estimate(model[int(name)], shape)
        for name, shape in {
            "0": (1, 10, 10),
            "3": (4, 10, 10),
            "6": (6, 5, 5),
            "9": (150,),
        }.items()
    }
    target = sorted(bounds.values())[1]  # two are above
    method = Delattre(use="penalty")
    attachment = attach(model, None, EXAMPLE, method=method, max_norm=target * 1.0001)
    expected = 0.1 * sum(sorted(bounds.values())[2:])
    penalty = attachment.penalty()
    assert float(penalty.detach()) == pytest.approx(expected, rel=1e-5)
    penalty.backward()
    above = {name for name, bound in bounds.items() if bound > target * 1.0001}
    with_gradient = {n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == above
    attachment.step()
    assert attachment.norms() == pytest.approx(bounds)


def test_the_penalty_lowers_norms_in_training_and_moves_nothing_itself() -> None:
    def trained(penalize: bool) -> float:
        model = small_network()
        optimizer = sgd(model, lr=0.02)
        method = Delattre(use="penalty", weight=1.0)
        with attach(model, optimizer, EXAMPLE, method=method, max_norm=0.5) as attachment:
            for index in range(15):
                optimizer.zero_grad()
                penalty = attachment.penalty()
                (loss_of(model, index) + penalty * float(penalize)).backward()
                optimizer.step()
        return sum(dense_norm(model[n], s) for n, s in ((6, (6, 5, 5)), (9, (150,))))

    assert trained(True) < 0.8 * trained(False)


def test_frozen_layers_and_layers_within_their_bound_are_not_penalized() -> None:
    model = nn.Sequential(random_linear(4, 4), random_linear(4, 4, seed=1))
    model[0].weight.requires_grad_(False)
    attachment = attach(
        model, None, torch.zeros(1, 4), method=Delattre(use="penalty"), max_norm=0.1
    )
    expected = 0.1 * Delattre.estimate(model[1], (4,))
    assert float(attachment.penalty().detach()) == pytest.approx(expected, rel=1e-6)
    calm = attach(model, None, torch.zeros(1, 4), method=Delattre(use="penalty"), max_norm=50.0)
    assert float(calm.penalty()) == 0.0


def test_a_schedule_moves_the_targets_of_the_penalty() -> None:
    layer = random_linear(4, 4)
    options: dict[str, Any] = {"max_norm": 0.1, "schedule": lambda step: 1.0 if step < 1 else 1e3}
    attachment = attach(layer, None, torch.zeros(1, 4), method=Delattre(use="penalty"), **options)
    assert float(attachment.penalty().detach()) > 0
    attachment.step()
    assert float(attachment.penalty()) == 0
    again = attach(layer, None, torch.zeros(1, 4), method=Delattre(use="penalty"), **options)
    again.load_state_dict(attachment.state_dict())
    assert float(again.penalty()) == 0


def test_a_penalty_that_nobody_asks_for_is_reported_once() -> None:
    layer = random_linear(4, 4)
    attachment = attach(layer, None, torch.zeros(1, 4), method=Delattre(use="penalty"))
    before = layer.weight.detach().clone()
    with pytest.warns(NormWarning, match=r"add attachment\.penalty\(\) to the loss"):
        attachment.step()
    attachment.step()
    assert torch.equal(layer.weight, before)


def test_the_penalty_is_in_full_precision_under_autocast() -> None:
    layer = random_linear(16, 16)
    attachment = attach(layer, None, torch.zeros(1, 16), method=Delattre(use="penalty"))
    plain = float(attachment.penalty().detach())
    with torch.autocast("cpu", torch.bfloat16):
        assert float(attachment.penalty().detach()) == plain


def test_every_process_needs_the_whole_penalty() -> None:
    assert Delattre().divides
    assert not Delattre(use="penalty").divides


@pytest.mark.parametrize("method", [Delattre(), Delattre(use="penalty")])
def test_a_run_goes_on_exactly_after_saving_and_loading(method: Delattre) -> None:
    def steps(model: nn.Module, optimizer: Any, attachment: Any, first: int, last: int) -> None:
        for index in range(first, last):
            optimizer.zero_grad()
            (loss_of(model, index) + attachment.penalty()).backward()
            optimizer.step()

    def begun(seed: int) -> tuple[nn.Module, Any, Any]:
        model = small_network(seed)
        optimizer = sgd(model)
        return model, optimizer, attach(model, optimizer, EXAMPLE, method=method, max_norm=0.5)

    model, optimizer, attachment = begun(0)
    steps(model, optimizer, attachment, 0, 3)
    saved = attachment.state_dict(), snapshot(model), copy.deepcopy(optimizer.state_dict())
    other, again, resumed = begun(1)
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    again.load_state_dict(saved[2])
    assert resumed.norms() == attachment.norms()
    steps(model, optimizer, attachment, 3, 5)
    steps(other, again, resumed, 3, 5)
    assert_identical(snapshot(other), snapshot(model))
    assert resumed.norms() == attachment.norms()


def test_the_norm_of_a_layer_that_was_frozen_meanwhile_is_remembered() -> None:
    layer = random_linear(4, 4)
    options: dict[str, Any] = {"example_inputs": torch.zeros(1, 4), "max_norm": 0.5}
    attachment = attach(layer, None, method=Delattre(), **options)
    attachment.step()
    layer.weight.requires_grad_(False)
    again = attach(layer, None, method=Delattre(), **options)
    again.load_state_dict(attachment.state_dict())
    again.step()
    assert again.norms() == attachment.norms() != {}


@pytest.mark.parametrize("form", ["circular", "zeros"])
def test_shapes_that_make_no_sense_are_named(form: Any) -> None:
    conv = nn.Conv2d(2, 3, 3)
    for shape in (6, (), (3, 6, 6), (2, 6)):
        with pytest.raises(ValueError, match=r"in_shape must be \(2, \*sides\) with 2 sides"):
            Delattre.estimate(conv, shape, padding_form=form)
