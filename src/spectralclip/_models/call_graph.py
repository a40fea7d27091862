"""Which module reads what another one has made, seen while a model runs.

Modules are seen through hooks, everything else through a dispatch mode, which every operation on
a tensor passes, those of scripted parts and of custom autograd functions too. Unlike symbolic
tracing this works for any model that runs, in one run. It sees the one path that the example takes,
and nothing of what foreign code does with a tensor's memory.

Tensors are told apart as objects. A module that hands on the very tensor that it is given, as
`nn.Identity` and dropout in evaluation do, stands in nobody's way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from spectralclip._common import Shape


@final
@dataclass(eq=False)
class Call:
    """One call of a module."""

    module: nn.Module
    # The shape of one input; None where it is not called with one tensor alone
    in_shape: Shape | None = None
    # Whether the input came with a batch dimension; None where that is not kept
    batched: bool | None = True
    source: Call | None = None  # the call whose output it read, just as that was made
    # The modules under watch that read its output, once for each time
    readers: list[nn.Module] = field(default_factory=list)
    escapes: bool = False  # whether its output is read by anything else, or returned by the model


def distinct_shapes(calls: Iterable[Call]) -> tuple[Shape, ...]:
    """The shapes of the inputs, each once, in the order of their appearance."""
    return tuple(dict.fromkeys(call.in_shape for call in calls if call.in_shape is not None))


@final
class Watch:
    """Notes the calls of modules, who reads their outputs, and parameters used without a call."""

    def __init__(self, whole: Iterable[nn.Module], containers: Iterable[nn.Module]) -> None:
        self.calls: dict[nn.Module, list[Call]] = {}  # in the order of the modules' first calls
        # The ids of parameters that something else has read than a call of their module.
        self.read_outside: set[int] = set()
        self._parameters = {module: {id(p) for p in module.parameters()} for module in whole}
        self._containers = list(containers)
        self._known = {
            id(parameter)
            for module in (*self._parameters, *self._containers)
            for parameter in module.parameters()
        }
        self._running: list[tuple[Call, set[int]]] = []
        # By tensor: the call that made it, and how often it had been written into then.
        self._made: Any = WeakIdKeyDictionary()

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._containers:
                stack.callback(module.register_forward_pre_hook(self._note).remove)
            stack.enter_context(around_calls(self._parameters, self._enter, self._leave))
            yield

    def read(self, tensor: Tensor) -> None:
        """Note that something reads a tensor."""
        made = self._made.get(tensor)
        if made is not None and not self._is_being_read(tensor):
            made[0].escapes = True
        if id(tensor) in self._known and not any(
            id(tensor) in self._parameters[call.module] for call, _ in self._running
        ):
            self.read_outside.add(id(tensor))

    def _is_being_read(self, tensor: Tensor) -> bool:
        """Whether it is an input of a module at work, which is how it has been counted."""
        return any(id(tensor) in inputs for _, inputs in self._running)

    def _note(self, module: nn.Module, args: Any) -> None:
        self.calls.setdefault(module, []).append(Call(module))

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call, given = Call(module), [*args, *kwargs.values()]
        self.calls.setdefault(module, []).append(call)
        inputs = list(tensors_in(given))
        if len(given) == 1 and isinstance(given[0], Tensor):
            call.in_shape, call.batched = in_shape_of(module, given[0])
            call.source = self._maker(given[0])
        if call.source is None:
            for tensor in inputs:
                self.read(tensor)
        else:
            call.source.readers.append(module)
        self._running.append((call, {id(tensor) for tensor in inputs}))

    def _maker(self, tensor: Tensor) -> Call | None:
        """The call that made a tensor as it is; it may have been written into meanwhile."""
        call: Call | None
        call, version = self._made.get(tensor, (None, None))
        return call if version == _version(tensor) and not self._is_being_read(tensor) else None

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call, _ = self._running.pop()
        if output is None:  # it has failed
            self.calls[module].remove(call)
        elif isinstance(output, Tensor):
            if call.batched and any(x.shape[:1] != output.shape[:1] for x in tensors_in(args)):
                call.batched = None
            self._made[output] = (call, _version(output))


@contextmanager
def around_calls(
    modules: Iterable[nn.Module], enter: Callable[..., None], leave: Callable[..., None]
) -> Iterator[None]:
    """Hook functions before and after all calls of modules, around the hooks that these carry."""
    with ExitStack() as stack:
        for module in modules:
            before = module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            after = module.register_forward_hook(leave, with_kwargs=True, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield


class OperationsMode(TorchDispatchMode):
    """Sees every operation on tensors."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would load its compiler, which takes seconds, to keep it off the dispatch."""
        return False


@final
class Operations(OperationsMode):
    """Tells of every tensor that an operation reads."""

    def __init__(self, read: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._read = read

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in tensors_in((args, kwargs)):
            self._read(tensor)
        return func(*args, **(kwargs or {}))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in([getattr(value, f.name) for f in dataclasses.fields(value)])


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def in_shape_of(module: nn.Module, x: Tensor) -> tuple[Shape, bool]:
    """The shape of one input, as the rest of the library wants it; whether there is a batch."""
    if isinstance(module, nn.Embedding):
        return (*x.shape[1:], module.num_embeddings), x.ndim > 0
    kernel = module.kernel_size if isinstance(module, nn.modules.conv._ConvNd) else ()
    batched = x.ndim != (len(kernel) + 1 if kernel else 1)
    return tuple(x.shape[1:] if batched else x.shape), batched


def follows(second: Sequence[Call], first: Sequence[Call]) -> bool:
    """Whether each call of the one reads what a call of the other made, and each of them once."""
    sources = {call.source for call in second}
    return (
        sources == set(first)
        and len(second) == len(first)
        # Else the composition, which always has a batch, would be another function.
        and all(call.source and call.source.batched == call.batched for call in second)
    )


def direct_readers(calls: Mapping[nn.Module, list[Call]]) -> dict[nn.Module, nn.Module]:
    """For modules whose outputs one other module reads, and nothing else, that module."""
    found = {}
    for module, own in calls.items():
        readers = {reader for call in own for reader in call.readers}
        if len(readers) == 1 and not any(call.escapes for call in own):
            (reader,) = readers
            if follows(calls[reader], own):
                found[module] = reader
    return found


def chains(links: Mapping[nn.Module, nn.Module]) -> Iterator[tuple[nn.Module, ...]]:
    """The longest paths along links, each of which leads to another module."""
    inner = set(links.values())
    for head in links:
        if head not in inner:
            chain = [head]
            while chain[-1] in links:
                chain.append(links[chain[-1]])
            yield tuple(chain)
