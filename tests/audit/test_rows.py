"""Which layers an audit shows, what it says of them, and what it does with broken ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from audit_cases import audited, dense, norm
from torch import Tensor, nn
from zoo import BY_NAME

from spectralclip._audit import LayerAudit, audit

# --- Which rows, and what they say -----------------------------------------------------------


def test_rows_are_in_order_with_chains_behind_their_last_part() -> None:
    _, found = audited("mobilenet")
    names = [layer.name for layer in found.layers]
    chain = "4.body.6+4.body.7+5+6+7"
    at = names.index("4.body.6")
    assert names[at:] == ["4.body.6", "4.body.7", "4.body.6+4.body.7", "7", chain]
    assert found[chain].parts == ("4.body.6", "4.body.7", "5", "6", "7")
    assert found[chain].kind == "Conv2d + BatchNorm2d + AdaptiveAvgPool2d + Flatten + Linear"
    assert found["0+1"].role == "chain" and found["0"].role == "layer"
    assert found.skipped == {}


def test_geometry_in_plain_words() -> None:
    conv = functools.partial(nn.Conv2d, 4, 8)
    cases = {
        "4 -> 8, 3x3, stride 2, padding 1 zeros": conv(3, 2, 1),
        "4 -> 8, 3x1, padding 1x0 reflect": conv((3, 1), padding=(1, 0), padding_mode="reflect"),
        "4 -> 8, 5x5, dilation 2, padding same zeros": conv(5, dilation=2, padding="same"),
        "4 -> 8, 1x1, 2 groups": conv(1, groups=2),
        "4 -> 8, 3x3, depthwise": conv(3, groups=4),
        "4 -> 3, 2x2 transposed, stride 2, output padding 1": nn.ConvTranspose2d(
            4, 3, 2, 2, output_padding=1
        ),
        "4 channels": nn.BatchNorm2d(4),
    }
    for words, layer in cases.items():
        (row,) = audit(layer, torch.zeros(1, 4, 12, 12), lipschitz=False).layers
        assert row.geometry == words
    (row,) = audit(nn.Linear(5, 3), torch.zeros(2, 7, 5), lipschitz=False).layers
    assert row.geometry == "5 -> 3" and row.in_shape == (5,) and row.out_shape == (3,)


class Twice(nn.Module):
    """One convolution at two sizes, whose norm grows with the size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.tied = nn.Conv2d(2, 2, 3, padding=1)
        self.tied.weight = self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        large, small = self.conv(x), self.conv(x[..., ::4, ::4])
        return large.sum((2, 3)) * small.sum((2, 3)) + self.tied(x).sum((2, 3))


def test_layers_used_at_several_sizes_show_the_worst() -> None:
    found = audit(Twice(), torch.zeros(1, 2, 8, 8), lipschitz=False)
    layer = found["conv"]
    assert layer.uses == 2 and layer.in_shape == (2, 8, 8) and layer.shared == ("tied",)


def set_up_chain(conv_norms: Sequence[float], factors: Sequence[float]) -> LayerAudit:
    """A 1x1 convolution that stretches each channel so, and a batch norm behind it."""
    conv, bn = nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.0)
    with torch.no_grad():
        conv.weight.copy_(torch.diag(torch.tensor(conv_norms))[:, :, None, None])
        bn.weight.copy_(torch.tensor(factors))
    chain = audit(nn.Sequential(conv, bn), torch.zeros(1, 2, 3, 3), lipschitz=False)["0+1"]
    assert chain.norm.upper == pytest.approx(
        max(a * b for a, b in zip(conv_norms, factors, strict=True)), rel=1e-5
    )
    return chain


@pytest.mark.parametrize(
    ("conv_norms", "factors", "compensates", "word"),
    [
        ((4.0, 0.5), (0.25, 2.0), True, "bound the chain as one"),
        ((1.0, 0.5), (3.0, 1.0), True, "batch norm undoes"),
        ((2.0, 0.5), (1.5, 1.0), False, "clip_"),
        ((1.0, 0.5), (0.9, 0.8), False, "Lengthens no difference"),
    ],
)
def test_compensation_is_flagged(
    conv_norms: tuple[float, float], factors: tuple[float, float], compensates: bool, word: str
) -> None:
    chain = set_up_chain(conv_norms, factors)
    assert chain.compensates is compensates
    assert word in chain.remark


@pytest.mark.parametrize(
    ("scale", "word"),
    [
        (0.0, "dead"),
        (0.01, "little of its input"),
        (0.5, "Lengthens no difference"),
        (1.01, "1 % at most"),
        (7.0, "clip_"),
        (900.0, "look at its weights"),
    ],
)
def test_remarks(scale: float, word: str) -> None:
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(scale * torch.eye(3))
    assert word in audit(layer, torch.zeros(1, 3), lipschitz=False)[""].remark


def test_remark_on_what_torch_would_leave() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")
    with torch.no_grad():
        conv.weight.copy_(torch.eye(2)[:, :, None, None].expand(2, 2, 3, 3))
    row = audit(conv, torch.zeros(1, 2, 6, 6), lipschitz=False)[""]
    assert row.norm.upper == pytest.approx(9) and row.reshaped_norm == pytest.approx(3)
    assert "would see 3 and so leave it 3 times too large" in row.remark


# --- Trouble ---------------------------------------------------------------------------------


def test_broken_layers_are_left_out_with_a_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    found = audit(model, torch.zeros(1, 4), lipschitz=False)
    assert [layer.name for layer in found.layers] == ["0", "3"]
    assert set(found.skipped) == {"1", "0+1", "2"}
    assert "NaN" in found.skipped["1"] and "not affine" in found.skipped["2"]
    assert set(found.uncertified) == {"1", "0+1"}
    with pytest.raises(KeyError, match="left out of the audit"):
        found["1"]
    with pytest.raises(KeyError, match="no layer 'nothing'"):
        found["nothing"]


class Called(nn.Module):
    """Modules that are no affine layers, and affine ones that are called in ways of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.unused = nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 3)
        self.rnn, self.both = nn.LSTM(3, 3), nn.Bilinear(3, 3, 3)
        self.functional, self.up = nn.Linear(3, 3), nn.ConvTranspose1d(1, 1, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.rnn(self.norm(x)[:, None])[0][:, 0]
        x = self.both(x, x)
        return self.up((x @ self.functional.weight)[:, None], output_size=[8])


def test_only_what_may_be_an_affine_layer_is_missed() -> None:
    found = audit(Called(), torch.zeros(4, 3), lipschitz=False)
    assert set(found.skipped) == {"norm", "unused", "rnn", "both", "functional", "up"}
    assert set(found.uncertified) == {"functional", "up"}
    assert found.skipped["up"] == f"not certified: {found.uncertified['up']}"


def test_deterministic_bounds_rest_on_no_probability() -> None:
    specimen = BY_NAME["resnet"]
    model = specimen.model()
    found = audit(model, specimen.inputs(), deterministic=True, lipschitz=False)
    for layer in found.layers:
        assert layer.norm.failure == 0 and layer.norm.kind != "probabilistic"
        assert norm(dense(model, layer)) in layer.norm


class Odd(nn.Module):
    """A dense layer that is known by no type, and has too many inputs to be tried one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(1500, 1200) / 40)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


def test_layers_of_unknown_types() -> None:
    model = Odd()
    (layer,) = audit(model, torch.zeros(1, 1500), lipschitz=False).layers
    weight = model.matrix.detach().double()
    assert layer.kind == "Odd" and layer.geometry == "1500 -> 1200"
    assert layer.norm.kind == "probabilistic" and norm(weight) in layer.norm
    assert layer.reshaped_norm is None and not layer.frobenius_is_exact
    # 64 samples of an operator whose stable rank is in the hundreds
    assert layer.frobenius == pytest.approx(float(weight.norm()), rel=0.01)


def test_a_network_without_a_bound_is_left_out_with_a_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    found = audit(model, torch.zeros(1, 4))
    assert found.lipschitz is None and "NaN" in found.skipped["(the network)"]
    assert "network: not to be had." in str(found)
    assert "NaN" in found.uncertified["(the network)"]
    with pytest.raises(ValueError, match=r"has no bound on the network: .* holds NaN"):
        found.certified_radius(torch.zeros(1, 2))
    unasked = audit(model, torch.zeros(1, 4), lipschitz=False)
    assert "network: not asked for." in str(unasked)
    with pytest.raises(ValueError, match="lipschitz=True"):
        unasked.certified_radius(torch.zeros(1, 2))


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        (row,) = audit(nn.Linear(3, 3), torch.zeros(1, 3), lipschitz=False).layers
    assert row.norm.kind == "exact"


def test_weights_without_values() -> None:
    with pytest.raises(ValueError, match=r"'weight' of Linear is on the meta device"):
        audit(nn.Linear(3, 3, device="meta"), torch.zeros(1, 3, device="meta"))
    with pytest.raises(ValueError, match="no size yet"):
        audit(nn.LazyLinear(3), torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be"),
        ({"k": True}, "k must be"),
        ({"tol": 0.0}, "tol must be"),
        ({"failure": 1.0}, "failure must be"),
        ({"workers": 0}, "workers must be"),
        ({"workers": "ranks"}, "not initialized"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(nn.Linear(2, 2), torch.zeros(1, 2), **arguments)


# --- What is left out is explained --------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 3, batch_first=True), nn.GRU(3, 3, batch_first=True)
        self.norm, self.out = nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.gru(self.lstm(x)[0])[0]))


def test_recurrent_weights_are_listed_with_their_norms_and_explained() -> None:
    model = Recurrent()
    skipped = audit(model, torch.randn(2, 5, 4), lipschitz=False).skipped
    for name, layer in (("lstm", model.lstm), ("gru", model.gru)):
        assert "a recurrent layer" in skipped[name] and "not certified" not in skipped[name]
        for weight in ("weight_ih_l0", "weight_hh_l0"):
            norm = torch.linalg.svdvals(getattr(layer, weight).detach())[0]
            assert f"{weight} " in skipped[name] and f"of norm {float(norm):.4g}" in skipped[name]


def test_the_advice_on_a_layer_norm_can_be_followed_in_an_audit() -> None:
    why = audit(Recurrent(), torch.randn(2, 5, 4), lipschitz=False).skipped["norm"]
    assert "not affine" in why and "Leave it out" not in why
    assert "larger eps" in why and "batch norm in its place" in why


# --- Positional and keyword inputs --------------------------------------------------------------


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return factor * self.layer(x) * mask


def test_an_audit_takes_positional_and_keyword_inputs() -> None:
    model, x, mask = Masked(), torch.randn(2, 4), torch.ones(2, 3)
    plain = audit(model, {"x": x, "mask": mask, "factor": 2.0})
    for args in ((x,), x, [x]):
        found = audit(model, args, {"mask": mask, "factor": 2.0})
        assert found.inputs == ((2, 4), (2, 3)) and found.layers == plain.layers
        assert found.lipschitz == plain.lipschitz
    assert audit(model, (), {"x": x, "mask": mask}).layers == plain.layers


def test_inputs_that_are_no_such_things_are_refused() -> None:
    model, x = Masked(), torch.randn(2, 4)
    with pytest.raises(TypeError, match=r"example_kwargs must be a dictionary.*got Tensor"):
        audit(model, x, torch.ones(2, 3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="given twice"):
        audit(model, {"x": x}, {"mask": torch.ones(2, 3)})
    with pytest.raises(TypeError, match="example_inputs must be"):
        audit(model, (), {"factor": 2.0})
