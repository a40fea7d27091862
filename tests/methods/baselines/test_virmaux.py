"""Virmaux: the power method through autograd, with deflation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from cases import LowRank, Residual, cumulative_sum, train_batch_norm
from power_cases import PADDINGS
from spectrum_cases import UNCONVERGED
from torch import nn
from training_cases import (
    EXAMPLE,
    assert_identical,
    sgd,
    small_network,
    snapshot,
    train,
    true_norms,
)

from oracle import singular_values
from spectralclip import NormWarning, attach
from spectralclip.methods import virmaux_svds
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines.virmaux import Virmaux


def normed() -> list[nn.Module]:
    norm = nn.BatchNorm2d(4)
    train_batch_norm(norm)
    return [nn.Conv2d(3, 4, 3, padding=1), norm]


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (lambda: nn.Linear(9, 7), (9,)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (3, 11)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (3, 5, 5)),
    "low-rank": (lambda: LowRank(8, 3, 6), (8,)),
    "residual": (lambda: Residual(nn.Conv2d(3, 3, 3, padding=1)), (3, 5, 5)),
    "function": (lambda: cumulative_sum, (12,)),
    "conv-bn": (normed, (3, 6, 6)),
}


# --- Singular values ------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("mode", PADDINGS)
def test_the_estimate_is_the_true_norm_for_every_padding(mode: str, stride: int) -> None:
    layer = nn.Conv2d(4, 6, 3, stride=stride, padding=1, padding_mode=mode)
    estimate = Virmaux.estimate(layer, (4, 9, 8))
    assert estimate == pytest.approx(singular_values(layer, (4, 9, 8))[0], rel=1e-3)


@pytest.mark.parametrize("name", LAYERS)
def test_any_affine_layer(name: str) -> None:
    make, in_shape = LAYERS[name]
    layer = make()
    assert Virmaux.estimate(layer, in_shape) == pytest.approx(
        singular_values(layer, in_shape)[0], rel=1e-3
    )


# --- Errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Tanh())])
def test_what_is_not_affine_is_refused(layer: nn.Module) -> None:
    with pytest.raises(OutsideDomain, match=r"Virmaux is not defined for .* affine"):
        Virmaux.estimate(layer, (4,))


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="has 3 singular values, got k = 4"):
        virmaux_svds(nn.Linear(5, 3), (5,), 4)
    with pytest.raises(ValueError, match="k must be at least 1"):
        virmaux_svds(nn.Linear(5, 3), (5,), 0)
    with pytest.raises(ValueError, match="tol must be"):
        virmaux_svds(nn.Linear(5, 3), (5,), tol=0.0)
    with pytest.raises(ValueError, match="every must be at least 1"):
        Virmaux(every=0)


@UNCONVERGED
def test_the_estimate_depends_on_the_generator_alone() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1)

    def few(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        return Virmaux.estimate(layer, (4, 8, 8), generator=generator, power_iterations=2)

    before = torch.get_rng_state()
    assert few(1) == few(1) != few(2)
    assert torch.equal(torch.get_rng_state(), before)


# --- Watching a training --------------------------------------------------------------------


def test_it_watches_and_moves_nothing() -> None:
    watched, free = small_network(), small_network()
    optimizer = sgd(watched)
    attachment = attach(watched, optimizer, EXAMPLE, method=Virmaux(every=4), max_norm=0.1)
    train(watched, optimizer, 3)
    assert attachment.norms() == {} and attachment.num_matvecs == 0
    train(watched, optimizer, 1, first=3)
    norms = attachment.norms()
    assert list(norms) == ["0", "3", "6", "9"]
    for name, norm in true_norms(attachment).items():
        assert norms[name] == pytest.approx(norm, rel=1e-3), name
    train(free, sgd(free), 4)
    assert_identical(snapshot(watched), snapshot(free))


def test_a_second_look_begins_at_the_first() -> None:
    model = small_network()
    attachment = attach(model, None, EXAMPLE, method=Virmaux(every=1, tol=1e-4))
    attachment.step()
    first = attachment.num_matvecs
    attachment.step()
    assert attachment.num_matvecs - first < first / 10


def test_a_resumed_run_is_the_same_run() -> None:
    model, method = small_network(), Virmaux(every=1, power_iterations=3)
    first = attach(model, None, EXAMPLE, method=method)
    first.step()
    second = attach(model, None, EXAMPLE, method=method, seed=4)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    first.step(), second.step()
    assert_identical(first.state_dict(), second.state_dict())


def test_weights_that_are_not_finite_are_reported_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    attachment = attach(model, None, torch.zeros(1, 4), method=Virmaux(every=1))
    attachment.step()
    good = attachment.norms()["0"]
    bad = model[0].weight.detach().clone()
    model[0].weight.data[0, 0] = float("nan")
    with pytest.warns(NormWarning, match="Virmaux on layer '0'.*NaN"):
        attachment.step()
    attachment.step()
    assert np.isnan(attachment.norms()["0"])
    model[0].weight.data.copy_(bad)
    attachment.step()
    assert attachment.norms()["0"] == pytest.approx(good, rel=1e-4)


def test_what_is_not_affine_is_to_be_left_out() -> None:
    """Another method would not take it either."""
    with pytest.raises(OutsideDomain) as caught:
        Virmaux.estimate(nn.ReLU(), (3,))
    text = str(caught.value)
    assert text.startswith("Virmaux is not defined for ReLU(): it takes affine layers. ReLU() is")
    assert text.endswith("Leave it out.")
    assert ".." not in text and "SpectralClip" not in text
