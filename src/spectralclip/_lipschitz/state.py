"""What a forward pass may change of a model: its flags, its attributes, its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spectralclip._lipschitz.memory import written_by
from spectralclip._models import is_sharded_tensor

_SHARDED = object()  # weights that are exchanged for whole ones at work, and stay the same numbers
# Tables that are compared on their own.
_TABLES = ("_parameters", "_buffers", "_modules")


@final
class State:
    """Modules as they are now, to be compared with later on."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parts = {part for module in modules for part in module.modules()}
        self._known = {part: _state(part) for part in parts}
        # What makes a name belong to another object must not be taken for the same one.
        self._held = [tensor for part in parts for tensor in _tensors(part)]

    def holds(self, module: nn.Module) -> bool:
        """Whether a module computes what it did, as far as its state goes."""
        return all(
            part in self._known and _same(self._known[part], _state(part))
            for part in module.modules()
        )


def _tensors(part: nn.Module) -> list[Tensor]:
    tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
    return [tensor for table in tables for tensor in table.values() if tensor is not None]


def _state(part: nn.Module) -> dict[str, Any]:
    """The attributes of a module by name, its tensors by where they lie."""
    own: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(part).items()
        if name not in _TABLES and not name.endswith("_hooks") and "hooks_" not in name
    }
    for table in (part._parameters, part._buffers):
        own.update((f"{name} lies", _place(tensor)) for name, tensor in table.items())
    own.update((f"{name} is", id(child)) for name, child in part._modules.items())
    return own


def _place(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    if is_sharded_tensor(tensor):
        return _SHARDED
    version = None if tensor.is_inference() else tensor._version
    return id(tensor), tensor.untyped_storage()._cdata, version


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return before.keys() == now.keys() and all(
        _equal(value, now[name]) for name, value in before.items()
    )


def _equal(first: Any, second: Any) -> bool:
    if first is second or first is _SHARDED:
        return True
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return False
    if type(first) is not type(second):
        return False
    plain = (bool, int, float, str, tuple, list, torch.dtype, torch.device)
    return isinstance(first, plain) and bool(first == second)


@final
class _Guard(TorchDispatchMode):
    """Keeps a copy of parameters before they are written into."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would load its compiler, which takes seconds, to keep it off the method below."""
        return False

    def __init__(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._by_memory = {_memory(tensor): (name, tensor) for name, tensor in parameters}
        self.copies: dict[str, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Copy what is about to be written into, and go on."""
        for tensor in written_by(func, args, kwargs or {}):
            name, whole = self._by_memory.get(_memory(tensor), ("", tensor))
            if name and name not in self.copies:
                self.copies[name] = whole, whole.detach().clone()
        return func(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # it has none, as sparse ones
        return 0


@contextmanager
def weights_kept(model: nn.Module) -> Iterator[list[str]]:
    """Put back the parameters that the block changes; their names are in the list afterwards."""
    parameters = [(name, p) for name, p in model.named_parameters() if not is_sharded_tensor(p)]
    places = [(name, p, p.detach()) for name, p in parameters]
    changed: list[str] = []
    guard = _Guard((name, place) for name, _, place in places)
    try:
        with guard:
            yield changed
    finally:
        with torch.no_grad():
            for whole, copy in guard.copies.values():
                whole.copy_(copy)
            for name, parameter, place in places:
                if _memory(parameter) != _memory(place):
                    parameter.data = place
                    changed.append(name)
        changed.extend(guard.copies)
