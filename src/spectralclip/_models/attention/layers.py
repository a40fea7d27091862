"""The products of heads as layers of a model, in place of the projections that they consist of."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from torch import nn

from spectralclip._models.attention.heads import attention_calls, makes_rows, projections
from spectralclip._models.attention.match import Found, Traced
from spectralclip._models.attention.observe import AttentionCall, DenseCall
from spectralclip._models.example_inputs import ExampleInputs
from spectralclip._models.forward_pass import unwrapped
from spectralclip._models.survey import FoundLayer, Survey
from spectralclip._operators import Factor, Rows, plain_numerics


def head_layers(model: nn.Module, example_inputs: ExampleInputs) -> dict[str, FoundLayer]:
    """The layers of a model, in which heads are products of two projections.

    For head n of an attention layer there are `<layer>[n].logit`, from `[y; 1]` to `[x; 1]`, and
    `<layer>[n].value`, as `attention_heads` has them. A projection all of whose units are in
    products is no layer by itself. Where queries and keys are rotated or normalized, their product
    is not one matrix: they stay layers of their own. So do those of which one is frozen.

    Args:
        model: Any module.
        example_inputs: As for `attention_heads`.
    """
    return products_of_heads(model, example_inputs)[0]


@plain_numerics()
def products_of_heads(
    model: nn.Module, example_inputs: ExampleInputs
) -> tuple[dict[str, FoundLayer], list[str]]:
    """What `head_layers` finds, and the products that are none since a factor is frozen."""
    bare = unwrapped(model)
    survey = Survey.of(bare, example_inputs)
    products = _Products()
    for module, parts in survey.parts.items():
        rows = projections(module, parts) if isinstance(module, nn.MultiheadAttention) else None
        if rows is not None:
            products.add_module(survey.names[module], module, rows)
    for call in attention_calls(bare, example_inputs, survey):
        products.add_call(*call)
    layers = survey.layers("none")
    kept = {name: one for name, one in layers.items() if not products.replace(one.modules[0])}
    return {**kept, **dict(products.layers())}, products.frozen


@final
@dataclass(frozen=True)
class _Products:
    """The products that were found so far, and which units of other layers are in them."""

    factors: dict[str, tuple[Factor, Factor]] = field(default_factory=dict)
    used: dict[nn.Module, set[int]] = field(default_factory=lambda: defaultdict(set))
    sizes: dict[nn.Module, int] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)

    def replace(self, module: nn.Module) -> bool:
        """Whether all units of a layer are in products."""
        return module in self.sizes and len(self.used[module]) == self.sizes[module]

    def layers(self) -> Iterator[tuple[str, FoundLayer]]:
        """As layers; those with a factor in common, as heads with one key, name each other."""
        holders: dict[Any, list[str]] = defaultdict(list)
        for name, pair in self.factors.items():
            for own in pair:
                holders[_units(own)].append(name)
        for name, pair in self.factors.items():
            others = dict.fromkeys(other for own in pair for other in holders[_units(own)])
            shared = tuple(other for other in others if other != name)
            yield name, FoundLayer(name, pair, ((pair[0].in_features,),), shared, 1)

    def add_module(self, name: str, module: Any, rows: Sequence[Rows]) -> None:
        """The heads of an `nn.MultiheadAttention`."""
        width, bias = module.head_dim, module._parameters.get("in_proj_bias")
        q, k, v, out = rows
        for n in range(module.num_heads):
            units = slice(n * width, (n + 1) * width)

            def of(part: Rows, place: int, units: slice = units, **settings: Any) -> Factor:
                at = place * module.embed_dim
                return Factor(
                    part.whole,
                    _moved(units, part.rows.start),
                    in_rows=True,
                    offset=bias,
                    offset_units=_moved(units, at),
                    **settings,
                )

            scale = 1 / math.sqrt(width)
            logit = of(k, 1), of(q, 0, is_last=True, scale=scale)
            value = of(v, 2), Factor(out.whole, units, in_rows=False, is_last=True)
            self._add(f"{name}[{n}].logit", logit, [(k, units), (q, units)])
            self._add(f"{name}[{n}].value", value, [(v, units), (out, units)])
        for part in rows:
            self.sizes[part] = module.num_heads * width

    def add_call(self, call: AttentionCall, found: Traced, start: int) -> None:
        """The heads of a call of torch's attention, as far as they are made by plain layers.

        They are numbered from `start` on, where their module computes attention several times.
        """
        queries, keys = found.queries, found.keys
        if queries and keys and not (queries.is_rotated or keys.is_rotated):
            self._add_pairs(call, "logit", keys, queries, call.scale, start)
        if found.values is not None and found.output is not None:
            self._add_pairs(call, "value", found.values, found.output, 1.0, start)

    def _add_pairs(
        self, call: AttentionCall, kind: str, first: Found, second: Found, scale: float, start: int
    ) -> None:
        made, used = _Source.of(first.call), _Source.of(second.call)
        if made is None or used is None:
            return
        reads, count = kind == "value", call.queries.shape[1]
        for n in range(count):
            # Several heads may share a key, and values.
            at = n * len(first.columns) // count
            units = _slice(first, at), _slice(second, n)
            times = scale * first.factors[at] * second.factors[n]
            pair = (
                Factor(made.weight, units[0], in_rows=made.in_rows, offset=made.bias),
                Factor(
                    used.weight,
                    units[1],
                    in_rows=used.in_rows != reads,
                    offset=None if reads else used.bias,
                    is_last=True,
                    scale=times,
                ),
            )
            modules = first.call.module, second.call.module
            name = f"{call.where}[{start + n}].{kind}"
            self._add(name, pair, list(zip(modules, units, strict=True)))
        self.sizes[first.call.module] = first.call.made.shape[1]
        read = second.call.given if reads else second.call.made
        self.sizes[second.call.module] = read.shape[1]

    def _add(
        self, name: str, pair: tuple[Factor, Factor], units: Sequence[tuple[nn.Module, slice]]
    ) -> None:
        if not all(own.requires_grad for factor in pair for own in factor.parameters()):
            self.frozen.append(name)  # both would have to give way
            return
        self.factors.setdefault(name, pair)
        for module, own in units:
            self.used[module].update(range(own.start, own.stop))


class _Source(NamedTuple):
    """The parameters of a plain dense layer."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    in_rows: bool  # whether its units are rows of the weight

    @staticmethod
    def of(call: DenseCall) -> _Source | None:
        """None for a layer that computes with something else."""
        weight, in_rows = call.module._parameters.get("weight"), makes_rows(call)
        if weight is None or in_rows is None:
            return None
        return _Source(weight, call.module._parameters.get("bias"), in_rows)


def _units(factor: Factor) -> tuple[int, int, bool]:
    return id(factor.whole), factor.units.start, factor.in_rows


def _moved(units: slice, by: int) -> slice:
    return slice(units.start + by, units.stop + by)


def _slice(found: Found, n: int) -> slice:
    return slice(found.columns[n], found.columns[n] + found.width)
