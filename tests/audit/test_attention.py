"""Heads of attention: found by their numbers, with the norms of products of dense matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from seeds import seeded
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from spectralclip import attention_heads, norm_bounds, svds

X = torch.zeros(1, 6, 12)


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def augmented(weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = torch.zeros(len(weight)) if bias is None else bias
    return torch.cat([weight, bias[:, None]], 1).detach().double()


def holds(interval: Any, value: float) -> bool:
    return value in interval and interval.width < 1e-9 and interval.kind == "exact"


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 5}])
def test_torch_attention(options: dict[str, Any]) -> None:
    with seeded(0):
        layer = nn.MultiheadAttention(12, 3, batch_first=True, **options)
        if layer.in_proj_bias is not None:
            nn.init.normal_(layer.in_proj_bias)
    inputs = tuple(torch.zeros(1, 6, options.get(dim, 12)) for dim in ("qdim", "kdim", "vdim"))
    heads = attention_heads(layer, inputs)
    assert list(heads) == ["[0]", "[1]", "[2]"]
    packed = layer.in_proj_weight
    q, k, v = (
        packed.chunk(3)
        if packed is not None
        else (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    )
    biases: Any = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    q, k, v = (augmented(w, b) for w, b in zip((q, k, v), biases, strict=True))
    out = layer.out_proj.weight.detach().double()
    for n, head in enumerate(heads.values()):
        own = slice(4 * n, 4 * n + 4)
        logits, values = q[own].T @ k[own] / 2, out[:, own] @ v[own]
        assert holds(head.logit, norm(logits)) and holds(head.value, norm(values))
        torch.testing.assert_close(head.logit_operator().to_dense(), logits)
        torch.testing.assert_close(head.value_operator().to_dense(), values)
        assert (head.layer, head.index, head.key, head.note) == ("", n, n, "")


def test_operators_go_through_all_functions() -> None:
    with seeded(0):
        head = attention_heads(nn.TransformerEncoderLayer(12, 2, 8, batch_first=True), X)[
            "self_attn[1]"
        ]
    assert head.logit is not None
    op = head.logit_operator()
    assert norm_bounds(op, op.in_shape).lower <= head.logit.upper * (1 + 1e-9)
    assert float(svds(op, op.in_shape, 1, tol=1e-8).S[0]) == pytest.approx(
        head.logit.upper, rel=1e-9
    )


class Grouped(nn.Module):
    """Four heads with two keys, in a form of one's own; its names say nothing."""

    def __init__(self, then: Callable[[Tensor, Tensor], Any] | None = None, **options: Any) -> None:
        super().__init__()
        with seeded(1):
            self.a, self.b = nn.Linear(12, 24, bias=False), nn.Linear(12, 24)
            self.c = nn.Linear(24, 10)
        self.then, self.options = then, options

    def forward(self, x: Tensor) -> Tensor:
        q, kv = self.a(x), self.b(x)
        q = q.unflatten(-1, (4, 6)).transpose(1, 2)
        v, k = (part.unflatten(-1, (2, 6)).transpose(1, 2) for part in kv.chunk(2, -1))
        if self.then is not None:
            q, k = self.then(q, k)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **self.options)
        return self.c(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def products(model: Grouped, scale: float) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The factors of the logits, and the product of the values."""
    q, kv = augmented(model.a.weight, None), augmented(model.b.weight, model.b.bias)
    v, k = kv.chunk(2)
    out = model.c.weight.detach().double()
    return [
        (
            scale * q[6 * n : 6 * n + 6],
            k[6 * (n // 2) : 6 * (n // 2) + 6],
            out[:, 6 * n : 6 * n + 6] @ v[6 * (n // 2) : 6 * (n // 2) + 6],
        )
        for n in range(4)
    ]


@pytest.mark.parametrize("scale", [None, 0.3])
def test_heads_that_share_a_key(scale: float | None) -> None:
    model = Grouped(is_causal=True, scale=scale)
    heads = attention_heads(model, X)
    assert [head.key for head in heads.values()] == [0, 0, 1, 1]
    expected = products(model, scale or 1 / math.sqrt(6))
    for head, (q, k, value) in zip(heads.values(), expected, strict=True):
        assert holds(head.logit, norm(q.T @ k)) and holds(head.value, norm(value))


def test_queries_that_are_scaled_before() -> None:
    model = Grouped(lambda q, k: (0.3 * q, k), scale=1.0)
    for head, (q, k, _) in zip(
        attention_heads(model, X).values(), products(model, 0.3), strict=True
    ):
        assert head.logit is not None and norm(q.T @ k) in head.logit and head.logit.width < 1e-5


def rotation(positions: int, halves: bool) -> Tensor:
    """For each position a matrix of rotations, of neighbours or of the two halves."""
    angles = torch.arange(positions)[:, None] * torch.tensor([1.0, 0.3, 0.05])
    pairs = [(0, 3), (1, 4), (2, 5)] if halves else [(0, 1), (2, 3), (4, 5)]
    found = torch.zeros(positions, 6, 6)
    for n, (i, j) in enumerate(pairs):
        found[:, i, i] = found[:, j, j] = angles[:, n].cos()
        found[:, j, i] = angles[:, n].sin()
        found[:, i, j] = -found[:, j, i]
    return found


@pytest.mark.parametrize("halves", [True, False])
def test_rotary_embeddings_have_an_upper_bound_for_all_positions(halves: bool) -> None:
    turn = rotation(64, halves)

    def rotate(q: Tensor, k: Tensor) -> Any:
        return tuple((turn[: x.shape[2]] @ x[..., None])[..., 0] for x in (q, k))

    model = Grouped(rotate)
    heads = attention_heads(model, X)
    for head, (q, k, value) in zip(heads.values(), products(model, 1 / math.sqrt(6)), strict=True):
        assert head.is_rotary and head.logit is not None and head.logit.kind == "factors"
        seen = max(norm(q.T @ one.double() @ k) for one in turn)
        assert (
            norm(q.T @ k) * (1 - 1e-9) <= seen <= head.logit.upper <= norm(q) * norm(k) * 1.000001
        )
        assert head.logit.lower == pytest.approx(norm(q.T @ k), rel=1e-9)
        assert holds(head.value, norm(value))


@pytest.mark.parametrize("tokens", [[3, 3, 3, 3, 3, 3], [1, 2, 3]], ids=["equal", "few"])
def test_an_example_that_does_not_tell_rotations_is_asked_for_a_better_one(
    tokens: list[int],
) -> None:
    turn = rotation(6, True)

    def rotate(q: Tensor, k: Tensor) -> Any:
        return tuple((turn[: x.shape[2]] @ x[..., None])[..., 0] for x in (q, k))

    with seeded(2):
        model = nn.Sequential(nn.Embedding(9, 12), Grouped(rotate))
    heads = attention_heads(model, torch.tensor([tokens]))
    assert all(h.logit is None and "different tokens" in h.note for h in heads.values())
    heads = attention_heads(model, torch.tensor([[1, 2, 3, 4, 5, 6]]))
    assert all(h.logit is not None and h.is_rotary for h in heads.values())


def test_queries_rotated_alone_have_no_lower_end() -> None:
    turn = rotation(6, True)
    model = Grouped(lambda q, k: ((turn @ q[..., None])[..., 0], k))
    assert all(
        h.logit is not None and h.logit.lower == 0 for h in attention_heads(model, X).values()
    )


def test_normalized_queries_have_values_and_a_reason() -> None:
    model = Grouped(lambda q, k: (F.normalize(q, dim=-1), k))
    heads = attention_heads(model, X)
    expected = products(model, 1.0)
    for head, (_, _, value) in zip(heads.values(), expected, strict=True):
        assert head.logit is None and "normalized" in head.note
        assert holds(head.value, norm(value))
        with pytest.raises(ValueError, match=r"Head 0 of '' has no logits: .*normalized"):
            heads["[0]"].logit_operator()


def test_what_is_between_the_heads_and_the_output_is_said() -> None:
    model = Grouped()
    model.c = nn.Sequential(nn.GELU(), nn.Linear(24, 10))  # type: ignore[assignment]
    for head in attention_heads(model, X).values():
        assert head.logit is not None and head.value is None and "no dense layer reads" in head.note


class Own(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        packed = F.linear(x, self.in_proj_weight).unflatten(-1, (3, 2, 6))
        heads = F.scaled_dot_product_attention(*packed.permute(2, 0, 3, 1, 4))
        return self.out_proj(heads.transpose(1, 2).flatten(2))


def test_a_subclass_of_attention_with_a_forward_of_its_own_is_not_passed_over() -> None:
    heads = attention_heads(Own(12, 2), X)
    assert list(heads) == ["[0]", "[1]"]
    for head in heads.values():
        assert head.logit is None and head.value is None and "without a module" in head.note


def test_names_and_layers_that_are_used_again() -> None:
    model = nn.Sequential(Grouped(), nn.Linear(10, 12))
    twice = nn.Sequential(model, model)
    assert list(attention_heads(twice, X)) == [f"0.0[{n}]" for n in range(4)]


class SelfAndCross(nn.Module):
    """Two kinds of attention in one `forward`, the second twice."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(1):
            self.parts = nn.ModuleList(nn.Linear(12, 12) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for first in (0, 4, 4):
            q, k, v, out = self.parts[first : first + 4]
            heads = (part(x).unflatten(-1, (2, 6)).transpose(1, 2) for part in (q, k, v))
            x = x + out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x


def test_a_module_that_computes_attention_twice_has_the_heads_of_both() -> None:
    model = SelfAndCross()
    heads = attention_heads(model, X)
    assert list(heads) == [f"[{n}]" for n in range(4)]
    for n, head in enumerate(heads.values()):
        first, rows = 4 * (n // 2), slice(6 * (n % 2), 6 * (n % 2) + 6)
        q, k, v, out = (cast(nn.Linear, part) for part in model.parts[first : first + 4])
        q, k, v = (augmented(part.weight, part.bias)[rows] for part in (q, k, v))
        assert holds(head.logit, norm(q.T @ k / math.sqrt(6))) and head.index == n
        assert holds(head.value, norm(out.weight[:, rows].detach().double() @ v))


def test_keys_that_come_from_no_input() -> None:
    layer = nn.MultiheadAttention(12, 3, add_bias_kv=True, batch_first=True)
    (head, *_) = attention_heads(layer, (X, X, X)).values()
    assert head.logit is None and "add_bias_kv" in head.note
    computed = parametrizations.weight_norm(nn.MultiheadAttention(12, 3), "in_proj_weight")
    (head, *_) = attention_heads(computed, (X, X, X)).values()
    assert head.logit is None and "parametrization" in head.note


def test_a_model_without_attention_has_no_heads() -> None:
    assert attention_heads(nn.Sequential(nn.Linear(12, 3), nn.ReLU()), X) == {}


def test_weights_that_are_not_finite_are_named() -> None:
    layer, model = nn.MultiheadAttention(12, 3, batch_first=True), nn.Sequential(Grouped())
    nn.init.constant_(layer.in_proj_bias, math.nan)
    nn.init.constant_(model[0].b.weight, math.inf)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="projections of attention in 'the model itself' hold NaN"):
        attention_heads(layer, (X, X, X))
    with pytest.raises(ValueError, match="Queries, keys or values of attention in '0' hold NaN"):
        attention_heads(model, X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_precisions(dtype: torch.dtype) -> None:
    model = Grouped().to(dtype)
    expected = products(model, 1 / math.sqrt(6))
    for head, (q, k, _) in zip(attention_heads(model, X.to(dtype)).values(), expected, strict=True):
        assert holds(head.logit, norm(q.T @ k))


def test_the_model_is_left_as_it_was() -> None:
    model = Grouped().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    attention_heads(model, X)
    assert model.training and not model._forward_hooks and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
