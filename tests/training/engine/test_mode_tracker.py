"""Fourier modes find the singular values of convolutions, as dense matrices have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip._bounds.exact import embedding_sides
from spectralclip._operators.affine import AffineFunction
from spectralclip._operators.build import explicit_maps
from spectralclip._operators.maps import ConvMap
from spectralclip._training.engine.mode_tracker import (
    Frequencies,
    Modes,
    ModeTracker,
    Taps,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kernel:
    """The shape of a convolution's kernels."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    c_out: int = 4
    c_in: int = 3

    @property
    def taps(self) -> Taps:
        return Taps.of(self.size, self.stride, self.dilation)

    def weights(self, batch: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, self.c_out, self.c_in * math.prod(self.size))
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def symbol(self, weight: Array, frequency: Array) -> Array:
        """`S(w)` by its definition: a block of columns for each remainder of the stride."""
        shaped = weight.reshape(self.c_out, self.c_in, *self.size)
        whole = np.zeros((*self.stride, self.c_out, self.c_in), complex)
        for tap in product(*(range(k) for k in self.size)):
            place = [t * d for t, d in zip(tap, self.dilation, strict=True)]
            step = [x // s for x, s in zip(place, self.stride, strict=True)]
            rest = tuple(x % s for x, s in zip(place, self.stride, strict=True))
            whole[rest] += shaped[(slice(None), slice(None), *tap)] * np.exp(1j * frequency @ step)
        flat = whole.reshape(-1, self.c_out, self.c_in)
        return np.concatenate(list(flat), axis=1)


KERNELS = {
    "1d": Kernel((5,), (1,), (1,)),
    "1d-stride-2": Kernel((5,), (2,), (1,)),
    "1d-stride-3-dilated": Kernel((4,), (3,), (2,)),
    "2d": Kernel((3, 3), (1, 1), (1, 1)),
    "2d-stride-2": Kernel((3, 3), (2, 2), (1, 1)),
    "2d-stride-over-kernel": Kernel((2, 3), (3, 2), (1, 1)),
    "2d-mixed": Kernel((3, 4), (1, 3), (2, 1)),
    "2d-dilated-stride": Kernel((3, 3), (2, 2), (2, 2)),
    "3d": Kernel((2, 3, 2), (1, 1, 1), (1, 1, 1)),
    "3d-stride": Kernel((3, 2, 3), (2, 1, 2), (1, 2, 1), 3, 2),
    "depthwise": Kernel((3, 3), (1, 1), (1, 1), 2, 1),
}
EACH = pytest.mark.parametrize("name", KERNELS)


def tracker_of(
    kernel: Kernel,
    frequencies: Frequencies,
    batch: int = 1,
    width: int = 2,
    dtype: torch.dtype = torch.float64,
) -> ModeTracker:
    generators = [torch.Generator().manual_seed(i) for i in range(batch)]
    shape = (batch, kernel.c_out, kernel.c_in)
    like = torch.empty(0, dtype=dtype)
    return ModeTracker(shape, kernel.taps, frequencies, width, like, generators)


def settle(
    tracker: ModeTracker, weight: Tensor, refreshes: int = 100, *, move: bool = False
) -> Modes:
    for _ in range(refreshes):
        modes = tracker.refresh(weight, None, move=move)
        tracker.keep(modes)
    return modes


def conv_of(module: nn.Module, in_shape: tuple[int, ...]) -> ConvMap:
    maps = explicit_maps(AffineFunction([module], in_shape))
    assert maps is not None
    assert isinstance(maps[0], ConvMap)
    return maps[0]


# --- Taps and frequencies -------------------------------------------------------------------


def test_taps_are_steps_and_remainders() -> None:
    taps = Taps.of((3, 2), (2, 1), (1, 3))
    positions = [(a, 3 * b) for a in range(3) for b in range(2)]
    assert taps.steps.int().tolist() == [[a // 2, b] for a, b in positions]
    assert taps.remainders.tolist() == [a % 2 for a, _ in positions]
    assert taps.remainder_count == 2
    assert not taps.do_not_overlap


@pytest.mark.parametrize(
    ("size", "stride", "apart"), [(2, 2, True), (2, 3, True), (3, 2, False), (1, 1, True)]
)
def test_windows_that_do_not_overlap_are_known(size: int, stride: int, apart: bool) -> None:
    assert Taps.of((size, size), (stride, stride), (1, 1)).do_not_overlap is apart


@pytest.mark.parametrize("sizes", [(5,), (6,), (4, 6), (5, 3), (3, 4, 2)])
def test_a_grid_has_each_frequency_once_up_to_conjugation(sizes: tuple[int, ...]) -> None:
    grid = Frequencies.on_grid(sizes)
    assert not any(grid.reach)
    whole = (grid.centers.numpy() * np.array(sizes) / (2 * math.pi)).round().astype(int)
    ours = {tuple(row % sizes) for row in whole}
    mirrored = {tuple(-row % sizes) for row in whole}
    assert len(ours) == len(whole)
    assert ours | mirrored == set(product(*(range(n) for n in sizes)))
    # A pair is kept once: what is in both is its own mirror image.
    assert all(tuple(-np.array(row) % sizes) == row for row in ours & mirrored)


@EACH
def test_cells_cover_all_frequencies(name: str) -> None:
    taps = KERNELS[name].taps
    cells = Frequencies.everywhere(taps)
    rng = np.random.default_rng(0)
    points = rng.uniform(-math.pi, math.pi, (200, taps.steps.shape[1]))
    centers = cells.centers.numpy()
    for point in points:
        both = np.concatenate((point - centers, -point - centers))
        distance = np.abs((both + math.pi) % (2 * math.pi) - math.pi)
        moving = np.array([span > 0 for span in np.ptp(taps.steps.numpy(), axis=0)])
        assert (distance[:, moving] <= np.array(cells.reach)[moving]).all(1).any()


# --- Values ---------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@EACH
@pytest.mark.parametrize("width", [1, 2, 3])
def test_looks_converge_to_the_values_of_the_symbol(name: str, width: int) -> None:
    kernel = KERNELS[name]
    weight = kernel.weights(2)
    rng = np.random.default_rng(1)
    angles = torch.from_numpy(rng.uniform(-3, 3, (4, len(kernel.size))))
    frequencies = Frequencies(angles, (0.0,) * len(kernel.size))
    tracker = tracker_of(kernel, frequencies, 2, width)
    tops = []
    for _ in range(400):
        modes = tracker.refresh(weight, None, move=False)
        tracker.keep(modes)
        tops.append(modes.S[:, :, 0])
    # Single precision alone is assumed of the Gram matrices.
    assert (np.diff(np.array(tops), axis=0) >= -1e-6).all()
    for b, f in product(range(2), range(4)):
        dense = kernel.symbol(weight[b].numpy(), angles[f].numpy())
        values = np.linalg.svd(dense, compute_uv=False)
        assert modes.S[b, f, 0] == pytest.approx(values[0], rel=1e-5)
        assert (modes.S[b, f] <= values[: modes.S.shape[2]] * (1 + 1e-6)).all()
        left = modes.U[b, f, 0].numpy()
        u = left[0] + 1j * left[1]
        assert np.linalg.norm(u) == pytest.approx(1, rel=1e-6)
        # A left singular vector: the symbol's adjoint stretches it by the value.
        assert np.linalg.norm(u.conj() @ dense) == pytest.approx(values[0], rel=1e-4)


def test_outputs_may_be_scaled_row_by_row() -> None:
    kernel = KERNELS["2d-stride-2"]
    weight = kernel.weights(2)
    rows = torch.tensor([[0.5, -2.0, 1.0, 0.1], [3.0, 0.0, 1.0, -1.0]], dtype=torch.float64)
    angles = torch.tensor([[0.4, -1.1], [2.0, 0.0]], dtype=torch.float64)
    tracker = tracker_of(kernel, Frequencies(angles, (0.0, 0.0)), 2)
    for _ in range(300):
        modes = tracker.refresh(weight, rows, move=False)
        tracker.keep(modes)
    for b, f in product(range(2), range(2)):
        dense = rows[b].numpy()[:, None] * kernel.symbol(weight[b].numpy(), angles[f].numpy())
        assert modes.S[b, f, 0] == pytest.approx(np.linalg.norm(dense, 2), rel=1e-5)


@pytest.mark.parametrize(
    ("module", "in_shape", "share"),
    [
        (lambda: nn.Conv1d(3, 4, 5, padding=2), (3, 24), 0.97),
        (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 32), 0.97),
        (lambda: nn.Conv1d(2, 3, 3, dilation=2, padding=2), (2, 24), 0.97),
        (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 16, 16), 0.97),
        (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 17, 16), 0.95),
        (lambda: nn.Conv2d(2, 3, 3), (2, 6, 7), 0.8),
    ],
    ids=["1d", "1d-stride", "1d-dilated", "2d", "2d-stride", "2d-small"],
)
def test_the_embedding_torus_is_above_zero_padding_and_close(
    module: Any, in_shape: tuple[int, ...], share: float
) -> None:
    layer = module().double()
    conv = conv_of(layer, in_shape)
    geometry = conv.geometry
    kernel = Kernel(layer.kernel_size, geometry.stride, geometry.dilation, *layer.weight.shape[:2])
    sides = embedding_sides(conv)
    grid = Frequencies.on_grid(tuple(n // s for n, s in zip(sides, geometry.stride, strict=True)))
    modes = settle(tracker_of(kernel, grid), layer.weight.detach().flatten(1)[None], 200)
    norm = dense_norm(layer.eval(), in_shape)
    assert share * modes.S.max() <= norm <= modes.S.max() * (1 + 1e-5)


CIRCULAR = {
    "1d": (lambda: nn.Conv1d(3, 4, 5, padding=2, padding_mode="circular"), (3, 9)),
    "1d-stride": (lambda: nn.Conv1d(3, 4, 5, 2, 2, padding_mode="circular"), (3, 12)),
    "1d-stride-3": (lambda: nn.Conv1d(2, 4, 3, 3, 1, padding_mode="circular"), (2, 12)),
    "2d": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 6, 5)),
    "2d-stride": (lambda: nn.Conv2d(2, 3, 3, 2, 1, padding_mode="circular"), (2, 8, 6)),
    "2d-dilated": (
        lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2, padding_mode="circular"),
        (2, 6, 7),
    ),
    "3d": (lambda: nn.Conv3d(2, 2, 3, padding=1, padding_mode="circular"), (2, 4, 3, 4)),
}


def circular(name: str) -> tuple[Any, tuple[int, ...], Kernel, ModeTracker, Modes]:
    make, in_shape = CIRCULAR[name]
    layer = make().double().eval()
    kernel = Kernel(layer.kernel_size, layer.stride, layer.dilation, *layer.weight.shape[:2])
    sizes = tuple(n // s for n, s in zip(in_shape[1:], layer.stride, strict=True))
    tracker = tracker_of(kernel, Frequencies.on_grid(sizes))
    modes = settle(tracker, layer.weight.detach().flatten(1)[None], 400)
    return layer, in_shape, kernel, tracker, modes


@pytest.mark.parametrize("name", CIRCULAR)
def test_the_grid_of_a_circular_layer_has_its_norm(name: str) -> None:
    layer, in_shape, *_, modes = circular(name)
    norm = dense_norm(layer, in_shape)
    assert modes.S.max() == pytest.approx(norm, rel=1e-6)


def mode_on(amplitudes: Tensor, frequency: Tensor, kernel: Kernel, places: list[Tensor]) -> Tensor:
    """A Fourier mode as an image, its real and its imaginary part: `(2, c_in, *sides)`.

    Args:
        amplitudes: `(c_in, T)`, complex: what each tap reads of it at the origin.
        frequency: `(d,)`.
        kernel: The kernel.
        places: For each axis, the positions of the pixels, of which tap 0 reads position 0.
    """
    grid = torch.cartesian_prod(*places).reshape(-1, len(places))
    stride = torch.tensor(kernel.stride)
    steps = torch.div(grid, stride, rounding_mode="floor")
    taps = [[t * d for t in range(k)] for k, d in zip(kernel.size, kernel.dilation, strict=True)]
    rests = [tuple(x % s for x, s in zip(p, kernel.stride, strict=True)) for p in product(*taps)]
    wanted = [tuple(rest) for rest in (grid - steps * stride).tolist()]
    tap = torch.tensor([rests.index(rest) if rest in rests else -1 for rest in wanted])
    turns = (steps - kernel.taps.steps[tap.clamp_min(0)]) @ frequency
    phases = torch.polar((tap >= 0).double(), turns).to(amplitudes)
    image = amplitudes[:, tap.clamp_min(0)] * phases
    image = image.reshape(len(amplitudes), *[len(place) for place in places])
    return torch.stack((image.real, image.imag))


@pytest.mark.parametrize("name", CIRCULAR)
@torch.no_grad()
def test_modes_of_a_circular_layer_are_its_singular_vectors(name: str) -> None:
    layer, in_shape, kernel, tracker, modes = circular(name)
    place = int(modes.S[0, :, 0].argmax())
    _, right = modes.cuts(np.array([0]), np.array([place * modes.S.shape[2]]))
    columns = right[0].reshape(2, kernel.c_in, -1)
    frequency = torch.from_numpy(tracker.frequencies[0, place])
    sides = [torch.arange(n) + layer.padding[i] for i, n in enumerate(in_shape[1:])]
    images = mode_on(torch.complex(columns[0], columns[1]), frequency, kernel, sides)
    layer.bias.zero_()
    norm = dense_norm(layer, in_shape)
    outputs = layer(images)
    assert float(outputs.norm() / images.norm()) == pytest.approx(norm, rel=1e-4)
    # Each of the two parts by itself, where it does not vanish.
    for image, output in zip(images, outputs, strict=True):
        if image.norm() > 0.1 * images.norm():
            assert float(output.norm() / image.norm()) == pytest.approx(norm, rel=1e-3)


# --- Cuts and climbing ----------------------------------------------------------------------


@pytest.mark.sampled(4)
@EACH
def test_cuts_are_the_gradients_of_values(name: str) -> None:
    kernel = KERNELS[name]
    weight = kernel.weights(2)
    angles = torch.full((1, len(kernel.size)), 0.7, dtype=torch.float64)
    frequencies = Frequencies(angles, (0.0,) * len(kernel.size))
    tracker = tracker_of(kernel, frequencies, 2)
    modes = settle(tracker, weight, 500)
    rng = np.random.default_rng(2)
    kernels = np.array([1, 0])
    left, right = modes.cuts(kernels, np.array([0, 0]))
    for i, which in enumerate(kernels):
        gradient = (left[i].T @ right[i]).numpy()
        # A norm is the product with its gradient.
        value = float((gradient * weight[which].numpy()).sum())
        assert value == pytest.approx(modes.S[which, 0, 0], rel=1e-5)
        direction = rng.standard_normal(gradient.shape)
        up, down = (
            np.linalg.norm(
                kernel.symbol(weight[which].numpy() + t * direction, angles[0].numpy()), 2
            )
            for t in (1e-5, -1e-5)
        )
        slope = float((gradient * direction).sum())
        assert slope == pytest.approx((up - down) / 2e-5, abs=2e-3 * np.linalg.norm(direction))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in KERNELS if "over-kernel" not in name])
def test_climbing_finds_a_maximum_between_the_centers(name: str) -> None:
    kernel = KERNELS[name]
    weight = kernel.weights(1, seed=3)
    cells = Frequencies.everywhere(kernel.taps)
    still, moving = tracker_of(kernel, cells), tracker_of(kernel, cells)
    before = settle(still, weight, 60).S.max()
    after = settle(moving, weight, 60, move=True)
    assert after.S.max() >= before * (1 - 1e-6)
    moved = np.abs(moving.frequencies[0] - cells.centers.numpy())
    assert moved.max() > 0
    assert (moved <= np.array(cells.reach) + 1e-9).all()
    # The maximum over all frequencies, by the dense symbol on a fine grid.
    fine = {1: 256, 2: 40, 3: 14}[len(kernel.size)]
    angles = 2 * math.pi * np.arange(fine) / fine
    best = max(
        np.linalg.norm(kernel.symbol(weight[0].numpy(), np.array(point)), 2)
        for point in product(angles, repeat=len(kernel.size))
    )
    assert after.S.max() >= best * (1 - 1e-3)


def test_a_grid_does_not_move() -> None:
    kernel = KERNELS["2d"]
    grid = Frequencies.on_grid((5, 5))
    tracker = tracker_of(kernel, grid)
    settle(tracker, kernel.weights(1), 3, move=True)
    np.testing.assert_array_equal(tracker.frequencies[0], grid.centers.numpy())


# --- Some of the frequencies, and drift -----------------------------------------------------


def test_promising_frequencies_are_the_largest_and_in_time_all() -> None:
    kernel = KERNELS["2d"]
    weight = kernel.weights(2)
    tracker = tracker_of(kernel, Frequencies.on_grid((8, 8)), 2)
    settle(tracker, weight, 20)
    count, total = 10, tracker.values.shape[1]
    visited = [set[int](), set[int]()]
    for _ in range(math.ceil(total / (count // 2)) + 1):
        tracker.ages += 1
        potential = 0.5 * tracker.values / tracker.values.max()
        chosen = tracker.promising(potential, count)
        assert chosen is not None
        for b in range(2):
            assert len(set(chosen[b])) == count
            leading = set(np.argsort(-tracker.values[b])[: count // 2])
            assert leading <= set(chosen[b])
            visited[b] |= set(chosen[b])
        tracker.keep(tracker.refresh(weight, None, chosen, move=False))
    assert all(len(seen) == total for seen in visited)
    assert tracker.promising(np.zeros((2, total)), total) is None


def test_no_frequency_that_may_have_come_up_to_the_bound_is_left_out() -> None:
    tracker = tracker_of(KERNELS["2d"], Frequencies.on_grid((8, 8)), 2)
    total, count = tracker.values.shape[1], 6
    potential = np.linspace(0.5, 0.9, 2 * total).reshape(2, total)
    near = np.arange(1, total, 3)
    potential[1, near] = 1.1
    chosen = tracker.promising(potential, count)
    assert chosen is not None
    assert set(near) <= set(chosen[1])
    assert chosen.shape == (2, len(near) + count // 2)
    assert tracker.promising(np.full((2, total), 1.1), count) is None


def test_looking_at_some_frequencies_leaves_the_others() -> None:
    kernel = KERNELS["2d-stride-2"]
    weight = kernel.weights(2)
    one, other = (tracker_of(kernel, Frequencies.on_grid((4, 4)), 2) for _ in range(2))
    whole = one.refresh(weight, None, move=False)
    chosen = np.array([[1, 4], [0, 7]])
    start = other.vectors.clone()
    modes = other.refresh(weight, None, chosen, move=False)
    other.keep(modes)
    for b, row in enumerate(chosen):
        np.testing.assert_allclose(modes.S[b], whole.S[b, row], rtol=1e-10)
        left = [f for f in range(start.shape[1]) if f not in row]
        assert torch.equal(other.vectors[b, left], start[b, left])
        torch.testing.assert_close(other.vectors[b, row], modes.U[b])


@pytest.mark.parametrize("scaled", [False, True])
def test_drift_converges_to_the_leading_vector_of_a_change(scaled: bool) -> None:
    kernel = KERNELS["2d-stride-2"]
    change = kernel.weights(2, seed=5)
    rows = torch.tensor([[1.0, 2.0, 0.5, 1.5]] * 2, dtype=torch.float64) if scaled else None
    angles = torch.tensor([[0.4, -1.1], [2.0, 0.3]], dtype=torch.float64)
    tracker = tracker_of(kernel, Frequencies(angles, (0.0, 0.0)), 2)
    for _ in range(300):
        tracker.follow_drift(change, rows, None)
    for b, f in product(range(2), range(2)):
        dense = kernel.symbol(change[b].numpy(), angles[f].numpy())
        if rows is not None:
            dense = rows[b].numpy()[:, None] * dense
        u = np.linalg.svd(dense)[0][:, 0]
        found = tracker.drift[b, f].numpy()
        assert abs(u.conj() @ (found[0] + 1j * found[1])) == pytest.approx(1, abs=1e-5)


def test_no_change_leaves_the_drift() -> None:
    kernel = KERNELS["2d"]
    tracker = tracker_of(kernel, Frequencies.on_grid((4, 4)))
    before = tracker.drift.clone()
    tracker.follow_drift(torch.zeros_like(kernel.weights(1)), None, None)
    assert torch.equal(tracker.drift, before)


def test_drift_notices_at_once_what_is_about_to_grow() -> None:
    kernel = Kernel((3, 3), (1, 1), (1, 1), 16, 16)
    weight = kernel.weights(1)
    tracker = tracker_of(kernel, Frequencies.on_grid((6, 6)))
    settle(tracker, weight, 200)
    generator = torch.Generator().manual_seed(9)
    u, v = (torch.randn(n, dtype=torch.float64, generator=generator) for n in (16, 144))
    change = torch.outer(u, v)[None]
    tracker.follow_drift(change, None, None)
    tracker.follow_drift(change, None, None)
    grown = weight + 2 * change
    without = tracker.refresh(grown, None, move=False).S[0, :, 0]
    aware = tracker.refresh(grown, None, move=False, drift=True).S[0, :, 0]
    exact = np.array(
        [np.linalg.norm(kernel.symbol(grown[0].numpy(), w), 2) for w in tracker.frequencies[0]]
    )
    assert (aware <= exact * (1 + 1e-6)).all()
    assert (exact - aware).max() < 0.2 * (exact - without).max()
