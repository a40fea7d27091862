"""`attention_heads`: for each head of a model, how large its logits and its outputs can get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, nn

from spectralclip._bounds import Interval, factor_bounds, product_bounds
from spectralclip._models import (
    ExampleInputs,
    FoundHeads,
    HeadProducts,
    Survey,
    found_heads,
    unwrapped,
)
from spectralclip._operators import LinearOperator, as_operator, plain_numerics

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
    return {
        f"{head.layer}[{head.index}]": head
        for found in found_heads(model, example_inputs, survey)
        for head in _measured(found)
    }


def _measured(found: FoundHeads) -> Iterator[Head]:
    """The heads of one attention layer, with the norms of their products."""
    logits, values, count = found.logits, found.values, len(found.keys)
    is_rotary = logits is not None and logits.is_rotated
    bounds = zip(found.keys, _bounds(logits, count), _bounds(values, count), strict=True)
    for n, (key, logit, value) in enumerate(bounds):
        factors = logits and logits.pair(n), values and values.pair(n)
        index = found.start + n
        yield Head(found.layer, index, key, logit, value, is_rotary, found.note, factors)


def _bounds(products: HeadProducts | None, count: int) -> Sequence[Interval | None]:
    """Of each head; where products are rotated, with ends that hold for all positions."""
    if products is None:
        return [None] * count
    bounds = product_bounds(products.first, products.second)
    if products.is_rotated:
        upper = factor_bounds(products.first, products.second)
        # A position sees itself as if nothing were rotated, if both are rotated alike.
        share = float(products.is_rotated_alike)
        pairs = zip(bounds, upper, strict=True)
        bounds = [Interval(share * one.lower, end, FACTORS, 0.0) for one, end in pairs]
    if products.is_refit:
        ends = ((one.lower * (1 - REFIT), one.upper * (1 + REFIT), one.kind) for one in bounds)
        bounds = [Interval(lower, upper, kind, 0.0) for lower, upper, kind in ends]
    return bounds
