"""Updates from their factors, against their dense matrices in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from adapter_cases import dense, factors
from torch import Tensor, nn

import oracle
import spectralclip as sc
from spectralclip.integrations.adapters import Update

SHAPES: dict[str, tuple[int, ...]] = {
    "wide": (12, 20, 4),
    "tall": (20, 12, 4),
    "of rank one": (20, 12, 1),
    "of more rank than outputs": (3, 12, 5),
    "1x1 convolution": (12, 20, 4, 1, 1),
}
CONVS: dict[str, tuple[int, ...]] = {
    "one axis": (6, 5, 3, 3),
    "two axes": (6, 5, 3, 3, 3),
    "even kernel": (6, 5, 3, 2, 2),
    "of more rank than outputs": (2, 5, 4, 3, 3),
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)


def svdvals(weight: Tensor) -> Tensor:
    return torch.linalg.svdvals(weight.double().flatten(1))


@pytest.mark.parametrize("shape", [*SHAPES.values(), *CONVS.values()])
@pytest.mark.parametrize("dtype", DTYPES)
def test_spectrum_and_delta_are_those_of_the_product(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    A, B = (one.to(dtype) for one in factors(3, *shape))
    update = Update(A, B, 1.7)
    weight = dense(A, B, 1.7)
    values = svdvals(weight)
    torch.testing.assert_close(update.delta(), weight, rtol=1e-12, atol=1e-12)
    found = update.singular_values
    torch.testing.assert_close(found, values[: len(found)], rtol=1e-12, atol=1e-12)
    assert update.norm == pytest.approx(float(values[0]), rel=1e-12)
    assert update.frobenius == pytest.approx(float(weight.norm()), rel=1e-12)
    assert (update.shape, update.rank) == ((shape[0], shape[1]), shape[2])
    assert update.is_convolution == (shape in CONVS.values())


@pytest.mark.parametrize("shape", SHAPES.values())
@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_is_the_projection(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    A, B = (one.to(dtype) for one in factors(4, *shape))
    before = dense(A, B, 2.0)
    U, S, Vh = torch.linalg.svd(before.flatten(1), full_matrices=False)
    bound = float(S[len(S) // 4]) * 0.8
    update = Update(A.clone(), B.clone(), 2.0)
    result = update.clip_(bound)
    after = dense(update.A.detach(), update.B.detach(), 2.0)
    norm = float(svdvals(after)[0])
    nearest = (U * S.clamp(max=bound) @ Vh).reshape(before.shape)
    # What is stored is within, in its own precision; and as near as that allows.
    rounding = torch.finfo(dtype).eps * float(S[0])
    assert norm <= bound * (1 + 1e-12)
    assert float((after - nearest).norm()) <= 4 * rounding + 1e-12
    assert result.norm_before == pytest.approx(float(S[0]), rel=1e-12)
    assert result.norm_after == pytest.approx(norm, rel=1e-9)
    assert result.distance == pytest.approx(float((after - before).norm()), rel=1e-9)
    least = float((before - nearest).norm())
    assert result.distance_lower_bound == pytest.approx(least, rel=1e-9)
    assert (update.A.dtype, update.B.dtype) == (dtype, dtype)


def test_both_factors_give_half() -> None:
    update = Update(torch.eye(2, 5) * 4, torch.eye(4, 2) * 9)
    update.clip_(1.0)
    torch.testing.assert_close(update.A.detach(), torch.eye(2, 5) * 4 / 6)
    torch.testing.assert_close(update.B.detach(), torch.eye(4, 2) * 9 / 6)


@pytest.mark.parametrize("shape", [SHAPES["wide"], CONVS["two axes"]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_within_stays_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    A, B = (one.to(dtype) for one in factors(5, *shape))
    update = Update(A.clone(), B.clone(), 2.0)
    assert update.clip_(update.norm).distance == 0
    assert bits(update) == [one.double().tolist() for one in (A, B)]
    update.clip_(update.norm / 3)
    clipped = bits(update)
    assert update.clip_(update.norm).distance == 0
    assert bits(update) == clipped


def bits(update: Update) -> list[Any]:
    return [one.detach().double().tolist() for one in (update.A, update.B)]


def test_an_update_of_zero_is_within_every_bound() -> None:
    A, B = factors(0, *SHAPES["wide"])
    update = Update(A, torch.zeros_like(B))  # as adapters begin
    assert (update.norm, update.clip_(1e-3).distance) == (0.0, 0.0)
    assert update.svd().rank == 0


# As a layer of the library


@pytest.mark.parametrize("name", SHAPES)
def test_the_library_takes_an_update_for_a_layer(name: str) -> None:
    A, B = factors(6, *SHAPES[name])
    update = Update(A, B, 1.5)
    values = svdvals(dense(A, B, 1.5))
    k = len(update.singular_values)
    found = sc.svds(update, update.in_shape, k=k).S
    torch.testing.assert_close(found.double(), values[:k], rtol=1e-3, atol=1e-5)
    assert float(values[0]) in sc.norm_bounds(update, update.in_shape)
    sc.check_affine(update, update.in_shape)
    bound = float(values[0]) / 2
    result = sc.clip_(update, update.in_shape, bound)
    norm = svdvals(dense(update.A.detach(), update.B.detach(), 1.5))[0]
    assert float(norm) <= bound * 1.001
    least = float((values - bound).clamp_min(0).norm())
    assert least * 0.999 <= result.distance <= least * 1.2


def padding_of(A: Tensor, stride: int = 1) -> Any:
    """Torch warns of "same" for even kernels."""
    return "same" if stride == 1 and A.shape[-1] % 2 else 1


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_measured_at_a_size(name: str, stride: int) -> None:
    A, B = factors(7, *CONVS[name])
    update = Update(A, B, 0.5, stride=stride, padding=padding_of(A, stride))
    in_shape = (5, *(7 for _ in update.kernel_size))
    conv = update.as_convolution(dense(A, B, 0.5))
    norm = float(torch.linalg.matrix_norm(torch.as_tensor(oracle.dense_matrix(conv, in_shape)), 2))
    interval = update.norm_at(in_shape)
    assert norm in interval and interval.width < 0.02
    assert norm in sc.norm_bounds(update, in_shape)
    if stride == 1:  # of the reshaped kernel
        taps = A[0, 0].numel()
        assert update.norm * (1 - 1e-9) <= norm <= taps**0.5 * update.norm


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in CONVS), ("two axes", torch.bfloat16)]
)
def test_a_convolution_is_clipped_at_a_size(name: str, dtype: torch.dtype) -> None:
    A, B = (one.to(dtype) for one in factors(8, *CONVS[name]))
    update = Update(A, B, 0.5, padding=padding_of(A))
    in_shape = (5, *(6 for _ in update.kernel_size))

    def norm() -> float:
        conv = update.as_convolution(dense(update.A.detach(), update.B.detach(), 0.5))
        matrix = torch.as_tensor(oracle.dense_matrix(conv, in_shape))
        return float(torch.linalg.matrix_norm(matrix, 2))

    before = norm()
    result = update.clip_(0.6 * before, in_shape)
    assert 0.55 * before <= norm() <= result.norm_after <= 0.6 * before
    assert result.norm_before == pytest.approx(before, rel=2e-3)
    stored = bits(update)
    assert update.clip_(0.6 * before, in_shape).distance == 0
    assert bits(update) == stored


# What is refused


def nan(tensor: Tensor) -> Tensor:
    tensor[0, 0] = torch.nan
    return tensor


@pytest.mark.parametrize(
    ("A", "B", "scale", "message"),
    [
        (torch.ones(4, 5), torch.ones(6, 3), 1.0, r"got A \(4, 5\) and B \(6, 3\)"),
        (torch.ones(4, 5, 3, 3), torch.ones(6, 4), 1.0, r"got A \(4, 5, 3, 3\) and B \(6, 4\)"),
        (torch.ones(4, 5, 3), torch.ones(6, 4, 3), 1.0, "same update, and"),
        (torch.ones(0, 5), torch.ones(6, 0), 1.0, r"A \(0, 5\)"),
        (torch.ones(4), torch.ones(4), 1.0, r"A \(4,\)"),
        (nan(torch.ones(4, 5)), torch.ones(6, 4), 1.0, "NaN or infinite values in A"),
        (torch.ones(4, 5), nan(torch.ones(6, 4)), 1.0, "NaN or infinite values in B"),
        (torch.ones(4, 5), torch.ones(6, 4), float("nan"), "finite scale"),
        (torch.ones(4, 5).int(), torch.ones(6, 4), 1.0, "real numbers in A, got torch.int32"),
    ],
)
def test_factors_that_are_no_update_are_refused(
    A: Tensor, B: Tensor, scale: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Update(A, B, scale, name="layer")


def test_factors_that_are_no_tensors_are_refused() -> None:
    A, B = factors(0, 12, 20, 4)
    with pytest.raises(TypeError, match=r"expected a tensor as B, got ndarray.*from_numpy"):
        Update(A, B.numpy())  # type: ignore[arg-type]


def test_bounds_and_shapes_are_checked() -> None:
    A, B = factors(9, *CONVS["two axes"])
    update = Update(A, B, name="conv")
    before = bits(update)
    for bad in (0, -1.0, float("nan"), "1"):
        with pytest.raises(ValueError, match="max_norm"):
            update.clip_(bad)  # type: ignore[arg-type]
    for shape in (None, (5, 6), (4, 6, 6)):
        with pytest.raises(ValueError, match=r"conv is a convolution.*such as \(5, 32, 32\)"):
            update.norm_at(shape)
    assert bits(update) == before


def test_parameters_are_shared() -> None:
    linear = nn.Linear(5, 4)
    update = Update(linear.weight, nn.Parameter(torch.eye(4)))
    assert update.A is linear.weight
    update.clip_(update.norm / 2)
    assert update.A is linear.weight and update.A.requires_grad
