"""Products of heads as layers: which there are, and that training holds them within bounds."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from seeds import seeded
from torch import Tensor, nn, optim

from spectralclip import NormWarning, attach, attention_heads
from spectralclip._models import head_layers
from spectralclip.methods import SpectralClip

X = torch.zeros(2, 6, 12)
BOUND = {"logit": 0.2, "value": 0.3}
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
}


class Transposed(nn.Module):
    """A dense layer that keeps its weight the other way round, as those of GPT-2 do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Own(nn.Module):
    """Four heads, with as many keys or half of them, which are rotated or not."""

    def __init__(self, dense: Any = nn.Linear, keys: int = 4, rotates: bool = False) -> None:
        super().__init__()
        self.keys, self.rotates = keys, rotates
        self.a, self.b, self.c = dense(12, 24), dense(12, 12 * keys), dense(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, kv = self.a(x), self.b(x)
        q = q.unflatten(-1, (4, 6)).transpose(1, 2)
        k, v = (part.unflatten(-1, (self.keys, 6)).transpose(1, 2) for part in kv.chunk(2, -1))
        if self.rotates:
            angle = torch.arange(x.shape[1])[:, None] * 0.3
            turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1)
            turn = turn.view(-1, 2, 2)
            q, k = ((turn[:, None] @ y.unflatten(-1, (3, 2, 1))).flatten(-3) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        read: Tensor = self.c(y.transpose(1, 2).flatten(2))
        return read


class Torch(nn.Module):
    """Torch's own attention, with its matrices in one parameter."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return made


MODELS: dict[str, Callable[[], nn.Module]] = {
    "torch": Torch,
    "torch, no bias": lambda: Torch(bias=False),
    "own": Own,
    "transposed": lambda: Own(Transposed),
    "grouped": lambda: Own(keys=2),
}
EACH = pytest.mark.parametrize("name", MODELS)


def network(name: str, seed: int = 0) -> nn.Sequential:
    with seeded(seed):
        return nn.Sequential(MODELS[name](), nn.Linear(12, 5))


def of_heads(name: str, layer: Any) -> float | None:
    """The bounds of products; other layers are left alone."""
    return BOUND.get(name.rpartition(".")[2])


def held(model: nn.Module, optimizer: optim.Optimizer | None, **settings: Any) -> Any:
    method = SpectralClip(compose="heads", **settings)
    return attach(model, optimizer, X, method=method, max_norm=of_heads)


def over_bounds(model: nn.Module) -> dict[str, float]:
    """By product, its norm over its bound: from weights as they are, dense and in float64."""
    found = {}
    for name, head in attention_heads(model, X).items():
        assert head.logit is not None and head.value is not None
        found[f"{name}.logit"] = head.logit.upper / BOUND["logit"]
        found[f"{name}.value"] = head.value.upper / BOUND["value"]
    return found


def trained(model: nn.Module, optimizer: optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = 3 * torch.randn(8, 6, 12, generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(10 * model(x).mean(1), torch.arange(8) % 5).backward()
        optimizer.step()


def test_products_take_the_place_of_projections() -> None:
    names = list(head_layers(network("torch"), X))
    kinds = [f"0.attention[{n}].{kind}" for n in range(3) for kind in ("logit", "value")]
    assert names == ["1", *kinds]
    layers = head_layers(network("grouped"), X)
    assert list(layers) == ["1", *(f"0[{n}].logit" for n in range(4))] + [
        f"0[{n}].value" for n in range(4)
    ]
    assert layers["0[2].logit"].shared == ("0[3].logit",)


def test_rotated_queries_and_keys_stay_layers_of_their_own() -> None:
    with seeded(0):
        layers = head_layers(Own(rotates=True), X)
    assert list(layers) == ["a", "b", *(f"[{n}].value" for n in range(4))]


def test_a_frozen_factor_keeps_its_heads_out() -> None:
    model = network("own")
    model[0].a.weight.requires_grad_(False)
    assert [name for name in head_layers(model, X) if "logit" in name] == []
    assert {"0.a", "0.b"} < set(head_layers(model, X))


@EACH
def test_their_norms_are_those_of_the_heads(name: str) -> None:
    model = network(name)
    attachment = held(model, None, check_every=0)
    norms = attachment._state.norms()  # type: ignore[union-attr]
    assert set(norms) == set(over_bounds(model))
    for layer, norm in norms.items():
        expected = over_bounds(model)[layer] * BOUND[layer.rpartition(".")[2]]
        assert float(norm) == pytest.approx(expected, rel=1e-3)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@EACH
def test_products_are_within_their_bounds_after_every_step(name: str, optimizer: str) -> None:
    model = network(name)
    keys = list(model.state_dict())
    trainer = OPTIMIZERS[optimizer](model.parameters())
    attachment = held(model, trainer)
    assert max(over_bounds(model).values()) > 1.2
    for step in range(25):
        trained(model, trainer, range(step, step + 1))
        assert max(over_bounds(model).values()) <= 1.02, step
    attachment.finalize(certify=True)
    assert max(over_bounds(model).values()) <= 1.0001
    assert list(model.state_dict()) == keys


def test_what_is_within_its_bound_stays_bit_for_bit() -> None:
    model = network("own")
    for weight in model[0].parameters():
        weight.data.mul_(0.1)
    before = copy.deepcopy(model.state_dict())
    attachment = held(model, None)
    for _ in range(3):
        attachment.step()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@EACH
def test_a_checkpoint_goes_on_bit_for_bit(name: str) -> None:
    model = network(name)
    trainer = OPTIMIZERS["Adam"](model.parameters())
    attachment = held(model, trainer)
    trained(model, trainer, range(12))
    file = io.BytesIO()
    torch.save([one.state_dict() for one in (model, trainer, attachment)], file)
    trained(model, trainer, range(12, 18))
    file.seek(0)
    other = network(name, seed=1)
    second = OPTIMIZERS["Adam"](other.parameters())
    again = held(other, second)
    for one, state in zip((other, second, again), torch.load(file), strict=True):
        one.load_state_dict(state)
    trained(other, second, range(12, 18))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_momentum_of_units_in_columns_is_projected_too() -> None:
    """A step without a gradient would follow it, and undo what clipping has done."""
    model = network("own")
    trainer = OPTIMIZERS["SGD"](model.parameters())
    held(model, trainer, check_every=0)
    trained(model, trainer, range(20))
    weight = model[0].c.weight
    free = copy.deepcopy(trainer.state[weight]["momentum_buffer"])
    inward = copy.deepcopy(weight.detach())
    trained(model, trainer, range(20, 21))
    # With projection, the buffer is not the average of gradients that it would be without.
    assert weight.grad is not None
    plain = 0.9 * free + weight.grad
    assert not torch.allclose(trainer.state[weight]["momentum_buffer"], plain)
    assert not torch.equal(inward, weight)


def test_a_factor_that_turns_nan_is_named_and_leaves_the_others_alone() -> None:
    model = network("own")
    attachment = held(model, None, check_every=0)
    attachment.step()
    with torch.no_grad():
        model[0].a.weight[0, 0] = torch.nan
        model[0].c.weight.mul_(3)
    with pytest.warns(NormWarning, match=r"0\[0\]\.logit"):
        attachment.step()
    assert sum(int(weight.isnan().sum()) for weight in model.parameters()) == 1
    model[0].a.weight.data.nan_to_num_(0.0)
    heads = attention_heads(model, X).values()
    assert max(head.value.upper for head in heads if head.value) <= 1.02 * BOUND["value"]


def test_with_another_default_device() -> None:
    models = [network(name) for name in ("torch", "own")]
    torch.set_default_device("meta")
    try:
        found = [list(attention_heads(model, X)) for model in models]
        for model in models:
            attach(model, None, X, method=SpectralClip(compose="heads")).step()
    finally:
        torch.set_default_device(None)
    assert all(found)


def test_products_with_a_frozen_factor_are_named() -> None:
    model = network("own")
    model[0].c.weight.requires_grad_(False)
    optimizer = optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with pytest.warns(NormWarning, match=r"\['0\[0\].value', .* are not held: a factor of each is"):
        attachment = held(model, optimizer)
    assert [name for name in attachment.layers if "value" in name] == []


def test_a_factor_of_no_optimizer_stays() -> None:
    model = network("own")
    before = model[0].b.weight.detach().clone()  # keys and values
    others = [p for name, p in model.named_parameters() if not name.startswith("0.b.")]
    with pytest.warns(NormWarning, match="trained in part"):
        attachment = held(model, optim.SGD(others, lr=0.1))
    attachment.step()
    assert torch.equal(model[0].b.weight, before) and not attachment.layers
