"""The norms of affine parts of a flow: of single operations, and of chains as one operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spectralclip._bounds import Interval, norm_bounds
from spectralclip._common import Shape
from spectralclip._lipschitz.flow import Flow, Node, Ref, Replay
from spectralclip._models import in_shape_of
from spectralclip._operators import Rows

IntervalOf: TypeAlias = Callable[[Sequence[nn.Module], Shape], Interval]
"""An interval around the norm of modules, one after the other, at the shape of one input."""


# As which a view that flattens is written; one and the same, so that norms are found again.
_FLATTEN = nn.Flatten()


class NoBoundError(ValueError):
    """The norm of something affine could not be bounded."""


@final
class Norms:
    """Upper ends of norms, each computed once."""

    def __init__(self, flow: Flow, interval_of: IntervalOf, otherwise: IntervalOf) -> None:
        self._flow = flow
        self._interval_of, self._otherwise = interval_of, otherwise
        self._known: dict[object, Interval] = {}

    @property
    def failure(self) -> float:
        """The probability that any of the norms is larger than its upper end, at most."""
        return min(1.0, math.fsum(interval.failure for interval in self._known.values()))

    def of_modules(self, modules: Sequence[nn.Module], in_shape: Shape) -> Interval:
        """Of modules of the model, one after the other."""
        key = (tuple(id(module) for module in modules), in_shape)
        return self._kept(key, lambda: self._interval_of(modules, in_shape))

    def of_rows(self, part: Rows) -> Interval:
        """Of a matrix inside a module."""
        key = (id(part.whole), part.rows.start, part.rows.stop)
        return self._kept(key, lambda: self._interval_of((part,), (part.in_features,)))

    def of_operation(self, node: Node, source: int) -> Interval:
        """Of one operation as a function of one of its inputs."""
        if node.module is not None and (shape := self._batched(node)) is not None:
            return self.of_modules((node.module,), shape)
        base = self._flow.nodes[source]

        def measure() -> Interval:
            replay = Replay(base, [self._alone(node, source)])
            return self._otherwise([replay], base.shape or (1,))

        return self._kept((node.index, source), measure)

    def of_chain(self, base: int, nodes: Sequence[Node]) -> Interval:
        """Of all that leads from a node to the last of the others, as one operator."""
        start = self._flow.nodes[base]
        stages = self._stages(base, nodes) or ([Replay(start, nodes)], start.shape or (1,))
        if any(isinstance(module, Replay) for module in stages[0]):
            return self._kept((base, nodes[-1].index), lambda: self._otherwise(*stages))
        return self.of_modules(*stages)

    def largest_count(self, node: Node, source: int) -> float:
        """For an operation that copies entries: the root of how often it uses one at most.

        Its matrix has at most one entry in each row, which is one, so that `M^T M` is diagonal,
        with the numbers of uses. They are read off the forward pass, since a backward pass need
        not be that of a copy (as of an embedding with a `padding_idx`): applied to 1, 2, 3, ...,
        what is not the same as for zeros names the entry that it copies.
        """
        base = self._flow.nodes[source]
        replay = Replay(base, [self._alone(node, source)]).cpu().double()
        size = math.prod(base.shape)
        try:
            with torch.no_grad():
                zeros = torch.zeros(size, dtype=torch.float64, device="cpu")
                places = torch.arange(1.0, size + 1, dtype=torch.float64, device="cpu")
                still, named = (replay(x.reshape(1, *base.shape)) for x in (zeros, places))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise NoBoundError(str(error)) from error
        copied = named[named != still]
        if copied.numel() == 0:
            return 0.0
        used = copied.long()
        if not (bool((used == copied).all()) and int(used.min()) >= 1 and int(used.max()) <= size):
            raise NoBoundError("it does more than to copy entries")
        return math.sqrt(float(torch.bincount(used).max()))

    def _kept(self, key: object, measure: Callable[[], Interval]) -> Interval:
        if key not in self._known:
            try:
                self._known[key] = measure()
            except (ValueError, TypeError, RuntimeError) as error:
                raise NoBoundError(str(error)) from error
        return self._known[key]

    def _alone(self, node: Node, source: int) -> Node:
        """The node with zeros for all other inputs than the one."""
        if node.inputs == (source,):
            return node

        def zeros(ref: Ref) -> Ref | Tensor:
            other = self._flow.nodes[ref.node]
            if ref.node == source:
                return ref
            return torch.zeros(other.shape, dtype=other.dtype, device=other.device)

        args, kwargs = tree_map_only(Ref, zeros, (node.args, node.kwargs))
        return replace(node, args=args, kwargs=kwargs)

    def _stages(self, base: int, nodes: Sequence[Node]) -> tuple[list[nn.Module], Shape] | None:
        """The nodes as layers one after the other, where they are that; and the input's shape.

        Runs of operations between modules become layers of their own; these want each value to be
        a batch of one.
        """
        last, stages = base, list[nn.Module]()
        run: list[Node] = []
        pure = all(node.module is not None for node in nodes)
        for node in nodes:
            start = self._flow.nodes[last]
            if node.inputs != (last,) or not (pure or start.shape[:1] == node.shape[:1] == (1,)):
                return None
            if node.module is not None and self._batched(node) is None:
                return None
            if node.module is None:
                run.append(node)
            else:
                stages.extend(self._run(run))
                stages.append(node.module)
                run = []
            last = node.index
        stages.extend(self._run(run))
        return stages, self._flow.nodes[base].shape[1:]

    def _run(self, run: list[Node]) -> list[nn.Module]:
        if not run:
            return []
        start = self._flow.nodes[run[0].inputs[0]]
        flat = run[0].operation in ("view", "_unsafe_view") and len(run) == 1
        if flat and run[0].shape == (1, math.prod(start.shape)):
            return [_FLATTEN]
        return [Replay(start, run, single=True)]

    def _batched(self, node: Node) -> Shape | None:
        """The shape of one input of a module, if it was called with a batch of them alone."""
        given = [*node.args, *node.kwargs.values()]
        if node.module is None or len(given) != 1 or len(node.inputs) != 1:
            return None
        source = self._flow.nodes[node.inputs[0]]
        shape, batched = in_shape_of(node.module, torch.empty(source.shape, device="meta"))
        return shape if batched and source.shape[:1] == node.shape[:1] else None


def standard_intervals(tol: float, failure: float, deterministic: bool, seed: int) -> IntervalOf:

    def interval_of(modules: Sequence[nn.Module], in_shape: Shape) -> Interval:
        return norm_bounds(
            list(modules),
            in_shape,
            tol=tol,
            failure=failure,
            deterministic=deterministic,
            generator=torch.Generator("cpu").manual_seed(seed),
        )

    return interval_of
