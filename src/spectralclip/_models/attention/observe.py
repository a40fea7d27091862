"""What goes into torch's attention while a model runs, and which dense layers it comes from.

No class or attribute is known by its name. A model's queries are those numbers that it hands to
`scaled_dot_product_attention`, and the layer that makes them is the one whose output they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from spectralclip._models.call_graph import around_calls
from spectralclip._models.candidates import bare_modules
from spectralclip._models.example_inputs import ExampleInputs, call_arguments
from spectralclip._models.forward_pass import in_evaluation
from spectralclip._models.parts import parts_of
from spectralclip._operators import plain_numerics

# Relative difference of numbers that are the same, or four roundings if that is more: float32
# leaves some 1e-6 of norms that were rotated. Those of different heads with random weights differ
# by 0.1 or more.
SAME = 1e-4


class DenseCall(NamedTuple):
    """A call of a dense layer: rows of its input, and of its output."""

    module: nn.Module
    given: Tensor
    made: Tensor
    rounding: float  # of the precision that it computes in

    @property
    def tol(self) -> float:
        """How far numbers that are the same may be apart, relatively."""
        return max(SAME, 4 * self.rounding)


class AttentionCall(NamedTuple):
    """A call of torch's attention; numbers are `(rows, heads, width)`."""

    where: str  # the name of the module at work
    queries: Tensor
    keys: Tensor
    values: Tensor
    result: Tensor
    scale: float
    before: int  # how many dense layers had been called


class Observed(NamedTuple):
    """What a forward pass showed, in order."""

    dense: list[DenseCall]
    attention: list[AttentionCall]


@plain_numerics()
def observe(
    model: nn.Module, example_inputs: ExampleInputs, dense: Iterable[nn.Module]
) -> Observed:
    """Run a model, as in evaluation, on standard normal inputs of the example's shapes.

    An example of zeros would not tell one layer from another. Integers stay as they are, and a
    model that does not run on such inputs gets the example itself.
    """
    generator, layers = torch.Generator("cpu").manual_seed(0), set(dense)

    def drawn(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x.detach().clone()
        return torch.randn(x.shape, generator=generator, device="cpu").to(x.device, x.dtype)

    given = call_arguments(model, example_inputs)
    try:
        return _run(model, tree_map_only(Tensor, drawn, given), layers)
    except Exception:  # whatever a model does not like about random inputs
        return _run(model, tree_map_only(Tensor, lambda x: x.detach().clone(), given), layers)


def _run(model: nn.Module, inputs: Any, dense: set[nn.Module]) -> Observed:
    args, kwargs = inputs
    names = {m: n for n, m in bare_modules(model) if not isinstance(m, torch.jit.ScriptModule)}
    watch = _Watch(names, dense)
    hooks = around_calls(names, watch.enter, watch.leave)
    with torch.no_grad(), in_evaluation(model), hooks, _Functions(watch):
        model(*args, **kwargs)
    return watch.seen


@final
class _Watch:
    """Notes calls of dense layers, and where attention happens."""

    def __init__(self, names: Mapping[nn.Module, str], dense: set[nn.Module]) -> None:
        self.seen = Observed([], [])
        self._names, self._dense = names, dense
        self._running: list[nn.Module] = []

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._running.append(module)

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._running.pop()
        given = [*args, *kwargs.values()]
        if module in self._dense and len(given) == 1 and isinstance(output, Tensor):
            x, rounding = given[0], torch.finfo(output.dtype).eps
            rows, made = (_kept(one.reshape(-1, one.shape[-1])) for one in (x, output))
            self.seen.dense.append(DenseCall(module, rows, made, rounding))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, result: Tensor) -> None:
        attention = (m for m in self._running if isinstance(m, nn.MultiheadAttention))
        if any(map(parts_of, attention)):
            return  # its weights are known
        where = self._names[self._running[-1]] if self._running else ""
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
        queries, keys, values, made = (_rows(x) for x in (q, k, v, result))
        call = AttentionCall(where, queries, keys, values, made, scale, len(self.seen.dense))
        self.seen.attention.append(call)


@final
class _Functions(TorchFunctionMode):
    """Sees calls of torch's attention."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            q, k, v = (given[name] for name in ("query", "key", "value"))
            self._watch.attend(q, k, v, kwargs.get("scale"), result)
        return result


def _rows(x: Tensor) -> Tensor:
    """`(..., heads, positions, width)` as `(rows, heads, width)`."""
    moved = x[None, None] if x.ndim == 2 else x
    moved = moved.movedim(-3, -2)
    return _kept(moved.reshape(-1, *moved.shape[-2:]))


def _kept(x: Tensor) -> Tensor:
    """In float64, since the sizes of activations are not known; a copy, whatever the model does."""
    return x.detach().to("cpu", torch.float64, copy=True)
