"""Adapters inside of models, found by structure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from adapter_cases import Adapted, dense, factors
from seeds import seeded
from torch import nn

from oracle import dense_norm
from spectralclip.integrations.adapters import from_model, report


class Named(nn.Module):
    """A layer that holds several adapters by name, as those of peft do."""

    def __init__(self, *names: str, dora: str = "") -> None:
        super().__init__()
        self.base_layer = nn.Linear(20, 12)
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()
        self.lora_magnitude_vector = nn.ModuleDict({dora: nn.Identity()} if dora else {})
        self.scaling, self.merged = {}, False
        for seed, name in enumerate(names):
            A, B = factors(seed, 12, 20, 3)
            self.lora_A[name] = nn.Linear(20, 3, bias=False)
            self.lora_B[name] = nn.Linear(3, 12, bias=False)
            self.lora_A[name].weight.data, self.lora_B[name].weight.data = A, B
            self.scaling[name] = 2.0 + seed


@pytest.mark.parametrize(
    ("known", "scale"),
    [
        ({"scaling": 3.0}, 3.0),
        ({"scale": 3.0}, 3.0),
        ({"alpha": 6.0}, 2.0),
        ({"lora_alpha": 6.0}, 2.0),
        ({}, 1.0),
    ],
)
def test_a_pair_and_its_scale_are_found(known: dict[str, float], scale: float) -> None:
    model = nn.Sequential(nn.Linear(20, 20), Adapted(rank=3, **known))
    adapter = from_model(model)
    assert list(adapter) == ["1"] and adapter.name == "Sequential"
    layer = model[1]
    expected = dense(layer.lora_A.detach(), layer.lora_B.detach(), scale)
    torch.testing.assert_close(adapter["1"].delta(), expected, rtol=1e-12, atol=1e-12)


def test_clipping_moves_the_model_itself() -> None:
    model = nn.Sequential(Adapted(scaling=3.0))
    keys, gradients = list(model.state_dict()), [p.requires_grad for p in model.parameters()]
    weight = model[0].weight.detach().clone()
    adapter = from_model(model)
    adapter.clip_(0.5)
    after = dense(model[0].lora_A.detach(), model[0].lora_B.detach(), 3.0)
    assert float(torch.linalg.matrix_norm(after, 2)) == pytest.approx(0.5, rel=1e-6)
    assert list(model.state_dict()) == keys
    assert [p.requires_grad for p in model.parameters()] == gradients
    assert torch.equal(model[0].weight, weight)


def test_adapters_are_told_apart_by_name() -> None:
    model = nn.Sequential(Named("style", "subject"), Named("style"))
    style, subject = from_model(model, "style"), from_model(model, "subject")
    assert (list(style), list(subject)) == (["0", "1"], ["0"])
    assert (style["0"].scale, subject["0"].scale) == (2.0, 3.0)
    with pytest.raises(ValueError, match=r"several adapters.*\['style', 'subject'\]"):
        from_model(model)
    with pytest.raises(ValueError, match=r"of the adapter 'other'.*got .*none was found"):
        from_model(model, "other")
    found = report([style, subject], base=model)
    base = torch.linalg.matrix_norm(model[0].base_layer.weight.detach().double(), 2)
    assert found.updates[0].base is not None
    assert found.updates[0].base.norm == pytest.approx(float(base), rel=1e-3)


def test_the_geometry_of_a_convolution_is_its_own() -> None:
    model = nn.Sequential(nn.Module())
    model[0].lora_down = nn.Conv2d(5, 3, 3, stride=2, padding=1, bias=False)
    model[0].lora_up = nn.Conv2d(3, 6, 1, bias=False)
    update = from_model(model)["0"]
    assert update(torch.ones(1, 5, 8, 8)).shape == (1, 6, 4, 4)


def test_embeddings_are_transposed() -> None:
    words = nn.Module()
    words.base_layer, words.scaling = nn.Embedding(20, 12), {"x": 2.0}
    A, B = factors(0, 12, 20, 3)
    words.lora_embedding_A = nn.ParameterDict({"x": nn.Parameter(A)})
    words.lora_embedding_B = nn.ParameterDict({"x": nn.Parameter(B)})
    model = nn.Sequential(words)
    adapter = from_model(model)
    assert adapter["0"].transposed
    (row,) = report(adapter, base=model).updates
    both = words.base_layer.weight.detach().double().T + dense(A, B, 2.0)
    assert row.base is not None
    assert row.base.sum_norm == pytest.approx(float(torch.linalg.matrix_norm(both, 2)), rel=1e-3)


def test_other_forms_are_left_out() -> None:
    adapter = from_model(nn.Sequential(Named("x"), Named("x", dora="x")))
    assert list(adapter) == ["0"] and "DoRA" in adapter.left_out["1"]
    grouped = nn.Module()
    grouped.lora_down, grouped.lora_up = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 6, 1, groups=2)
    with pytest.raises(ValueError, match=r"none was found.*grouped"):
        from_model(nn.Sequential(grouped))


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"groups": 2}, "a part of the inputs"), ({"padding_mode": "circular"}, "pads by 'circular'")],
)
def test_convolutions_that_updates_do_not_know_are_left_out(
    options: dict[str, Any], reason: str
) -> None:
    other = nn.Module()
    other.lora_down, other.lora_up = nn.Conv2d(4, 4, 3, padding=1, **options), nn.Conv2d(4, 6, 1)
    adapter = from_model(nn.Sequential(other, Named("x")))
    assert list(adapter) == ["1"] and reason in adapter.left_out["0"]


def test_a_model_without_adapters_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear: expected modules with lora_A and lora_B"):
        from_model(nn.Linear(3, 3))


def test_transposed_factors_are_refused() -> None:
    layer = nn.Linear(9, 9)
    layer.lora_a, layer.lora_b = nn.Parameter(torch.ones(9, 2)), nn.Parameter(torch.ones(2, 9))
    with pytest.raises(ValueError, match=r"0: .*got A \(9, 2\) and B \(2, 9\): they seem to be"):
        from_model(nn.Sequential(layer))


def test_a_merged_base_is_refused() -> None:
    model = nn.Sequential(Named("x"))
    adapter = from_model(model)
    model[0].merged = True
    with pytest.raises(ValueError, match=r"0: expected an adapter beside its base.*unmerge"):
        report(adapter, base=model)


class PlainConvolution(nn.Conv2d):
    """Factors that are plain parameters of the convolution itself."""

    def __init__(self, A: torch.Tensor, B: torch.Tensor, **settings: Any) -> None:
        super().__init__(3, 8, 3, **settings)
        self.lora_A, self.lora_B = nn.Parameter(A), nn.Parameter(B)


def test_plain_factors_have_the_geometry_of_the_layer_that_holds_them() -> None:
    with seeded(0):
        A, B = torch.randn(2, 3, 3, 3), torch.randn(8, 2, 1, 1)
    update = from_model(nn.Sequential(PlainConvolution(A, B, stride=2, padding=1)))["0"]
    kernel = torch.tensordot(B.double().flatten(1), A.double(), 1)
    expected = dense_norm(as_conv(kernel, stride=2, padding=1), (3, 9, 9))
    assert expected in update.norm_at((3, 9, 9))


def as_conv(kernel: torch.Tensor, **settings: Any) -> nn.Conv2d:
    sizes = (*kernel.shape[1::-1], kernel.shape[-1])
    conv = nn.Conv2d(*sizes, bias=False, dtype=kernel.dtype, **settings)
    conv.weight = nn.Parameter(kernel)
    return conv


class LoralibConvolution(nn.Module):
    """As in loralib: two matrices whose product has the entries of the kernel."""

    def __init__(self, channels: int = 4, rank: int = 2, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel)
        self.lora_A = nn.Parameter(torch.randn(rank * kernel, channels * kernel))
        self.lora_B = nn.Parameter(torch.randn(channels * kernel, rank * kernel))


class Merged(nn.Linear):
    """As in loralib: queries and values have factors of their own in one tensor."""

    def __init__(self) -> None:
        super().__init__(6, 18)
        self.lora_A = nn.Parameter(torch.randn(4, 6))
        self.lora_B = nn.Parameter(torch.randn(12, 2))


def test_factors_of_other_forms_are_left_out_by_name() -> None:
    model = nn.Sequential(Adapted(rank=3), LoralibConvolution(), Merged())
    adapter = from_model(model)
    assert list(adapter) == ["0"]
    assert "a kernel of several taps" in adapter.left_out["1"]
    assert adapter.left_out["2"] == "B takes 2 inputs, and A makes 4 outputs"


class Beside(nn.Module):
    """A layer of any name beside two factors, with a scale that its forward alone knows."""

    def __init__(self, **told: Any) -> None:
        super().__init__()
        with seeded(0):
            self.base = nn.Linear(6, 5)
            self.lora_A, self.lora_B = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)
        for key, value in told.items():
            setattr(self, key, value)


def test_a_scale_that_no_attribute_tells_is_given_as_alpha() -> None:
    model = nn.Sequential(Beside())
    plain = from_model(model)["0"].norm
    assert from_model(model, alpha=16.0)["0"].norm == pytest.approx(8 * plain)
    with pytest.raises(ValueError, match=r"0: expected a number as 'scaling'.*give alpha="):
        from_model(nn.Sequential(Beside(scaling=lambda x: 8 * x)))


def test_the_base_is_found_by_whatever_name_it_has() -> None:
    model = nn.Sequential(Beside())
    (update,) = report([from_model(model)], model).updates
    expected = torch.linalg.matrix_norm(model[0].base.weight.detach().double(), 2)
    assert update.base is not None
    assert update.base.norm == pytest.approx(float(expected), rel=1e-6)
