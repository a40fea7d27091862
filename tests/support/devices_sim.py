"""Devices that are not here, simulated: one without float64, and one that multiplies in TF32.

`without_float64()` is a device of its own (torch's unused device type "lazy"), as strict as Apple's
MPS: its tensors wrap tensors of the CPU, so that what is on it cannot be mixed with what is not,
nor read by NumPy. Whatever would make float64 on it raises, also a copy to the CPU that widens on
the way, since such a device converts before it copies. It has no decompositions of matrices.

`tf32_products()` rounds the factors of products on the CPU as CUDA does, whenever torch's settings
allow it at the moment of the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

NARROW = torch.device("lazy", 0)
TOO_WIDE = (torch.float64, torch.complex128)
COPIES = ("_to_copy", "copy_")
TAKES_CPU_INDICES = ("index", "index_put", "index_put_", "_index_put_impl_")
MISSING = (
    *("linalg_qr", "_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_cholesky_ex", "cholesky"),
    *("linalg_solve_triangular", "linalg_lstsq", "geqrf", "linalg_householder_product"),
)


class NarrowTensor(torch.Tensor):
    """A tensor on the simulated device, which holds its values on the CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> NarrowTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=NARROW,
        )

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __repr__(self) -> str:  # type: ignore[override]
        return f"NarrowTensor({self.values!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied = NarrowTensor(self.values.detach().clone()).requires_grad_(self.requires_grad)
        return torch.nn.Parameter(copied) if isinstance(self, torch.nn.Parameter) else copied

    def new_tensor(self, data: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        return torch.tensor(data, dtype=kwargs.get("dtype", self.dtype)).to(NARROW)

    def tolist(self) -> Any:
        return self.values.tolist()

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(with_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(with_tensors(index), value)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def with_tensors(index: Any) -> Any:
    """Lists as tensors: torch would make these where no simulation sees it."""
    if isinstance(index, tuple):
        return tuple(with_tensors(part) for part in index)
    return torch.tensor(index, dtype=torch.long) if isinstance(index, list) else index


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, on the device if an argument lies there or the result is to."""
    name = func.overloadpacket.__name__
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    narrow = [x for x in tensors if isinstance(x, NarrowTensor)]
    asked = kwargs.get("device")
    target = torch.device(asked) if asked is not None else (NARROW if narrow else None)
    there = target is not None and target.type == NARROW.type
    if not narrow and not there:
        return func(*args, **kwargs)
    if name == "copy_":
        there = isinstance(args[0], NarrowTensor)
    check(name, tensors, narrow, there, kwargs)
    # In place, the same tensor comes out that went in.
    own = {id(x.values): x for x in narrow}

    def wrapped(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not there:
            return x
        if x.dtype in TOO_WIDE:
            raise TypeError(f"{name} makes {x.dtype} on a device that has none.")
        return own.get(id(x)) if id(x) in own else NarrowTensor(x)

    given = kwargs
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner = tree_map(lambda x: x.values if isinstance(x, NarrowTensor) else x, (args, kwargs))
    with torch.utils._python_dispatch._disable_current_modes():
        result = func(*inner[0], **inner[1])
    outcome = tree_map(wrapped, result)
    # Views lie in the memory of what they are views of, which the library asks for.
    if there and is_view(func):
        return return_and_correct_aliasing(func, args, given, outcome)
    return outcome


@cache
def is_view(func: Any) -> bool:
    """Whether what comes out shares memory with what went in, and is not that itself."""
    aliases = [part.alias_info for part in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def check(
    name: str, tensors: list[Any], narrow: list[Any], there: bool, kwargs: dict[str, Any]
) -> None:
    """Raise where the device could not do it."""
    if name in MISSING:
        raise NotImplementedError(f"{name} is not implemented on this device.")
    if there and kwargs.get("generator") is not None:
        raise RuntimeError(f"{name} on the device was given a generator of the CPU.")
    wide = kwargs.get("dtype") in TOO_WIDE if name == "_to_copy" else False
    if narrow and (wide or (name == "copy_" and tensors[0].dtype in TOO_WIDE)):
        raise TypeError(f"{name} converts to float64 on a device that has none.")
    if name in COPIES:
        return
    looked_at = tensors[:1] if name in TAKES_CPU_INDICES else tensors
    if any(x.ndim > 0 and not isinstance(x, NarrowTensor) for x in looked_at):
        raise RuntimeError(f"{name} got tensors of the CPU and of the device.")


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would load its compiler, which takes seconds, to keep it off these modes."""
        return False


class _Narrow(_Mode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@contextmanager
def without_float64() -> Iterator[torch.device]:
    """A device without float64, for modules and tensors that are sent `.to` it."""
    with _Narrow():
        yield NARROW


# --- TF32 -----------------------------------------------------------------------------------

CONVOLUTIONS = ("convolution", "_convolution", "convolution_backward", "mkldnn_convolution")
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "addmm_", "baddbmm_", "dot")


def rounded(x: Any) -> Any:
    """A float32 tensor with ten bits of mantissa, as TF32 has."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
        return x
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


class _TF32(_Mode):
    def __init__(self) -> None:
        super().__init__()
        self.shortened = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        conv = name in CONVOLUTIONS and torch.backends.cudnn.allow_tf32
        product = name in PRODUCTS and torch.backends.cuda.matmul.allow_tf32
        if (conv or product) and any(
            isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in args
        ):
            self.shortened += 1
            kept = 1 if name.startswith(("addm", "baddbmm")) else 0  # the summand stays
            args = (*args[:kept], *(rounded(x) for x in args[kept:]))
        return func(*args, **(kwargs or {}))


@contextmanager
def tf32_products() -> Iterator[_TF32]:
    """Products with factors in TF32 where the settings allow it; counts those that were."""
    with _TF32() as mode:
        yield mode
