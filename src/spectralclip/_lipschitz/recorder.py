"""Follow the numbers of an input through a forward pass, operation by operation.

Every operation on tensors passes a dispatch mode, those of scripted parts and of custom autograd
functions too, so that nothing that torch computes from the input is missed. Hooks make one
operation of a call of a module that is known to be affine; a function mode does the same for the
few functions that are more than the sum of their operations, and sees numbers leave torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from spectralclip._lipschitz.flow import Ref, leaves
from spectralclip._lipschitz.recording import (
    RANDOM,
    TOKEN,
    UNSEEN,
    WEIGHT,
    Recording,
    among,
    entries_apart,
    out_of_place,
    places,
    same_place,
    written_by,
)
from spectralclip._models import OperationsMode, around_calls, is_sharded_tensor, tensors_in

_SHARDED = object()  # weights that are exchanged for whole ones at work, and stay the same numbers
# Tables that are compared on their own.
_TABLES = ("_parameters", "_buffers", "_modules")
# Their results do not depend on the numbers of their first argument.
_SHAPE_ALONE = {
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("randint_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
    *("copy_", "copy", "fill_", "fill", "zero_", "zero"),
    *("bernoulli_", "normal_", "uniform_", "exponential_", "random_"),
}
# Views that are told where in the memory to look, not at which entries of their argument.
_BY_ADDRESS = {"as_strided", "as_strided_", "_reshape_alias"}
_EMBEDDINGS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only")
_LEAVES_TORCH = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)
# These make a tensor out of numbers that they read, or out of memory, where no mode sees them.
_MAKES_ANEW = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, Tensor.__deepcopy__)
# A model may do with a number as it likes: whole ones come back as factors too.
_READS_OUT = (Tensor.item, Tensor.__float__, Tensor.__int__, Tensor.__complex__)
_CHOOSES = (Tensor.__bool__, Tensor.__index__)  # a way, or how often it is gone
_UNUSUAL = (*_LEAVES_TORCH, *_MAKES_ANEW, *_READS_OUT, *_CHOOSES)
_SETS_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_DECIDES = ("equal", "allclose", "is_nonzero", "nonzero")  # by a bool, or by a shape


@final
class Operations(OperationsMode):
    """Notes each operation that reads something that depends on the input."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, recording = kwargs or {}, self._recording
        written = written_by(func, args, kwargs)
        for tensor in written:
            recording.before_writing(tensor)
        if recording.inside:
            output = func(*args, **kwargs)
            for tensor in written:
                if recording.memories.known(tensor) or recording.lasts(tensor):
                    recording.memories.write(tensor, recording.unseen(tensor))
            return output
        name = _name(func)
        if name == "copy_" and same_place(*args[:2]):  # as the last act of `x[...] += y`
            recording.put(args[0], recording.read(args[1]))
            return func(*args, **kwargs)
        tags, noted = recording.tags_of((args, kwargs)), recording.noted((args, kwargs))
        if name in _SHAPE_ALONE and noted[0] and isinstance(noted[0][0], (Ref, Tensor)):
            # Memory that nobody has written to may hold anything, NaN too.
            noted = ((torch.zeros_like(args[0]), *noted[0][1:]), noted[1])
        sizes = [tensor.shape for tensor in written]
        known = self._places(args[0]) if name in _BY_ADDRESS and args else None
        output = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            tags |= {RANDOM}
        if name == "set_":  # into memory of which others know
            for tensor in written:
                recording.put(tensor, recording.unseen(tensor), write=True)
        elif not _follows(noted):
            self._unfollowed(name, output, written, tags)
        elif name in _BY_ADDRESS:
            self._readdressed(noted, known, output)
        elif name == "_local_scalar_dense":
            recording.read_out(noted[0][0])
        else:
            if name in _DECIDES:
                recording.decision()
            self._followed(func, name, noted, output, written, tags)
            if torch.Tag.inplace_view not in getattr(func, "tags", ()):
                self._resized(written, sizes)
        return output

    def _places(self, tensor: Tensor) -> Tensor:
        with self._recording.as_one():
            return places(tensor)

    def _readdressed(self, noted: tuple[Any, Any], known: Tensor | None, output: Tensor) -> None:
        """A view by address, which may reach beyond what its argument shows of the memory."""
        recording = self._recording
        with recording.as_one():
            index = None if known is None else among(known, places(output))
        if index is None:
            recording.put(output, recording.unseen(output))
            return
        taken: tuple[Any, Any] = ((noted[0][0], index.to(output.device)), {})
        recording.put(
            output, recording.add("take", taken, output, function=torch.ops.aten.take.default)
        )

    def _resized(self, written: Sequence[Tensor], sizes: Sequence[torch.Size]) -> None:
        """Some operations enlarge what they write into, over its neighbours in memory."""
        for tensor, size in zip(written, sizes, strict=True):
            if tensor.shape != size:
                self._recording.put(tensor, self._recording.unseen(tensor), write=True)

    def _unfollowed(
        self, name: str, output: Any, written: Sequence[Tensor], tags: frozenset[str]
    ) -> None:
        """An operation whose result does not depend on the input, or on its tokens alone."""
        recording = self._recording
        if name == "_local_scalar_dense":
            recording.read_weights(_weights(tags))
        if TOKEN in tags and name in _EMBEDDINGS:
            recording.source(next(tensors_in(output)))
            recording.flow.embedded.append(recording.where)
            return
        for tensor in written:
            if recording.memories.known(tensor):
                recording.put(tensor, None, write=True)
        if tags:
            recording.tag((*tensors_in(output), *written), tags)

    def _followed(
        self,
        func: Any,
        name: str,
        noted: tuple[Any, Any],
        output: Any,
        written: Sequence[Tensor],
        tags: frozenset[str],
    ) -> None:
        in_place = bool(written) and name.endswith("_")
        function = out_of_place(func) if in_place else func
        name = name.rstrip("_") if in_place else name
        several = not in_place and isinstance(output, (tuple, list))
        changed = {id(tensor) for tensor in written}
        for place, tensor in enumerate(written if in_place else tensors_in(output)):
            # An operation with an `out` argument has no form without it here.
            lost = function is None or (not in_place and id(tensor) in changed)
            # Where entries share a place, each is written in turn, on top of the others.
            lost = lost or (id(tensor) in changed and not entries_apart(tensor))
            how = {"item": place if several else None, "reason": UNSEEN if lost else ""}
            index = self._recording.add(
                name, noted, tensor, function=function, **how, **_made_of(tags)
            )
            self._recording.put(tensor, index, write=id(tensor) in changed)
            changed.discard(id(tensor))
        for tensor in written:
            if id(tensor) in changed:
                self._recording.put(tensor, self._recording.unseen(tensor), write=True)


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


def _equal(first: Any, second: Any) -> bool:
    if first is second or first is _SHARDED:
        return True
    plain = (bool, int, float, str, tuple, list, torch.dtype, torch.device)
    return type(first) is type(second) and isinstance(first, plain) and bool(first == second)


@final
class Calls:
    """Follows the calls of modules, and makes one operation of some."""

    def __init__(self, recording: Recording, whole: Mapping[nn.Module, str]) -> None:
        self._recording, self._whole = recording, whole
        parts = {part for module in whole for part in module.modules()}
        self._known = {part: _state(part) for part in parts}
        # As long as tensors are held, no other object takes their identity.
        self._held = [[*part._parameters.values(), *part._buffers.values()] for part in parts]
        self._running: list[Any] = []  # what modules that are at work were called with

    @contextmanager
    def hooked(self) -> Iterator[None]:
        names = self._recording.flow.names
        modules = [m for m in names if not isinstance(m, torch.jit.ScriptModule)]
        with around_calls(modules, self._enter, self._leave):
            yield

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recording, noted = self._recording, None
        recording.path.append(recording.flow.names[module])
        # Its norm is taken afterwards, when what the model has changed of it has been put back.
        if module in self._whole and not recording.inside and self._is_unchanged(module):
            noted = recording.noted(_unpacked((args, kwargs)))
            noted = noted if _follows(noted) else None
        self._running.append(noted)
        recording.inside += noted is not None

    def _is_unchanged(self, module: nn.Module) -> bool:
        """Whether a module computes what it did, as far as its state goes."""
        for part in module.modules():
            before, now = self._known.get(part), _state(part)
            if before is None or before.keys() != now.keys():
                return False
            if not all(_equal(value, now[name]) for name, value in before.items()):
                return False
        return True

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        recording, noted = self._recording, self._running.pop()
        if noted is not None:
            recording.inside -= 1
            if not any(output is given for given in (*args, *kwargs.values())):
                reason = self._whole[module]
                recording.whole(type(module).__name__, noted, output, module=module, reason=reason)
        recording.path.pop()


@final
class Functions(TorchFunctionMode):
    """Makes one operation of calls of some functions, and sees numbers leave torch."""

    def __init__(self, recording: Recording, whole: Mapping[Any, str]) -> None:
        super().__init__()
        self._recording, self._whole = recording, whole

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, recording = kwargs or {}, self._recording
        if func == _SETS_DATA:
            output = func(*args, **kwargs)
            recording.put(args[0], recording.read(args[1]))
            return output
        if recording.inside or not (func in self._whole or func in _UNUSUAL):
            return func(*args, **kwargs)
        noted = recording.noted((args, kwargs))
        if not _follows(noted):
            if func in _LEAVES_TORCH:
                recording.read_weights(_weights(recording.tags_of((args, kwargs))))
            return func(*args, **kwargs)
        if func in _LEAVES_TORCH:
            recording.escape(func.__name__)
            return func(*args, **kwargs)
        if func in _MAKES_ANEW:
            output = func(*args, **kwargs)
            if recording.read(output) is None:
                recording.escape(func.__name__)
            return output
        if func in _READS_OUT:
            recording.escape("item")
        if func in _CHOOSES:
            recording.decision()
        with recording.as_one():
            output = func(*args, **kwargs)
        if func in _READS_OUT or func in _CHOOSES:
            return output
        made_of = _made_of(recording.tags_of((args, kwargs)))
        how = {"function": func, "reason": self._whole[func], **made_of}
        recording.whole(func.__name__, noted, output, **how)
        return output


def _name(func: Any) -> str:
    """The name of an operation; with its library, where that is not torch's own."""
    own = getattr(func, "namespace", "") == "aten" and hasattr(func, "overloadpacket")
    return func.overloadpacket.__name__ if own else str(func)


def _made_of(tags: frozenset[str]) -> dict[str, Any]:
    """What a node keeps of where its constants come from."""
    return {"random": RANDOM in tags, "weights": _weights(tags)}


def _weights(tags: frozenset[str]) -> frozenset[str]:
    """The parameters and buffers among what constants come from."""
    return frozenset(tag.removeprefix(WEIGHT) for tag in tags if tag.startswith(WEIGHT))


def _unpacked(arguments: Any) -> Any:
    """With a tuple of its numbers for a packed sequence, whose type takes nothing but tensors."""

    def is_packed(value: Any) -> bool:
        return isinstance(value, PackedSequence)

    return tree_map_only(PackedSequence, lambda x: (x.data,), arguments, is_leaf=is_packed)


def _follows(noted: Any) -> bool:
    return any(isinstance(leaf, Ref) for leaf in leaves(noted))
