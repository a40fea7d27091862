"""To and from other libraries: arrays as tensors, and operators as SciPy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator as ScipyOperator

    from spectralclip._operators.operator import LinearOperator


def as_tensor(array: Any, name: str) -> Tensor:
    """A real array as a floating-point tensor; whole numbers become float64.

    Arrays that cannot be written to, and those whose memory is another library's, are copied: what
    torch makes of them is ours alone.

    Args:
        array: A tensor, a NumPy array, or anything with `__dlpack__` or `__array__`.
        name: What it is, for errors.
    """
    tensor = array.detach() if isinstance(array, Tensor) else _read(array, name)
    if tensor.is_complex():
        raise TypeError(
            f"{name} has dtype {tensor.dtype}, expected real numbers: with blocks [[Re, -Im], "
            "[Im, Re]] of channels it is real, and has the same norm."
        )
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
        raise TypeError(
            f"{name} is a tensor {kind}, expected a dense one with its numbers in memory."
        )
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def _read(array: Any, name: str) -> Tensor:
    by_dlpack = hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray)
    if not (by_dlpack or hasattr(array, "__array__")):
        raise TypeError(
            f"{name} must be a NumPy array, a tensor, or have `__array__` or `__dlpack__`, got "
            f"{type(array).__name__}."
        )
    try:
        # NumPy has no bfloat16 of its own, which arrays of JAX often are in: DLPack has.
        return _from_dlpack(array) if by_dlpack else _from_numpy(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if by_dlpack and hasattr(array, "__array__"):  # on a device that this torch does not have
            return _from_numpy(array)
        raise TypeError(
            f"{name} is a {type(array).__name__} that cannot be read: {error}. Convert it to a "
            "NumPy array of real numbers first."
        ) from error


def _from_numpy(array: Any) -> Tensor:
    # In the byte order of this machine, and contiguous, which torch asks for.
    plain = np.asarray(array)
    return torch.from_numpy(np.array(plain, dtype=plain.dtype.newbyteorder("="), order="C"))


def _from_dlpack(array: Any) -> Tensor:
    read: Any = torch.utils.dlpack.from_dlpack
    found: Tensor = read(array)
    return found.clone()


def scipy_operator(op: LinearOperator) -> ScipyOperator:
    """An operator on flat NumPy vectors, for SciPy's sparse solvers."""
    from scipy.sparse.linalg import LinearOperator as ScipyOperator

    def through(apply: Any, shape: tuple[int, ...]) -> Any:
        def on_columns(columns: Any) -> Any:
            flat = torch.as_tensor(columns).to(op.device, op.dtype)
            rows = flat.reshape(flat.shape[0], -1).T
            result = apply(rows.reshape(-1, *shape)).reshape(rows.shape[0], -1)
            return result.T.reshape(-1, *columns.shape[1:]).cpu().numpy()

        return on_columns

    matmat, rmatmat = through(op.matvec, op.in_shape), through(op.rmatvec, op.out_shape)
    dtype = torch.empty(0, dtype=op.dtype, device="cpu").numpy().dtype
    both = {"matvec": matmat, "matmat": matmat, "rmatvec": rmatmat, "rmatmat": rmatmat}
    return ScipyOperator(shape=op.shape, dtype=dtype, **both)
