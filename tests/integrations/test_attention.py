"""Heads of the attention of transformers, against products of the weights that we know by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from seeds import seeded

from spectralclip import Head, as_operator, attention_heads, clip_, norm_bounds, set_spectrum_, svds

transformers = pytest.importorskip("transformers")

TOKENS = {"input_ids": torch.arange(9)[None]}
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def norm(matrix: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def made(kind: str, **options: Any) -> Any:
    with seeded(0):
        config = getattr(transformers, f"{kind}Config")(**options)
        model = getattr(transformers, f"{kind}Model")(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # which begin at zero
                torch.nn.init.normal_(parameter, 0.0, 0.02)
    return model


def rows(layer: Any, part: slice, transposed: bool = False) -> torch.Tensor:
    weight = layer.weight.T if transposed else layer.weight
    bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias
    return torch.cat([weight, bias[:, None]], 1)[part].detach().double()


def compare(head: Head, q: Any, k: Any, v: Any, out: Any) -> None:
    logit = norm(q.T @ k) / 8**0.5
    assert head.logit is not None and head.value is not None
    assert logit in head.logit and norm(out @ v) in head.value
    assert head.is_rotary or head.logit.width < 1e-9


def test_gpt2() -> None:
    model = made("GPT2", vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    heads = attention_heads(model, TOKENS)
    assert list(heads) == [f"h.{i}.attn[{n}]" for i in (0, 1) for n in range(4)]
    for head in heads.values():
        attn = model.h[int(head.layer[2])].attn
        own = slice(8 * head.index, 8 * head.index + 8)
        q, k, v = (
            rows(attn.c_attn, slice(start + own.start, start + own.stop), True)
            for start in (0, 32, 64)
        )
        compare(head, q, k, v, attn.c_proj.weight.detach().double().T[:, own])


def test_bert() -> None:
    model = made("Bert", vocab_size=50, hidden_size=32, **SIZES)
    heads = attention_heads(model, TOKENS)
    assert len(heads) == 8
    for head in heads.values():
        block = model.encoder.layer[int(head.layer.split(".")[2])].attention
        own = slice(8 * head.index, 8 * head.index + 8)
        q, k, v = (rows(getattr(block.self, part), own) for part in ("query", "key", "value"))
        compare(head, q, k, v, block.output.dense.weight.detach().double()[:, own])


def test_llama_with_grouped_keys_and_rotary_embeddings() -> None:
    model = made("Llama", vocab_size=50, hidden_size=32, num_key_value_heads=2, **SIZES)
    heads = attention_heads(model, TOKENS)
    assert [head.key for head in heads.values()] == [0, 0, 1, 1] * 2
    for head in heads.values():
        attn = model.layers[int(head.layer.split(".")[1])].self_attn
        own, shared = (slice(8 * n, 8 * n + 8) for n in (head.index, head.index // 2))
        assert head.is_rotary
        q, k, v = rows(attn.q_proj, own), rows(attn.k_proj, shared), rows(attn.v_proj, shared)
        compare(head, q, k, v, attn.o_proj.weight.detach().double()[:, own])


def test_vision_transformer() -> None:
    model = made("ViT", hidden_size=32, image_size=16, patch_size=4, **SIZES)
    heads = attention_heads(model, {"pixel_values": torch.zeros(1, 3, 16, 16)})
    assert len(heads) == 8
    assert all(h.logit is not None and h.logit.width < 1e-9 for h in heads.values())
    assert all(h.value is not None and h.value.width < 1e-9 for h in heads.values())
    dense = [m for m in model.modules() if getattr(m, "weight", torch.zeros(1)).shape == (32, 32)]
    own = [rows(layer, slice(8, 16)) for layer in dense[:4]]
    seen = heads[next(iter(heads)).replace("[0]", "[1]")]
    assert seen.logit is not None
    pairs = [norm(a.T @ b) / 8**0.5 for a in own for b in own]
    assert any(one in seen.logit for one in pairs)


def test_normalized_queries_are_said_to_be() -> None:
    if not hasattr(transformers, "Qwen3Config"):
        pytest.skip("this version of transformers has no Qwen3")
    model = made("Qwen3", vocab_size=50, hidden_size=32, num_key_value_heads=2, head_dim=8, **SIZES)
    heads = attention_heads(model, TOKENS)
    assert all(h.logit is None and "normalized" in h.note and h.value for h in heads.values())


def test_dense_layers_that_keep_the_transpose_have_an_explicit_form() -> None:
    with seeded(0):
        layer = transformers.pytorch_utils.Conv1D(12, 8)
        torch.nn.init.normal_(layer.bias)
    op, general = (as_operator(layer, (8,), explicit=explicit) for explicit in (True, False))
    assert op.maps[0].is_explicit and not general.maps[0].is_explicit
    torch.testing.assert_close(op.to_dense(), general.to_dense())
    assert torch.equal(op.to_dense(), layer.weight.detach().T)
    bounds = norm_bounds(layer, (8,))
    assert bounds.kind == "exact" and norm(layer.weight.detach().double()) in bounds
    before = layer.weight.detach().clone()
    clip_(layer, (8,), 0.02)
    left, values, right = torch.linalg.svd(before, full_matrices=False)
    torch.testing.assert_close(layer.weight.detach(), left @ values.clamp(max=0.02).diag() @ right)
    assert set_spectrum_(layer, (8,), svds(layer, (8,), 8), lambda S: 0 * S + 1) < 1e-4
    torch.testing.assert_close(torch.linalg.svdvals(layer.weight.detach()), torch.ones(8))
