"""Large layers: what is bounded, found and clipped there, and that it takes the cheap way.

Times differ from machine to machine, so that the way taken is seen by counts: symbols looked at,
entries sent through convolutions, the largest tensor made, the dense algebra called.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import spectralclip as sc
from spectralclip._bounds import exact as _block_norms
from spectralclip._bounds.views import View
from spectralclip._clipping import clip as _clip
from spectralclip._linalg.krylov import lengths, row_products
from spectralclip._linalg.small_matrices import norm_is_below
from spectralclip._spectrum.symbol_peak import Torus, enough_points, symbol_degrees, symbol_peak


def renewed(layer: Any) -> Any:
    """A copy with the weights that this test's seed gives."""
    layer = copy.deepcopy(layer)
    for part in layer.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return layer


class Recorder(TorchDispatchMode):
    """The operations called, the largest tensor made, and what convolutions were given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest = self.convolved = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        if name == "convolution":
            self.convolved += args[0].numel()
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *sizes])
        return result


# --- Oracles: NumPy's FFT, and ARPACK ------------------------------------------------------


def fft_norms(conv: Any, sides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The norm at each frequency of a torus, of a convolution of stride one."""
    weight, groups = conv.weight.detach().double().numpy(), conv.groups
    taps = np.zeros((*weight.shape[:2], *sides))
    for place in np.ndindex(*weight.shape[2:]):
        at = tuple(t * d % n for t, d, n in zip(place, conv.dilation, sides, strict=True))
        taps[(slice(None), slice(None), *at)] += weight[(slice(None), slice(None), *place)]
    symbol = np.moveaxis(np.fft.fftn(taps, axes=tuple(range(2, taps.ndim))), (0, 1), (-2, -1))
    symbol = symbol.reshape(*sides, groups, -1, weight.shape[1])
    order = 2 if min(symbol.shape[-2:]) > 1 else "fro"  # of a single row or column, and faster
    norms: np.ndarray[Any, Any] = np.linalg.norm(symbol, order, axis=(-2, -1)).max(-1)
    return norms


def arpack_norm(layer: nn.Module, in_shape: tuple[int, ...]) -> float:
    op = sc.as_operator(layer, in_shape, dtype=torch.float64).to_scipy()
    start = np.random.default_rng(0).standard_normal(min(op.shape))
    return float(
        scipy.sparse.linalg.svds(op, 1, v0=start, tol=1e-7, return_singular_vectors=False)[0]
    )


# --- The search over frequencies -----------------------------------------------------------


def torus_of(conv: Any, sides: tuple[int, ...]) -> Torus:
    reach = [2 * d * k for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    map_ = sc.as_operator(conv, (conv.in_channels, *reach), dtype=torch.float64).convolution
    assert map_ is not None
    return Torus(map_, sides, conv.stride, conv.dilation)


@contextmanager
def counted_symbols(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    looked = [0]
    own = Torus.symbols_at

    def counting(self: Torus, group: int, frequencies: Tensor) -> Tensor:
        looked[0] += len(frequencies)
        return own(self, group, frequencies)

    with monkeypatch.context() as patch:
        patch.setattr(Torus, "symbols_at", counting)
        yield looked


SEARCHED: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Conv1d(1, 1, 3), (501,)),
    (nn.Conv1d(2, 3, 9), (4096,)),
    (nn.Conv2d(1, 1, 3), (256, 256)),
    (nn.Conv2d(3, 3, 3), (100, 131)),
    (nn.Conv2d(2, 4, (5, 1)), (200, 90)),
    (nn.Conv2d(2, 2, 3, dilation=(2, 3)), (128, 150)),
    (nn.Conv2d(6, 6, 3, groups=6), (128, 128)),
    (nn.Conv2d(4, 2, 3, groups=2), (7, 300)),
    (nn.Conv3d(1, 2, 3), (40, 50, 60)),
]


@pytest.mark.parametrize(("conv", "sides"), SEARCHED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("smooth", [False, True])
def test_the_search_finds_the_largest_of_all_frequencies(
    conv: Any, sides: tuple[int, ...], smooth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = renewed(conv)
    if smooth:  # all taps positive: one broad peak, at the corner of the first cell
        conv.weight.data.abs_()
    norms = fft_norms(conv, sides)
    with counted_symbols(monkeypatch) as looked:
        peak = symbol_peak(torus_of(conv, sides))
    assert peak.value == pytest.approx(norms.max(), rel=1e-9)
    assert peak.upper == peak.value
    at = tuple(f % n for f, n in zip(peak.frequency, sides, strict=True))
    assert norms[at] == pytest.approx(norms.max(), rel=1e-9)
    assert looked[0] < conv.groups * norms.size


@pytest.mark.parametrize("excess", [0.05, 1e-3, 1e-6])
def test_an_early_end_is_within_what_it_may_leave_open(excess: float) -> None:
    for _ in range(8):
        conv = nn.Conv2d(1, 2, 3)
        largest = fft_norms(conv, (300, 300)).max()
        peak = symbol_peak(torus_of(conv, (300, 300)), excess)
        assert peak.value <= largest * (1 + 1e-9) and largest <= peak.upper * (1 + 1e-9)
        assert peak.upper <= (1 + excess) * peak.value * (1 + 1e-12)


@pytest.mark.parametrize("rtol", [0.5, 0.1, 1e-3])
def test_between_the_frequencies_of_any_torus(rtol: float) -> None:
    """Single frequencies of a coarse torus say nothing of those between them."""
    for kernel in [(3,), (9,), (2, 5), (7, 3), (1, 4)]:
        conv = (nn.Conv1d if len(kernel) == 1 else nn.Conv2d)(1, 2, kernel)  # type: ignore[arg-type]
        supremum = fft_norms(conv, (512,) * len(kernel)).max()
        interval = sc.norm_bounds_all_sizes(conv, rtol=rtol)
        assert interval.lower <= supremum * (1 + 1e-3) and supremum <= interval.upper
        assert interval.width <= rtol


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 2, 1), (5, 2, 3), (7, 3, 2), (4, 4, 6)]
)
def test_the_search_under_a_stride(kernel: int, stride: int, dilation: int) -> None:
    """Against the dense matrix of the circular layer, on tori with and without coarse cells."""
    for windows in (5, 48):
        side = windows * stride
        conv = nn.Conv1d(2, 2, kernel, stride, dilation=dilation, dtype=torch.float64)
        matrix = np.zeros((windows, 2, side, 2))
        for window in range(windows):
            for tap in range(kernel):
                place = (window * stride + tap * dilation) % side
                matrix[window, :, place, :] += conv.weight.detach().numpy()[:, :, tap]
        expected = np.linalg.norm(matrix.reshape(2 * windows, 2 * side), 2)
        assert symbol_peak(torus_of(conv, (side,))).value == pytest.approx(expected, rel=1e-9)


def test_few_frequencies_of_a_large_torus_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = nn.Conv2d(1, 1, 3)
    with counted_symbols(monkeypatch) as looked, Recorder() as recorder:
        symbol_peak(torus_of(conv, (4096, 4096)))
    assert looked[0] < 10_000
    assert recorder.largest < 1_000_000


def test_a_flat_symbol_ends_the_search_early_or_is_looked_at_everywhere() -> None:
    conv = nn.Conv2d(1, 1, 3)
    with torch.no_grad():
        conv.weight.zero_()[0, 0, 1, 1] = 2.0
    assert symbol_peak(torus_of(conv, (64, 64))).value == pytest.approx(2.0, rel=1e-12)
    peak = symbol_peak(torus_of(conv, (4096, 4096)), 1e-3)
    assert 2 * (1 - 1e-12) <= peak.upper <= 2.002 and peak.value <= 2 * (1 + 1e-12)
    with torch.no_grad():
        conv.weight.zero_()
    assert symbol_peak(torus_of(conv, (512, 512)))[:2] == (0.0, 0.0)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_leading_wave_is_nearly_a_singular_vector(stride: int, transposed: bool) -> None:
    conv = nn.Conv2d(3, 4, 5, stride, padding=1, dtype=torch.float64)
    side = 128
    op = sc.as_operator(conv, (3, side, side))
    map_ = op.convolution
    assert map_ is not None
    torus = Torus(map_, (1024, 1024), map_.geometry.stride, map_.geometry.dilation)
    peak = symbol_peak(torus)
    space = map_.target.shape[1:] if transposed else (side, side)
    wave = torus.leading_mode(peak, space, outputs=transposed)
    window = [torch.sin(math.pi * torch.arange(1, n + 1) / (n + 1)) for n in space]
    wave = wave * window[0][:, None] * window[1]
    image = op.rmatvec(wave) if transposed else op.matvec(wave)
    assert 0.99 * peak.value < float(image.norm() / wave.norm()) <= peak.value


# --- norm_bounds: convolutions -------------------------------------------------------------


LARGE_IMAGES = [
    (nn.Conv2d(1, 1, 3, padding=1), (1, 90, 110)),
    (nn.Conv2d(2, 3, 5, stride=2, padding=2), (2, 190, 180)),
    (nn.Conv1d(1, 2, 9, padding=4), (1, 900)),
    (nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1), (3, 44, 50)),
    (nn.Conv2d(2, 2, 3, padding=2, dilation=2, groups=2), (2, 180, 190)),
]


def slow_where(cases: list[Any], places: set[int]) -> list[Any]:
    """The same cases, of which some take ARPACK or the whole image long."""
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(*case, marks=marks[at in places]) for at, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("layer", "in_shape"), slow_where(LARGE_IMAGES, {1, 4}), ids=lambda value: str(value)[:50]
)
def test_bounds_from_smaller_images_hold(layer: nn.Module, in_shape: tuple[int, ...]) -> None:
    layer = renewed(layer)
    small = View(layer, in_shape).cropped(0.05 / 8)
    assert small is not None
    interval = sc.norm_bounds(layer, in_shape, rtol=0.05)
    truth = arpack_norm(layer, in_shape)
    assert interval.lower <= truth * (1 + 1e-6) and truth <= interval.upper
    assert interval.kind == "embedding" and interval.width <= 0.05


@pytest.mark.parametrize(("layer", "in_shape"), LARGE_IMAGES, ids=lambda value: str(value)[:50])
def test_bounds_are_found_on_smaller_images(layer: nn.Module, in_shape: tuple[int, ...]) -> None:
    in_shape = (in_shape[0], *(4 * n for n in in_shape[1:]))
    layer = renewed(layer)
    with Recorder() as recorder:
        interval = sc.norm_bounds(layer, in_shape)
    assert interval.kind == "embedding" and interval.width <= 0.01
    # The layer is tried out on the image when it is read in; a Lanczos run would take twenty more.
    assert recorder.convolved <= 10 * math.prod(in_shape)


def test_narrow_bounds_on_large_images_begin_with_waves() -> None:
    interval = sc.norm_bounds(nn.Conv2d(1, 1, 3, padding=1), (1, 500, 500), rtol=1e-4)
    assert interval.kind == "embedding" and interval.width <= 1e-4
    assert interval.applications <= 60


def test_a_million_pixels_take_little_memory() -> None:
    conv = nn.Conv2d(1, 1, 3, padding=1)
    with Recorder() as recorder:
        interval = sc.norm_bounds(conv, (1, 1024, 1024))
    # The image counts, not the frequencies of its torus times the taps.
    assert recorder.largest <= 3 * 1024 * 1024
    supremum = fft_norms(conv, (2048, 2048)).max()
    assert interval.lower <= supremum <= interval.upper * (1 + 1e-5)
    assert interval.width <= 0.01


def test_a_large_circular_layer_is_bounded_exactly() -> None:
    conv = nn.Conv2d(1, 1, 5, padding=2, padding_mode="circular")
    with Recorder() as recorder:
        interval = sc.norm_bounds(conv, (1, 512, 640))
    assert interval.kind == "exact" and interval.width < 1e-8
    assert fft_norms(conv, (512, 640)).max() in interval
    assert recorder.largest <= 520 * 650


def test_the_part_of_an_image_has_no_larger_norm() -> None:
    """What makes a lower bound on the one a lower bound on the other."""
    for layer, in_shape in [
        (nn.Conv2d(2, 2, 3, stride=2, padding=1, dtype=torch.float64), (2, 60, 60)),
        (nn.ConvTranspose1d(2, 3, 5, stride=2, padding=2, dtype=torch.float64), (2, 300)),
        (nn.Conv1d(2, 2, 3, 2, 1, padding_mode="circular", dtype=torch.float64), (2, 720)),
    ]:
        view = View(layer, in_shape)
        small = view.cropped(0.02)
        assert small is not None and 4 * small.op.shape[1] <= view.op.shape[1]
        part, whole = (arpack_norm(layer, shape) for shape in (small.op.in_shape, in_shape))
        assert 0.98 * whole <= part <= whole * (1 + 1e-6)


def test_no_smaller_image_stands_for_other_paddings_or_layers() -> None:
    reflect = nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")
    assert View(reflect, (1, 400, 400)).cropped(0.01) is None
    prime = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
    assert View(prime, (1, 1009)).cropped(0.01) is None
    assert View(nn.Linear(900, 2), 900).cropped(0.01) is None
    op = sc.as_operator(nn.Conv2d(1, 1, 3, padding=1), (1, 400, 400))
    assert View(op, op.in_shape).cropped(0.01) is None
    assert sc.norm_bounds(op).width <= 0.01


# --- norm_bounds: matrices -----------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_large_matrix_is_not_decomposed(deterministic: bool) -> None:
    layer = nn.Linear(1400, 1300)
    with Recorder() as recorder:
        interval = sc.norm_bounds(layer, deterministic=deterministic)
    truth = arpack_norm(layer, (1400,))
    assert interval.lower <= truth * (1 + 1e-9) and truth <= interval.upper
    assert interval.width <= 0.01
    assert interval.kind == ("cholesky" if deterministic else "probabilistic")
    assert interval.failure == (0.0 if deterministic else 1e-6)
    assert recorder.calls["linalg_cholesky_ex"] <= 1 + interval.applications
    # Eigenvalues are those of the recurrence's small matrices alone.
    assert recorder.largest <= 1400 * 1300
    assert not any("eigvalsh" in name for name in recorder.calls)


@pytest.fixture
def matrices_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_block_norms, "EXACT", _block_norms.ExactConstants(cheap=0.0, runs=0.0))


def normalized_linear() -> nn.Module:
    norm = nn.BatchNorm1d(40)
    norm.running_var = torch.linspace(0.5, 1.5, 40)
    return nn.Sequential(nn.Linear(70, 40), norm).eval()


@pytest.mark.usefixtures("matrices_are_dear")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (nn.Linear(80, 70), (80,)),
        (nn.Linear(40, 90), (5, 3, 40)),
        (nn.Embedding(90, 30), (90,)),
        (normalized_linear(), (70,)),
        (nn.Conv2d(60, 40, 1), (60, 4, 4)),
        (nn.Conv2d(60, 40, 2, stride=2, groups=4), (60, 6, 6)),
        (nn.ConvTranspose2d(40, 30, 2, stride=2), (40, 3, 3)),
        (nn.Conv2d(12, 12, 3, padding=1, padding_mode="circular"), (12, 7, 7)),
        (nn.Linear(80, 70).double(), (80,)),
        (nn.Linear(80, 70).bfloat16(), (80,)),
        (torch.nn.utils.parametrizations.weight_norm(nn.Linear(80, 70)), (80,)),
    ],
    ids=lambda value: str(value)[:50],
)
def test_blocks_by_iteration(
    layer: nn.Module, in_shape: tuple[int, ...], deterministic: bool
) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    interval = sc.norm_bounds(layer, in_shape, deterministic=deterministic)
    dense = sc.as_operator(copy.deepcopy(layer).double(), in_shape).to_dense().numpy()
    truth = float(np.linalg.norm(dense, 2))
    assert interval.lower <= truth * (1 + 1e-6) and truth <= interval.upper * (1 + 1e-6)
    assert interval.width <= 0.01
    assert (interval.failure == 0) == deterministic
    circular = isinstance(layer, nn.Conv2d) and layer.padding_mode == "circular"
    assert interval.kind == (
        ("exact" if circular else "cholesky") if deterministic else "probabilistic"
    )


@pytest.mark.usefixtures("matrices_are_dear")
def test_groups_share_the_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    from spectralclip._bounds import lanczos as _lanczos_bound

    seen: list[float] = []
    own = _lanczos_bound.least_overlap

    def noting(n: int, failure: float) -> float:
        seen.append(failure)
        return own(n, failure)

    monkeypatch.setattr(_lanczos_bound, "least_overlap", noting)
    interval = sc.norm_bounds(nn.Conv2d(60, 40, 1, groups=4), (60, 3, 3), failure=1e-4)
    assert seen == [2.5e-5] * 4 and interval.failure == 1e-4


def test_copies_of_a_matrix_are_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_block_norms, "EXACT", _block_norms.ExactConstants(cheap=0.0, runs=0.0))
    layer = nn.Linear(64, 64)
    with Recorder() as recorder:
        sc.norm_bounds(layer, (1000, 64))
    once = 1000 * 64  # the layer is applied when it is read in, and not again
    assert recorder.largest <= once
    assert recorder.calls["addmm"] <= 8


def test_a_factor_proves_only_what_is_so() -> None:
    for shape in [(700, 600), (500, 1100)]:
        matrix = torch.randn(shape)
        norm = float(np.linalg.norm(matrix.double().numpy(), 2))
        assert norm_is_below(matrix, norm * (1 + 1e-6))
        assert not norm_is_below(matrix, norm * (1 - 1e-6))
    assert norm_is_below(1e30 * matrix, 1.001e30 * norm)


# --- Long rows -----------------------------------------------------------------------------


def test_sums_over_long_rows_are_accurate() -> None:
    """Torch's norm of sixteen million numbers in float32 is 6e-4 too small: Ritz values rise."""
    rows = torch.randn(2, 2**22)
    wide = rows.double()
    torch.testing.assert_close(lengths(rows).double(), wide.norm(dim=1), rtol=1e-6, atol=0)
    exact = wide @ wide.T
    assert float((row_products(rows, rows) - exact).abs().max()) <= 5e-6 * float(exact.max())


# --- svds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (nn.Conv2d(1, 1, 3, padding=1), (1, 300, 300)),
        (nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 120, 120)),
        (nn.Conv2d(3, 16, 7, stride=2, padding=3), (3, 320, 320)),
        (nn.ConvTranspose2d(8, 2, 4, stride=2, padding=1), (8, 120, 120)),
        (nn.Conv1d(1, 1, 9, padding=4), (1, 100_000)),
    ],
    ids=str,
)
def test_the_norm_on_a_large_image_takes_few_applications(
    layer: nn.Module, in_shape: tuple[int, ...]
) -> None:
    layer = renewed(layer)
    found = sc.svds(layer, in_shape, 1)
    assert found.converged and found.applications <= 30
    upper = sc.norm_bounds(layer, in_shape, rtol=1e-3).upper
    assert upper / 1.0015 <= float(found.S[0]) <= upper


# --- clip_ ---------------------------------------------------------------------------------

CLIPPED = [
    (nn.Conv2d(1, 1, 3, padding=1), (1, 300, 280)),
    (nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), (1, 256, 256)),
    (nn.Conv1d(1, 1, 9, padding=4), (1, 5_000)),
]


@pytest.mark.parametrize("share", [0.4, pytest.param(0.9, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("layer", "in_shape"), slow_where(CLIPPED, {1}), ids=lambda value: str(value)[:40]
)
def test_clipping_on_large_images(
    layer: Any, in_shape: tuple[int, ...], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = renewed(layer)
    before = copy.deepcopy(layer)
    grid = tuple(n + layer.kernel_size[0] for n in in_shape[1:])
    bound = share * fft_norms(layer, grid).max()
    with Recorder() as recorder:
        result = sc.clip_(layer, bound, in_shape)
    norm = fft_norms(layer, tuple(4 * n for n in in_shape[1:]) if len(grid) == 1 else grid).max()
    assert norm <= bound * (1 + 1e-3)
    assert norm * (1 - 1e-4) <= result.norm_after <= bound * (1 + 1e-3)
    assert result.converged
    # It is read in on the whole image, and worked on where there is a fourth of that, or less.
    assert recorder.convolved <= (16 + result.applications / 2.5) * math.prod(in_shape)
    # The same on the whole image: the distance is about as small.
    monkeypatch.setattr(_clip.View, "cropped", lambda self, excess: None)
    whole = sc.clip_(before, bound, in_shape)
    assert result.distance <= 1.02 * whole.distance
    if result.distance_lower_bound is not None:
        assert result.distance_lower_bound <= whole.distance * (1 + 1e-3)


def test_a_large_convolution_within_the_bound_stays_as_it_is() -> None:
    for kind, in_shape in CLIPPED:
        layer = renewed(kind)
        norm = fft_norms(layer, tuple(n + 9 for n in in_shape[1:])).max()
        weight = layer.weight.detach().clone()
        result = sc.clip_(layer, norm * (1 + 1e-6), in_shape)
        assert torch.equal(layer.weight, weight) and result.distance == 0


def test_a_large_convolution_with_a_batch_norm_and_in_half_precision() -> None:
    norm = nn.BatchNorm2d(2)
    norm.running_var = torch.tensor([0.5, 2.0])
    pair = [nn.Conv2d(2, 2, 3, padding=1), norm.eval()]
    sc.clip_(pair, 0.5, (2, 250, 250))
    assert sc.norm_bounds(pair, (2, 250, 250), rtol=1e-3).lower <= 0.5
    assert sc.norm_bounds(pair, (2, 250, 250), rtol=1e-3).upper <= 0.5 * 1.002
    half = nn.Conv2d(1, 1, 3, padding=1).bfloat16()
    result = sc.clip_(half, 0.5, (1, 250, 250))
    assert sc.norm_bounds(half, (1, 250, 250), rtol=1e-3).lower <= 0.5 * 1.001
    assert result.norm_after <= 0.5 * 1.001


def test_exact_clipping_on_a_large_image_is_near_its_lower_bound() -> None:
    conv = nn.Conv2d(1, 2, 3, padding=1)
    result = sc.clip_(conv, 0.5, (1, 250, 250), exact=True)
    assert result.distance_lower_bound is not None
    assert result.distance_lower_bound <= result.distance <= 1.01 * result.distance_lower_bound


def test_the_grid_of_frequencies_misses_no_more_than_it_says() -> None:
    for kernel, excess in [(3, 0.01), (5, 0.05), (9, 1e-3)]:
        conv = nn.Conv1d(1, 1, kernel)
        map_ = torus_of(conv, (64,))
        (points,) = enough_points(map_.degrees, excess)
        supremum = fft_norms(conv, (64 * points,)).max()
        assert supremum <= (1 + excess) * fft_norms(conv, (points,)).max()
    assert symbol_degrees(
        sc.as_operator(nn.Conv1d(1, 1, 7, 2, dilation=4), (1, 64)).convolution
    ) == (12,)  # type: ignore[arg-type]
