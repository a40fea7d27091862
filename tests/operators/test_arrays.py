"""Arrays as tensors: whatever their library, their order and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spectralclip._operators.arrays import as_tensor

NUMBERS = np.arange(6.0).reshape(2, 3)


class OnlyArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return NUMBERS


class OnlyDlpack:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class NoDevice(OnlyArray):
    """As an array on a device that this torch does not have."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("on a device of its own")

    def __dlpack_device__(self) -> Any:
        return (1, 0)


def read_only() -> Any:
    array = NUMBERS.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        NUMBERS,
        read_only(),
        np.asfortranarray(NUMBERS),
        NUMBERS[::-1][::-1],
        NUMBERS.astype(">f8"),
        NUMBERS.astype(np.int16),
        torch.from_numpy(NUMBERS),
        OnlyArray(),
        OnlyDlpack(torch.from_numpy(NUMBERS)),
        NoDevice(),
    ],
    ids=lambda array: type(array).__name__,
)
def test_numbers_are_kept(array: Any) -> None:
    found = as_tensor(array, "kernel")
    assert found.dtype == torch.float64
    np.testing.assert_array_equal(found.numpy(), NUMBERS)


def test_precision_is_kept_half_included() -> None:
    assert as_tensor(NUMBERS.astype(np.float32), "kernel").dtype == torch.float32
    half = OnlyDlpack(torch.from_numpy(NUMBERS).bfloat16())
    assert as_tensor(half, "kernel").dtype == torch.bfloat16


def test_memory_of_others_is_not_shared() -> None:
    array = NUMBERS.copy()
    found = as_tensor(OnlyDlpack(torch.from_numpy(array)), "kernel")
    array[:] = 7
    np.testing.assert_array_equal(found.numpy(), NUMBERS)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ([[1.0]], "kernel must be a NumPy array, a tensor, or have .*got list"),
        (NUMBERS * 1j, "kernel has dtype torch.complex128, expected real"),
        (
            torch.eye(3).to_sparse(),
            "kernel is a tensor of layout torch.sparse_coo, expected a dense",
        ),
        (torch.empty(3, 3, device="meta"), "kernel is a tensor on the meta device"),
        (np.array([["a"]]), "kernel is a ndarray that cannot be read"),
    ],
)
def test_what_is_no_array_is_refused(array: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        as_tensor(array, "kernel")
