"""`attention_heads`: for each head of a model, how large its logits and its outputs can get."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn

from spectralclip._attention.match import Found, Traced, different_calls
from spectralclip._attention.observe import AttentionCall, DenseCall, observe
from spectralclip._bounds import Interval, factor_bounds, product_bounds
from spectralclip._linalg import on_host
from spectralclip._models import (
    ExampleInputs,
    Survey,
    gathered,
    is_sharded_tensor,
    unwrapped,
)
from spectralclip._operators import (
    LinearOperator,
    Rows,
    as_operator,
    in_float64,
    plain_numerics,
)

NO_LOGITS = (
    "queries or keys are not neighbouring outputs of a dense layer, as where they are normalized "
    "or made without a module; or the example does not show it: rotations are seen at four "
    "positions or more, with different tokens"
)
NO_VALUES = "values are not neighbouring outputs of a dense layer"
NO_OUTPUT = "no dense layer reads what the heads make, as it is"
EXTRA_KEYS = "with add_bias_kv there are keys and values that come from no input"
COMPUTED = "its weights are computed, as by a parametrization"
FACTORS = "factors"  # the kind of an upper end that is the product of the factors' norms
REFIT = 1e-6  # by which a factor that was measured may be off


@final
@dataclass(frozen=True)
class Head:
    """One head of an attention layer.

    A logit is `[x; 1]^T (s [W_q b_q]^T [W_k b_k]) [y; 1]` for inputs x and y, and what the head
    adds to the output is a mean of `W_o [W_v b_v] [y; 1]`: two matrices, each a product of two.
    The last entry of an input stands for the biases.

    Attributes:
        layer: The name of the module in which attention is computed.
        index: The number of the head in it.
        key: The number of the key that it uses, which several heads may share.
        logit: An interval around the norm of the first product, its scale s included. For inputs
            of norm r no logit is larger than this times `r^2 + 1`, or `r^2` without biases. With
            rotary embeddings, around the largest over all relative positions, and of the kind
            "factors": the lower end is that of a position and itself, the upper end the product of
            the factors' norms. None where there is none to be had.
        value: An interval around the norm of the second product; None where there is none.
        is_rotary: Whether queries and keys are rotated by their positions.
        note: Why an interval is missing, else empty.
    """

    layer: str
    index: int
    key: int
    logit: Interval | None
    value: Interval | None
    is_rotary: bool = False
    note: str = ""
    _factors: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    def logit_operator(self) -> LinearOperator:
        """The first product, from `[y; 1]` to `[x; 1]`, in float64; not rotated."""
        return self._operator(0, "logits")

    def value_operator(self) -> LinearOperator:
        """The second product, from `[y; 1]` to the output, in float64."""
        return self._operator(1, "values")

    def _operator(self, which: int, about: str) -> LinearOperator:
        pair = self._factors[which] if self._factors else None
        if pair is None:
            raise ValueError(f"Head {self.index} of {self.layer!r} has no {about}: {self.note}.")
        first, second = _linear(pair[1]), _linear(pair[0].T)
        return as_operator([first, second], (first.in_features,))


def _linear(matrix: Tensor) -> nn.Linear:
    rows, columns = matrix.shape
    layer = nn.Linear(columns, rows, bias=False, device="meta")
    layer.weight = nn.Parameter(matrix.contiguous(), requires_grad=False)
    return layer


def attention_heads(model: nn.Module, example_inputs: ExampleInputs) -> dict[str, Head]:
    """What each attention head of a model can do, by the matrices that it consists of.

    Known are `nn.MultiheadAttention`, and every module that hands queries, keys and values which
    dense layers have made to torch's `scaled_dot_product_attention`: packed in one layer or apart,
    with keys that several heads share, rotated by their positions or not. They are found by the
    numbers, not by the names: the model runs once, as in evaluation, on standard normal inputs of
    the example's shapes (integers stay as they are), and what reaches attention is looked for in
    the outputs of dense layers.

    Args:
        model: Any module.
        example_inputs: What the model is called with, as for `find_layers`; with tokens that
            differ, and at least four positions for rotary embeddings.

    Returns:
        The heads, by the name of the layer and their number in brackets, in the order of use.

    Raises:
        ValueError: The matrices of a head, or what they make, hold NaN or infinite values.

    Example:
        >>> import torch
        >>> from spectralclip import attention_heads
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> heads = attention_heads(layer, torch.zeros(1, 5, 8))
        >>> list(heads), heads["self_attn[1]"].logit.width < 1e-6
        (['self_attn[0]', 'self_attn[1]'], True)
    """
    bare = unwrapped(model)
    return heads_of(bare, example_inputs, Survey.of(bare, example_inputs))


@plain_numerics()
def heads_of(model: nn.Module, example_inputs: ExampleInputs, survey: Survey) -> dict[str, Head]:
    """The same, from a survey of the bare model."""
    found: dict[str, Head] = {}
    for module, parts in survey.parts.items():
        if isinstance(module, nn.MultiheadAttention):
            _add(found, _of_module(survey.names[module], module, parts))
    for call in attention_calls(model, example_inputs, survey):
        _add(found, _of_call(*call))
    return found


def attention_calls(
    model: nn.Module, example_inputs: ExampleInputs, survey: Survey
) -> Iterable[tuple[AttentionCall, Traced, int]]:
    """What goes into torch's attention outside of `nn.MultiheadAttention`, as it was traced."""
    layers = [one.modules[0] for one in survey.layers("none").values()]
    dense = [part for part in layers if not isinstance(part, (Rows, nn.Embedding))]
    return different_calls(observe(model, example_inputs, dense)) if _attends(model) else ()


def _attends(model: nn.Module) -> bool:
    """Whether a model may do more than its `nn.MultiheadAttention`; others are run once more."""
    kinds = {type(module).__module__ for module in model.modules()}
    return any(not kind.startswith("torch.nn.") for kind in kinds)


def _add(found: dict[str, Head], heads: Sequence[Head]) -> None:
    found.update((f"{head.layer}[{head.index}]", head) for head in heads)


_Matrices: TypeAlias = dict[nn.Module, tuple[Tensor, Tensor]]
"""Of dense layers, their matrices and offsets."""


class _Product(NamedTuple):
    """Pairs of matrices, `(heads, width, inputs)`, and the norms of `first^T second`."""

    first: Tensor
    second: Tensor
    bounds: list[Interval]


def _heads(
    layer: str,
    count: int,
    logits: _Product | None,
    values: _Product | None,
    *,
    keys: Sequence[int] | None = None,
    is_rotary: bool = False,
    note: str = "",
    start: int = 0,
) -> list[Head]:
    def of(product: _Product | None, n: int) -> tuple[Interval | None, Any]:
        if product is None:
            return None, None
        return product.bounds[n], (product.first[n], product.second[n])

    made = []
    for n in range(count):
        (logit, own), (value, other) = of(logits, n), of(values, n)
        key = n if keys is None else keys[n]
        made.append(Head(layer, start + n, key, logit, value, is_rotary, note, (own, other)))
    return made


def _with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    own = torch.zeros(len(weight), dtype=weight.dtype) if bias is None else bias
    return torch.cat([weight, own[:, None]], 1)


# --- nn.MultiheadAttention -------------------------------------------------------------------


def _of_module(name: str, module: Any, parts: dict[str, Rows]) -> list[Head]:
    count, width = module.num_heads, module.head_dim
    rows = projections(module, parts)
    if rows is None:
        note = EXTRA_KEYS if module.bias_k is not None else COMPUTED
        return _heads(name, count, None, None, note=note)
    weights = [_matrix(part) for part in rows]
    bias = module._parameters.get("in_proj_bias")
    biases = [None] * 3 if bias is None else on_host(_whole(bias)).chunk(3)
    q, k, v = (
        _with_bias(weight, own).unflatten(0, (count, width))
        for weight, own in zip(weights, biases, strict=False)
    )
    q, out = q / math.sqrt(width), weights[3].T.unflatten(0, (count, width))
    _require_finite(name, "The projections", q, k, v, out)
    logits = _Product(q, k, product_bounds(q, k))
    return _heads(name, count, logits, _Product(out, v, product_bounds(out, v)))


def _require_finite(layer: str, what: str, *tensors: Tensor) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise ValueError(
            f"{what} of attention in {layer or 'the model itself'!r} hold NaN or infinite values: "
            "its heads have no norms. Restore finite weights."
        )


def projections(module: Any, parts: dict[str, Rows]) -> list[Rows] | None:
    """Those of queries, keys, values and the output; None if the heads are not just these."""
    labels = [*(f"in_proj_weight[{part}]" for part in "qkv"), "out_proj"]
    if labels[0] not in parts:
        labels = [*(f"{part}_proj_weight" for part in "qkv"), "out_proj"]
    if module.bias_k is not None or any(label not in parts for label in labels):
        return None
    return [parts[label] for label in labels]


def _matrix(part: Rows) -> Tensor:
    layer: Any = gathered(part)
    return on_host(layer.weight.detach())


def _whole(tensor: Tensor) -> Tensor:
    """A tensor as a whole, where it is sharded."""
    value: Any = tensor.detach()
    whole: Tensor = value.full_tensor() if is_sharded_tensor(value) else value
    return whole


# --- What was seen ---------------------------------------------------------------------------


def _of_call(call: AttentionCall, found: Traced, start: int) -> list[Head]:
    count = call.queries.shape[1]
    _require_finite(call.where, "Queries, keys or values", call.queries, call.keys, call.values)
    queries, keys, made, read = found
    matrices: _Matrices = {}
    notes, numbers, is_rotary = [], None, False
    logits = values = None
    if queries is None or keys is None:
        notes.append(NO_LOGITS)
    else:
        is_rotary = queries.is_rotated or keys.is_rotated
        places = [n * len(keys.columns) // count for n in range(count)]
        known = {column: place for place, column in enumerate(sorted(set(keys.columns)))}
        numbers = [known[keys.columns[place]] for place in places]
        logits = _logits(call, queries, keys, places, matrices)
    if made is None or read is None:
        notes.append(NO_VALUES if made is None else NO_OUTPUT)
    else:
        places = [n * len(made.columns) // count for n in range(count)]
        first, second = _reading(read, matrices), _making(made, matrices)[places]
        values = _Product(first, second, product_bounds(first, second))
    note = "; ".join(notes)
    return _heads(
        *(call.where, count, logits, values),
        keys=numbers,
        is_rotary=is_rotary,
        note=note,
        start=start,
    )


def _logits(
    call: AttentionCall, queries: Found, keys: Found, places: Sequence[int], known: _Matrices
) -> _Product:
    """The first product; of rotated heads, with ends that hold for all positions."""
    first, second = call.scale * _making(queries, known), _making(keys, known)[places]
    bounds = product_bounds(first, second)
    if queries.is_rotated or keys.is_rotated:
        upper = factor_bounds(first, second)
        # A position sees itself as if nothing were rotated, if both are rotated alike.
        share = float(_rotated_alike(call, queries, keys, places))
        pairs = zip(bounds, upper, strict=True)
        bounds = [Interval(share * one.lower, end, FACTORS, 0.0) for one, end in pairs]
    if any(factor != 1 for found in (queries, keys) for factor in found.factors):
        ends = ((one.lower * (1 - REFIT), one.upper * (1 + REFIT), one.kind) for one in bounds)
        bounds = [Interval(lower, upper, kind, 0.0) for lower, upper, kind in ends]
    return _Product(first, second, bounds)


def _rotated_alike(call: AttentionCall, queries: Found, keys: Found, places: Sequence[int]) -> bool:
    """Whether products of a query and the key at the same position are what they were before."""
    if len(call.queries) != len(call.keys):
        return False
    after = (call.queries * call.keys[:, list(places)]).sum(2)
    before = (queries.numbers() * keys.numbers()[:, list(places)]).sum(2)
    return bool((after - before).norm() <= queries.call.tol * after.norm())


def _making(found: Found, known: _Matrices) -> Tensor:
    """The rows of a dense layer that make each head, with their biases."""
    whole = _with_bias(*_dense(found.call, known))
    parts = zip(found.columns, found.factors, strict=True)
    return torch.stack([factor * whole[at : at + found.width] for at, factor in parts])


def _reading(found: Found, known: _Matrices) -> Tensor:
    """The columns of a dense layer that read each head, as rows."""
    matrix, _ = _dense(found.call, known)
    return torch.stack([matrix.T[at : at + found.width] for at in found.columns])


def _dense(call: DenseCall, known: _Matrices) -> tuple[Tensor, Tensor]:
    """The matrix of a dense layer and its offset, in float64."""
    if call.module not in known:
        known[call.module] = _stored(call) or _applied(call)
    return known[call.module]


def _stored(call: DenseCall) -> tuple[Tensor, Tensor] | None:
    """The layer's weight or the transpose of it, and its bias, if that is what it computed with."""
    layer = gathered(call.module)
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    in_rows = makes_rows(call)
    if weight is None or in_rows is None:
        return None
    matrix = on_host(weight.detach() if in_rows else weight.detach().T)
    return matrix, call.made.new_zeros(len(matrix)) if bias is None else on_host(bias.detach())


def makes_rows(call: DenseCall) -> bool | None:
    """Whether the units of a dense layer are rows of its weight; None if it computes otherwise."""
    layer = gathered(call.module)
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    shape = (call.made.shape[1], call.given.shape[1])
    if weight is None or weight.ndim != 2:
        return None
    for in_rows, own in ((True, weight.detach()), (False, weight.detach().T)):
        if own.shape == shape:
            offset = 0.0 if bias is None else on_host(bias.detach())
            unlike = (call.given @ on_host(own).T + offset - call.made).norm()
            if float(unlike) <= call.tol * float(call.made.norm()):
                return in_rows
    return None


def _applied(call: DenseCall) -> tuple[Tensor, Tensor]:
    """The same of any affine layer, by applying it."""
    layer = gathered(call.module)
    op = in_float64(as_operator(layer, (call.given.shape[1],)), layer)
    with torch.no_grad():
        offset = op.function(op.function.zeros(1))[0]
    return on_host(op.to_dense()), on_host(offset)
