"""The heads of a model, as the matrices that they are products of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from spectralclip._linalg import on_host
from spectralclip._models.attention.match import Found, Traced, different_calls
from spectralclip._models.attention.observe import AttentionCall, DenseCall, observe
from spectralclip._models.example_inputs import ExampleInputs
from spectralclip._models.fsdp import gathered, is_sharded_tensor
from spectralclip._models.survey import Survey
from spectralclip._operators import (
    BATCH_NORMS,
    CONVS,
    TRANSPOSED,
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


class HeadProducts(NamedTuple):
    """The matrix of each head as `first^T second`: `(heads, width, inputs)` each, in float64."""

    first: Tensor
    second: Tensor
    is_rotated: bool = False  # by positions, between the two
    is_rotated_alike: bool = True  # so that nothing is, where both are at the same position
    is_refit: bool = False  # scaled by a factor that was measured

    def pair(self, n: int) -> tuple[Tensor, Tensor]:
        """The two matrices of a head."""
        return self.first[n], self.second[n]


class FoundHeads(NamedTuple):
    """The heads of one attention layer."""

    layer: str  # the name of the module in which attention is computed
    keys: Sequence[int]  # for each head the number of the key that it uses
    logits: HeadProducts | None
    values: HeadProducts | None
    note: str = ""  # why one of them is missing
    start: int = 0  # the number of the first head in its module


@plain_numerics()
def found_heads(
    model: nn.Module, example_inputs: ExampleInputs, survey: Survey
) -> list[FoundHeads]:
    """The heads of a bare model, in the order of use.

    Raises:
        ValueError: The matrices of a head, or what they make, hold NaN or infinite values.
    """
    found = [
        _of_module(survey.names[module], module, parts)
        for module, parts in survey.parts.items()
        if isinstance(module, nn.MultiheadAttention)
    ]
    return found + [_of_call(*call) for call in attention_calls(model, example_inputs, survey)]


def attention_calls(
    model: nn.Module, example_inputs: ExampleInputs, survey: Survey
) -> Iterable[tuple[AttentionCall, Traced, int]]:
    """What goes into torch's attention outside of `nn.MultiheadAttention`, as it was traced."""
    layers = [one.modules[0] for one in survey.layers("none").values()]
    dense = [part for part in layers if not isinstance(part, _NOT_DENSE)]
    return different_calls(observe(model, example_inputs, dense)) if _attends(model) else ()


# What they make is not kept to be compared with queries, keys and values.
_NOT_DENSE = (Rows, nn.Embedding, *CONVS, *TRANSPOSED, *BATCH_NORMS)


def _attends(model: nn.Module) -> bool:
    """Whether a model may do more than its `nn.MultiheadAttention`; others are run once more."""
    kinds = {type(module).__module__ for module in model.modules()}
    return any(not kind.startswith("torch.nn.") for kind in kinds)


_Matrices: TypeAlias = dict[nn.Module, tuple[Tensor, Tensor]]
"""Of dense layers, their matrices and offsets."""


def _with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    own = weight.new_zeros(len(weight)) if bias is None else bias
    return torch.cat([weight, own[:, None]], 1)


# --- nn.MultiheadAttention -------------------------------------------------------------------


def _of_module(name: str, module: Any, parts: dict[str, Rows]) -> FoundHeads:
    count, width = module.num_heads, module.head_dim
    rows = projections(module, parts)
    if rows is None:
        note = EXTRA_KEYS if module.bias_k is not None else COMPUTED
        return FoundHeads(name, range(count), None, None, note)
    weights = [_matrix(part) for part in rows]
    bias = module._parameters.get("in_proj_bias")
    biases = [None] * 3 if bias is None else on_host(_whole(bias)).chunk(3)
    q, k, v = (
        _with_bias(weight, own).unflatten(0, (count, width))
        for weight, own in zip(weights, biases, strict=False)
    )
    q, out = q / math.sqrt(width), weights[3].T.unflatten(0, (count, width))
    _require_finite(name, "The projections", q, k, v, out)
    return FoundHeads(name, range(count), HeadProducts(q, k), HeadProducts(out, v))


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


def _of_call(call: AttentionCall, found: Traced, start: int) -> FoundHeads:
    count = call.queries.shape[1]
    _require_finite(call.where, "Queries, keys or values", call.queries, call.keys, call.values)
    queries, keys, made, read = found
    matrices: _Matrices = {}
    notes, numbers = [], list(range(count))
    logits = values = None
    if queries is None or keys is None:
        notes.append(NO_LOGITS)
    else:
        places = [n * len(keys.columns) // count for n in range(count)]
        known = {column: place for place, column in enumerate(sorted(set(keys.columns)))}
        numbers = [known[keys.columns[place]] for place in places]
        logits = _logits(call, queries, keys, places, matrices)
    if made is None or read is None:
        notes.append(NO_VALUES if made is None else NO_OUTPUT)
    else:
        places = [n * len(made.columns) // count for n in range(count)]
        values = HeadProducts(_reading(read, matrices), _making(made, matrices)[places])
    return FoundHeads(call.where, numbers, logits, values, "; ".join(notes), start)


def _logits(
    call: AttentionCall, queries: Found, keys: Found, places: Sequence[int], known: _Matrices
) -> HeadProducts:
    is_rotated = queries.is_rotated or keys.is_rotated
    return HeadProducts(
        call.scale * _making(queries, known),
        _making(keys, known)[places],
        is_rotated=is_rotated,
        is_rotated_alike=not is_rotated or _rotated_alike(call, queries, keys, places),
        is_refit=any(factor != 1 for found in (queries, keys) for factor in found.factors),
    )


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
