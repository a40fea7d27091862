"""What is asked of a device: operations that it runs, values that the host waits for, and bytes.

A count on the CPU tells what a GPU would have to do, as far as it is asked for the same operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Other shapes of the same memory: nothing runs on the device.
VIEWS = frozenset(
    """
    view unsqueeze transpose expand slice select unbind split split_with_sizes reshape detach
    permute t squeeze alias diagonal as_strided unflatten _unsafe_view lift_fresh unfold
    """.split()  # noqa: SIM905
)
# Memory that is set aside, and not written to.
RESERVED = frozenset("empty empty_like empty_strided new_empty new_empty_strided".split())  # noqa: SIM905
# The host has to know a value, or how many there are, to go on.
READS = frozenset(
    """
    _local_scalar_dense item is_nonzero nonzero equal allclose masked_select _unique2 unique_dim
    unique_consecutive _linalg_check_errors
    """.split()  # noqa: SIM905
)
INDEXED = frozenset("index index_put index_put_ _index_put_impl_".split())  # noqa: SIM905
OVERWRITTEN = frozenset("copy_ _foreach_copy_ fill_ zero_".split())  # noqa: SIM905
# These are not dispatched where tensors are on the CPU; the others are, as one of `READS`.
CALLED_READS = ("tolist", "numpy")


@dataclass
class Count:
    """What was counted.

    Attributes:
        kernels: Operations that a device runs. An operation counts as one, also where a library of
            the device launches several kernels for it, as for a Cholesky decomposition.
        views: Operations that change no memory: they cost the host alone.
        reads: Values that the host waits for.
        bytes: Of the inputs and outputs of all kernels.
    """

    kernels: int = 0
    views: int = 0
    reads: int = 0
    bytes: int = 0


@contextmanager
def counting() -> Iterator[Count]:
    """Counts what is called inside.

    Example:
        >>> import torch
        >>> x = torch.zeros(4)
        >>> with counting() as count:
        ...     y = x.view(2, 2) + 1
        >>> count
        Count(kernels=1, views=1, reads=0, bytes=32)
    """
    with ExitStack() as stack:
        counter = _Counter()
        for name in CALLED_READS:
            read = counter.reading(getattr(Tensor, name))
            stack.enter_context(patch.object(Tensor, name, read))
        stack.enter_context(counter)
        yield counter.count


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = Count()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would load its compiler, which takes seconds, to keep it off this mode."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._take(func, args, kwargs, result)
        return result

    def _take(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        name = func.overloadpacket.__name__
        if name in VIEWS:
            self.count.views += 1
        elif name not in RESERVED:
            self.count.reads += is_read(name, args, kwargs)
            self.count.kernels += num_kernels(name, args)
            self.count.bytes += moved_bytes(func, args, kwargs, result)

    def reading(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, which counts as a read."""

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.count.reads += 1
            self.count.kernels += 1
            self.count.bytes += tensor_bytes(tensor)
            return method(tensor, *args, **kwargs)

        return read


def is_read(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the host waits: for a value, for a number of them, or for another device."""
    tensors = _tensors((args, kwargs))
    if name in INDEXED:
        return any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
    if name == "_to_copy":
        target = kwargs.get("device")
        return target is not None and torch.device(target).type != tensors[0].device.type
    if name == "copy_":
        return tensors[0].device.type != tensors[1].device.type
    return name in READS


def num_kernels(name: str, args: Any) -> int:
    """One, but for a call on lists of tensors that cannot be done at once.

    On lists it can where all tensors are contiguous, and those at the same place of equal shape.
    """
    lists = [own for own in args if isinstance(own, (list, tuple)) and _tensors(own)]
    if not name.startswith("_foreach_") or not lists:
        return 1
    places = list(zip(*lists, strict=False))
    at_once = all(
        tensor.is_contiguous() and tensor.shape == place[0].shape
        for place in places
        for tensor in place
        if isinstance(tensor, Tensor)
    )
    return 1 if at_once else len(places)


def moved_bytes(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> int:
    """Of what an operation reads and writes; what is changed in place counts for both."""
    outputs = {argument.name for argument in func._schema.arguments if argument.is_out}
    given = _tensors((args, {name: x for name, x in kwargs.items() if name not in outputs}))
    if func.overloadpacket.__name__ in OVERWRITTEN:
        return _sum_bytes(given)
    made = _tensors(result)
    if not made and func._schema.name.endswith("_"):  # in place on lists: returns nothing
        made = _tensors(args[0])
    return _sum_bytes(given) + _sum_bytes(made)


def tensor_bytes(tensor: Tensor) -> int:
    """Of the memory that is looked at: what is repeated by a view counts once."""
    if not tensor.numel():
        return 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in sizes if stride)


def _sum_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor_bytes(tensor) for tensor in tensors)


def _tensors(tree: Any) -> Sequence[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
