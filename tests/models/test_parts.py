"""The matrices inside recurrent layers and attention: found, named, used as their names say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from spectralclip import clip_model_, find_layers, init_at_bound_, skipped_layers


class First(nn.Module):
    """The first thing that a layer returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any) -> Tensor:
        found = self.layer(*args)
        return found if isinstance(found, Tensor) else found[0]


LSTM, GRU = ("input", "forget", "cell", "output"), ("reset", "update", "new")


def gated(name: str, gates: tuple[str, ...]) -> list[str]:
    return [f"{name}[{gate}]" for gate in gates]


NAMES: dict[str, tuple[Any, list[str]]] = {
    "rnn": (lambda: nn.RNN(4, 3), ["weight_ih_l0", "weight_hh_l0"]),
    "gru": (lambda: nn.GRU(4, 3), gated("weight_ih_l0", GRU) + gated("weight_hh_l0", GRU)),
    "lstm-projected": (
        lambda: nn.LSTM(4, 3, proj_size=2),
        [*gated("weight_ih_l0", LSTM), *gated("weight_hh_l0", LSTM), "weight_hr_l0"],
    ),
    "gru-two-ways-two-layers": (
        lambda: nn.GRU(4, 3, 2, bidirectional=True),
        [
            name
            for layer in ("l0", "l0_reverse", "l1", "l1_reverse")
            for side in ("ih", "hh")
            for name in gated(f"weight_{side}_{layer}", GRU)
        ],
    ),
    "rnn-cell": (lambda: nn.RNNCell(4, 3), ["weight_ih", "weight_hh"]),
    "gru-cell": (lambda: nn.GRUCell(4, 3), gated("weight_ih", GRU) + gated("weight_hh", GRU)),
    "lstm-cell": (lambda: nn.LSTMCell(4, 3), gated("weight_ih", LSTM) + gated("weight_hh", LSTM)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(name: str) -> None:
    make, names = NAMES[name]
    model = First(make())
    x = torch.zeros(5, 4)
    found = find_layers(model, x)
    assert list(found) == [f"layer.{own}" for own in names]
    assert skipped_layers(model, x) == {}
    covered = 0
    for layer in found.values():
        (part,) = layer.modules
        weight: Any = part.weight
        assert layer.in_shapes == ((weight.shape[1],),) and (layer.shared, layer.uses) == ((), 1)
        covered += weight.numel()
    assert covered == sum(p.numel() for p in model.parameters() if p.ndim == 2)


def test_the_names_at_the_root() -> None:
    assert list(find_layers(nn.RNN(4, 3), torch.zeros(5, 4))) == ["weight_ih_l0", "weight_hh_l0"]


def matrices(model: nn.Module, x: Any) -> dict[str, Tensor]:
    return {n: layer.modules[0].weight.detach() for n, layer in find_layers(model, x).items()}  # type: ignore[union-attr,operator]


def test_gates_of_an_lstm_are_what_their_names_say() -> None:
    with seeded(0):
        cell, x, h, c = (
            nn.LSTMCell(4, 3, bias=False),
            torch.randn(4),
            torch.randn(3),
            torch.randn(3),
        )
    w = matrices(cell, (x, (h, c)))
    i, f, g, o = (w[f"weight_ih[{gate}]"] @ x + w[f"weight_hh[{gate}]"] @ h for gate in LSTM)
    state = f.sigmoid() * c + i.sigmoid() * g.tanh()
    torch.testing.assert_close(cell(x, (h, c))[0], o.sigmoid() * state.tanh())


def test_gates_of_a_gru_are_what_their_names_say() -> None:
    with seeded(0):
        cell, x, h = nn.GRUCell(4, 3, bias=False), torch.randn(4), torch.randn(3)
    w = matrices(cell, (x, h))
    r, z = ((w[f"weight_ih[{g}]"] @ x + w[f"weight_hh[{g}]"] @ h).sigmoid() for g in GRU[:2])
    new = (w["weight_ih[new]"] @ x + r * (w["weight_hh[new]"] @ h)).tanh()
    torch.testing.assert_close(cell(x, h), (1 - z) * new + z * h)


def test_layers_that_share_a_weight_name_each_other() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.RNNCell(3, 3), nn.RNNCell(3, 3)
            self.other.weight_hh = self.one.weight_hh

        def forward(self, x: Tensor) -> Tensor:
            return self.other(x, self.one(self.one(x)))

    found = find_layers(Twice(), torch.zeros(3))
    assert found["one.weight_hh"].shared == ("other",) and found["one.weight_hh"].uses == 2
    assert found["other.weight_hh"].shared == ("one",)
    assert found["one.weight_ih"].shared == ()


class OfItsOwn(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(2 * x)[0]


def test_what_computes_something_else_is_left_out_with_a_reason() -> None:
    x = torch.zeros(5, 4)
    assert find_layers(OfItsOwn(4, 3), x) == {}
    assert "not affine" in skipped_layers(OfItsOwn(4, 3), x)[""]
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.LSTM(4, 3)})
    model.forward = lambda x: model["used"](x)  # type: ignore[method-assign]
    assert list(find_layers(model, x)) == ["used"]
    assert skipped_layers(model, x) == {"unused": "not used in the forward pass"}


def test_weights_that_are_computed_are_left_out_and_the_others_are_not() -> None:
    layer = parametrizations.weight_norm(nn.RNN(4, 3), "weight_hh_l0")
    x = torch.zeros(5, 4)
    assert list(find_layers(First(layer), x)) == ["layer.weight_ih_l0"]
    assert list(skipped_layers(First(layer), x)) == ["layer"]


def test_what_is_computed_is_named_and_the_rest_is_not_skipped() -> None:
    recurrent = prune.identity(nn.GRU(3, 3), "weight_hh_l0")  # type: ignore[no-untyped-call]
    (reason,) = skipped_layers(recurrent, torch.zeros(2, 1, 3)).values()
    assert "made from weight_hh_l0_orig" in reason
    attention = prune.identity(nn.MultiheadAttention(4, 2), "in_proj_weight")  # type: ignore[no-untyped-call]
    inputs = (torch.zeros(2, 1, 4),) * 3
    assert list(find_layers(attention, inputs)) == ["out_proj"]
    ((name, reason),) = skipped_layers(attention, inputs).items()
    assert name == "" and "made from in_proj_weight_orig" in reason


def test_hooks_around_a_layer_change_no_matrix() -> None:
    layer = nn.GRU(4, 3)
    layer.register_forward_hook(lambda module, args, output: None)
    assert len(find_layers(First(layer), torch.zeros(5, 4))) == 6


def recurrent() -> First:
    with seeded(0):
        return First(nn.GRU(6, 5, 2))


def test_all_matrices_of_a_model_are_clipped() -> None:
    model, x = recurrent(), torch.zeros(3, 6)
    results = clip_model_(model, x, 0.3)
    assert len(results) == 12 and all(r.norm_after <= 0.3003 for r in results.values())
    for weight in model.parameters():
        for part in weight.detach().split(5) if weight.ndim == 2 else ():
            assert torch.linalg.matrix_norm(part, 2) <= 0.3003


def test_one_matrix_alone_is_clipped_by_its_name() -> None:
    model, before = recurrent(), recurrent().state_dict()
    clip_model_(model, torch.zeros(3, 6), {"layer.weight_hh_l1[update]": 0.2})
    changed = model.state_dict()
    for name, value in before.items():
        same = (changed[name] == value).reshape(len(value), -1).all(1)
        rows = slice(5, 10) if name == "layer.weight_hh_l1" else slice(0, 0)
        assert not same[rows].any() and same.sum() == len(value) - len(value[rows])


def test_all_matrices_start_orthogonal_at_their_bounds() -> None:
    model = recurrent()
    results = init_at_bound_(model, torch.zeros(3, 6), max_norm=0.7)
    assert all(one.how == "orthogonal matrix" for one in results.values())
    for weight in model.parameters():
        for part in weight.detach().split(5) if weight.ndim == 2 else ():
            torch.testing.assert_close(torch.linalg.svdvals(part), torch.full((5,), 0.7))


def test_tied_matrices_start_together() -> None:
    model = recurrent()
    model.layer.weight_hh_l1 = model.layer.weight_hh_l0  # type: ignore[union-attr]
    results = init_at_bound_(model, torch.zeros(3, 6), max_norm=0.7)
    assert results["layer.weight_hh_l1[new]"].norm == pytest.approx(0.7, rel=1e-3)


# --- Attention ----------------------------------------------------------------------------


class Attends(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        with seeded(0):
            self.attn = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.attn(x, y, z)[0]  # type: ignore[no-any-return]


PACKED = [*(f"attn.in_proj_weight[{part}]" for part in "qkv"), "attn.out_proj"]
APART = [*(f"attn.{part}_proj_weight" for part in "qkv"), "attn.out_proj"]


@pytest.mark.parametrize(
    ("options", "names"),
    [({}, PACKED), ({"add_bias_kv": True}, PACKED), ({"kdim": 6, "vdim": 5}, APART)],
)
def test_projections_are_what_their_names_say(options: dict[str, Any], names: list[str]) -> None:
    model = Attends(bias=False, **options)
    inputs = tuple(torch.randn(2, 3, options.get(dim, 8)) for dim in ("qdim", "kdim", "vdim"))
    w = matrices(model, inputs)
    assert list(w) == names and skipped_layers(model, inputs) == {}
    if "add_bias_kv" in options:
        return
    q, k, v = (
        (x @ w[name].T).unflatten(-1, (2, 4)).transpose(1, 2)
        for x, name in zip(inputs, names, strict=False)
    )
    mixed = (q @ k.mT / 2).softmax(-1) @ v
    torch.testing.assert_close(model(*inputs), mixed.transpose(1, 2).flatten(2) @ w[names[3]].T)


def test_attention_is_clipped_projection_by_projection() -> None:
    model, x = Attends(), torch.zeros(1, 3, 8)
    results = clip_model_(model, (x, x, x), 0.5)
    assert list(results) == PACKED and all(one.norm_after <= 0.5005 for one in results.values())
    for part in (*model.attn.in_proj_weight.detach().split(8), model.attn.out_proj.weight.detach()):
        assert torch.linalg.matrix_norm(part, 2) <= 0.5005
