"""Senderovich et al.: exact on the torus with strides, and the tensor train."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torus_cases import clipped_by_matrix, random_conv, random_linear, step_once
from training_cases import EXAMPLE, assert_identical, small_network, snapshot

from oracle import dense_norm, singular_values
from spectralclip import attach
from spectralclip.methods._domain import OutsideDomain
from spectralclip.methods.baselines._circulant import Torus
from spectralclip.methods.baselines.sedghi import Sedghi
from spectralclip.methods.baselines.senderovich import Senderovich, tensor_train

# --- Inside the domain: exact -----------------------------------------------------------------

EXACT = {
    "stride 1": (random_conv(3, 5, 3), (3, 8, 8)),
    "stride 2": (random_conv(3, 5, 3, stride=2), (3, 8, 8)),
    "stride 2, wide in": (random_conv(5, 2, 3, stride=2), (5, 6, 6)),
    "stride 2, 5x5": (random_conv(3, 4, 5, stride=2), (3, 8, 8)),
    "stride 2, 1x1": (random_conv(3, 4, 1, stride=2), (3, 8, 8)),
    "stride 3": (random_conv(2, 4, 3, stride=3), (2, 9, 9)),
    "stride 3, 5x5": (random_conv(3, 3, 5, stride=3), (3, 9, 6)),
    "strides 2 and 1": (random_conv(3, 4, 3, stride=(2, 1)), (3, 8, 5)),
    "strides 1 and 3": (random_conv(3, 4, (3, 5), stride=(1, 3)), (3, 5, 9)),
    "one axis": (random_conv(3, 4, 5, axes=1, stride=2), (3, 12)),
    "three axes": (random_conv(2, 3, 3, axes=3, stride=(2, 1, 2)), (2, 4, 3, 6)),
    "dense": (random_linear(9, 7), (9,)),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_estimate_is_exact_for_circular_padding(name: str) -> None:
    module, in_shape = EXACT[name]
    truth = dense_norm(module, in_shape)
    assert Senderovich.estimate(module, in_shape) == pytest.approx(truth, rel=1e-5)


def test_with_stride_1_it_is_that_of_sedghi() -> None:
    first, second = random_conv(4, 3, 3), random_conv(4, 3, 3)
    step_once(Senderovich(every=1), first, (4, 7, 7), 3.0)
    step_once(Sedghi(every=1), second, (4, 7, 7), 3.0)
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, random_conv(4, 3, 3).weight)


@pytest.mark.parametrize("name", [name for name in EXACT if name != "dense"])
def test_clipping_is_that_of_the_matrix_cut_down_to_the_taps(name: str) -> None:
    module, in_shape = EXACT[name]
    options = {"axes": len(in_shape) - 1, "stride": module.stride}
    conv = random_conv(module.in_channels, module.out_channels, module.kernel_size, **options)
    bound = 0.6 * dense_norm(conv, in_shape)
    expected = clipped_by_matrix(conv, in_shape, bound)
    step_once(Senderovich(every=1), conv, in_shape, bound)
    np.testing.assert_allclose(conv.weight.detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "in_shape"),
    [
        (random_linear(9, 7), (9,)),
        (random_conv(3, 4, 2, stride=2, padding=0), (3, 8, 8)),
        (random_conv(3, 4, 2, stride=2, padding=0, padding_mode="zeros"), (3, 7, 7)),
        (random_conv(3, 4, 1, stride=2, padding_mode="zeros"), (3, 8, 8)),
    ],
    ids=["dense", "2x2", "2x2 on an odd image", "1x1"],
)
def test_where_windows_do_not_overlap_the_bound_is_met(
    module: nn.Module, in_shape: tuple[int, ...]
) -> None:
    bound = 0.5 * dense_norm(module, in_shape)
    step_once(Senderovich(every=1), module, in_shape, bound)
    assert dense_norm(module, in_shape) == pytest.approx(bound, rel=1e-5)


# --- The known failures -----------------------------------------------------------------------


def test_cutting_down_leaves_the_norm_above_the_bound() -> None:
    ratios = []
    for seed in range(4):
        conv = random_conv(6, 6, 3, seed=seed, stride=2)
        bound = 0.5 * dense_norm(conv, (6, 8, 8))
        attachment = step_once(Senderovich(every=1), conv, (6, 8, 8), bound)
        after = dense_norm(conv, (6, 8, 8))
        assert list(attachment.norms().values()) == [pytest.approx(after, rel=1e-5)]
        ratios.append(after / bound)
    assert min(ratios) > 1.1 and max(ratios) < 1.4


@pytest.mark.parametrize(
    ("padding_mode", "sign"), [("zeros", 1), ("reflect", -1), ("replicate", -1)]
)
def test_the_error_for_other_paddings_grows_with_the_channels(padding_mode: str, sign: int) -> None:
    errors = []
    for channels in (1, 2, 6):
        of_one = []
        for seed in range(6):
            options = {"stride": 2, "padding_mode": padding_mode}
            conv = random_conv(channels, channels, 5, seed=seed, **options)
            in_shape = (channels, 8, 8)
            of_one.append(Senderovich.estimate(conv, in_shape) - dense_norm(conv, in_shape))
        errors.append(sign * float(np.mean(of_one)))
    assert 0.05 < errors[0] < errors[1] < errors[2]


def test_sides_that_the_stride_does_not_divide_are_rounded_up() -> None:
    conv = random_conv(2, 3, 3, stride=2)
    assert Torus.of(conv, (2, 7, 8)) == Torus((8, 8), (2, 2))
    assert Senderovich.estimate(conv, (2, 7, 7)) == Senderovich.estimate(conv, (2, 8, 8))


# --- The tensor train -------------------------------------------------------------------------


def tails(kernel: np.ndarray, rank: int) -> list[float]:
    """What no kernel of this rank reaches, for output and for input channels: squared."""
    found = []
    for axis in (0, 1):
        values = np.linalg.svd(np.moveaxis(kernel, axis, 0).reshape(kernel.shape[axis], -1))[1]
        found.append(float((values[rank:] ** 2).sum()))
    return found


@pytest.mark.parametrize("rank", [1, 2, 4, 5, 9])
def test_cores_have_orthonormal_frames_and_the_error_is_near_the_best(rank: int) -> None:
    kernel = random_conv(7, 5, 3).weight.detach().double()
    left, core, right = tensor_train(kernel, rank)
    assert core.shape == (min(rank, 5), min(rank, 7), 3, 3)
    for frame in (left, right):
        np.testing.assert_allclose((frame.T @ frame).numpy(), np.eye(frame.shape[1]), atol=1e-12)
    together = torch.einsum("or,rsxy,is->oixy", left, core, right)
    error = float((together - kernel).square().sum())
    lost = tails(kernel.numpy(), rank)
    assert max(lost) - 1e-9 <= error <= sum(lost) + 1e-9


@pytest.mark.parametrize("stride", [1, 2])
def test_the_spectrum_of_the_core_is_that_of_the_layer(stride: int) -> None:
    conv = random_conv(5, 4, 3, stride=stride).double()
    left, core, right = tensor_train(conv.weight.detach(), 2)
    small = random_conv(2, 2, 3, stride=stride).double()
    with torch.no_grad():
        conv.weight.copy_(torch.einsum("or,rsxy,is->oixy", left, core, right))
        small.weight.copy_(core)
    whole = singular_values(conv, (5, 6, 6))
    values = singular_values(small, (2, 6, 6))
    np.testing.assert_allclose(whole[: len(values)], values, atol=1e-10)
    assert whole[len(values) :].max() < 1e-10


@pytest.mark.parametrize("stride", [1, 2])
def test_clipping_the_core_is_clipping_the_compressed_layer(stride: int) -> None:
    conv = random_conv(5, 4, 3, stride=stride).double()
    left, core, right = tensor_train(conv.weight.detach(), 2)
    compressed = random_conv(5, 4, 3, stride=stride).double()
    with torch.no_grad():
        compressed.weight.copy_(torch.einsum("or,rsxy,is->oixy", left, core, right))
    norm = dense_norm(compressed, (5, 6, 6))
    assert norm <= dense_norm(conv, (5, 6, 6))
    expected = clipped_by_matrix(compressed, (5, 6, 6), 0.5 * norm)
    step_once(Senderovich(every=1, tt_rank=2), conv, (5, 6, 6), 0.5 * norm)
    np.testing.assert_allclose(conv.weight.detach().numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("rank", [2, 4])
def test_compressed_layers_have_the_rank_and_then_stay_bit_for_bit(rank: int) -> None:
    conv = random_conv(5, 4, 3)
    assert max(tails(conv.weight.detach().double().numpy(), rank)) > 1.0
    attachment = step_once(Senderovich(every=1, tt_rank=rank), conv, (5, 6, 6), 100.0)
    kernel = conv.weight.detach().clone()
    assert max(tails(kernel.double().numpy(), rank)) < 1e-8
    assert min(tails(kernel.double().numpy(), rank - 1)) > 1.0
    attachment.step()
    assert torch.equal(conv.weight, kernel)


def test_dense_layers_are_not_compressed() -> None:
    layer = random_linear(6, 5)
    before = layer.weight.detach().clone()
    step_once(Senderovich(every=1, tt_rank=2), layer, (6,), 100.0)
    assert torch.equal(layer.weight, before)


def test_a_rank_that_compresses_nothing_changes_nothing() -> None:
    conv, whole = random_conv(5, 4, 3), random_conv(5, 4, 3)
    step_once(Senderovich(every=1, tt_rank=5), conv, (5, 6, 6), 4.0)
    step_once(Senderovich(every=1), whole, (5, 6, 6), 4.0)
    assert torch.equal(conv.weight, whole.weight)


# --- What it takes, and what it refuses -------------------------------------------------------

REFUSED = {
    "one group, not 2": (nn.Conv2d(2, 2, 3, groups=2), (2, 8, 8)),
    "without dilation, not (2, 2)": (nn.Conv2d(2, 2, 3, dilation=2), (2, 8, 8)),
    "not ConvTranspose2d": (nn.ConvTranspose2d(2, 2, 3, stride=2), (2, 8, 8)),
    "larger than the image": (nn.Conv2d(2, 2, 5, padding=2), (2, 4, 8)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_outside_of_the_domain(why: str) -> None:
    module, in_shape = REFUSED[why]
    with pytest.raises(OutsideDomain, match="Senderovich is not defined for") as caught:
        Senderovich.estimate(module, in_shape)
    assert why in caught.value.why


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        Senderovich(every=0)
    with pytest.raises(ValueError, match="tt_rank must be at least 1, got 0"):
        Senderovich(tt_rank=0)


@pytest.mark.parametrize("tt_rank", [None, 3])
def test_rounds_come_every_so_many_steps(tt_rank: int | None) -> None:
    model = small_network()
    method = Senderovich(every=3, tt_rank=tt_rank)
    attachment = attach(model, None, EXAMPLE, method=method, max_norm=0.3)
    assert list(attachment.layers) == ["0", "3", "6", "9"]
    before = snapshot(model)
    attachment.step()
    attachment.step()
    assert_identical(model.state_dict(), before)
    attachment.step()
    moved = [name for name, value in model.state_dict().items() if not value.equal(before[name])]
    assert moved == ["0.weight", "3.weight", "6.weight", "9.weight"]
    assert attachment.norms()["9"] == pytest.approx(0.3, rel=1e-4)
