"""The examples of a batch one by one, if they do not influence each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spectralclip._linalg import wide
from spectralclip._lipschitz.jacobian import nudged
from spectralclip._lipschitz.recording import hides_tensors, written_by
from spectralclip._models import OperationsMode, in_evaluation, is_sharded_tensor, tensors_in

Call: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
"""What a model is called with."""

# Examples that are looked at, one by one: each takes a pass of the model under watch, and up to 80
# products with its Jacobian.
MOST_EXAMPLES = 8
# Of the largest output: what sums in another order leave, 1e-6 in float32 and one rounding in half
# precision.
_SAME = 1e-3


def first_run(model: nn.Module, whole: Call) -> tuple[list[Tensor], list[str]]:
    """The outputs of a model, and the names of the weights that it changes itself."""
    try:
        with weights_kept(model) as changed:
            together = outputs(model, whole)
        return together, changed
    except Exception:  # of the model's own, which will come again, or about being watched
        return outputs(model, whole), []


def examples_of(
    model: nn.Module, whole: Call, together: Sequence[Tensor]
) -> tuple[list[Call], list[Call]]:
    """The examples of a batch one by one, or the whole batch where they influence each other.

    What looks like influence may be a decision that the model takes for the batch. So the single
    examples come second in that case, as far as the model takes them.
    """
    sizes = {tensor.shape[:1] for tensor in tensors_in(whole)}
    if len(sizes) != 1 or not (size := sizes.pop()) or size[0] < 2 or hides_tensors(whole):
        return [whole], []
    count = min(size[0], MOST_EXAMPLES)
    places = dict.fromkeys((*range(count), size[0] // 2, size[0] - 1))
    rows = [_row(whole, place) for place in range(count)]
    try:
        if not _apart(model, whole, together, list(places)):
            return [whole], rows
    except Exception:  # whatever the model does not like about one example alone
        return [whole], []
    try:  # examples that are alike, or zero, do not show what they do to each other
        moved = _moved(whole)
        apart = _apart(model, moved, outputs(model, moved), list(places))
    except Exception:  # it may be picky about its numbers
        apart = True
    return (rows, []) if apart else ([whole], rows)


def _apart(
    model: nn.Module, whole: Call, together: Sequence[Tensor], places: Sequence[int]
) -> bool:
    """Whether some examples come out alone as they do in the batch."""
    size = next(tensors_in(whole)).shape[:1]
    if any(many.shape[:1] != size for many in together):
        return False
    for place in places:
        alone = outputs(model, _row(whole, place))
        if len(alone) != len(together) or not all(
            one.shape == (1, *many.shape[1:]) and _close(one[0], many[place])
            for one, many in zip(alone, together, strict=True)
        ):
            return False
    return True


def _row(whole: Call, place: int) -> Call:
    """One example of a batch, as a batch of one."""
    return _each(whole, lambda x: x[place : place + 1])


def _each(call: Call, change: Callable[[Tensor], Tensor]) -> Call:
    """The same call with each of its tensors changed."""
    changed: Call = tree_map_only(Tensor, change, (list(call[0]), dict(call[1])))
    return changed


def _moved(whole: Call) -> Call:
    """The same batch, each number moved by about as much as it is large."""
    generator = torch.Generator("cpu").manual_seed(0)
    return _each(whole, lambda x: nudged(x, 1.0, generator) if x.is_floating_point() else x)


def outputs(model: nn.Module, call: Call) -> list[Tensor]:
    """The tensors that a model returns, as in evaluation; it is left as it was."""
    args, kwargs = _each(call, lambda x: x.detach().clone())
    with torch.no_grad(), in_evaluation(model):
        return list(tensors_in(model(*args, **kwargs)))


def _close(first: Tensor, second: Tensor) -> bool:
    """Whether two outputs are the same, as far as the order of sums allows."""
    size = float(second.abs().max()) if second.numel() else 0.0
    return bool(torch.allclose(wide(first), wide(second), rtol=0, atol=_SAME * size + 1e-30))


# --- Weights that a model changes itself ---


@final
class _Guard(OperationsMode):
    """Keeps a copy of parameters before they are written into."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._by_memory = {_memory(tensor): (name, tensor) for name, tensor in parameters}
        self.copies: dict[str, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in written_by(func, args, kwargs or {}):
            name, whole = self._by_memory.get(_memory(tensor), ("", tensor))
            if name and name not in self.copies:
                self.copies[name] = whole, whole.detach().clone()
        return func(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except RuntimeError:  # it has none, as sparse ones
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
