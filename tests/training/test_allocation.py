"""One number for the whole network: `attach(..., max_lipschitz=...)`."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import Attachment, NormWarning, attach, lipschitz_bounds
from spectralclip._lipschitz import NetworkBound, NetworkRules
from spectralclip._training import Method
from spectralclip._training.allocation import Allocation
from spectralclip.methods import FastClip, Gouk, Parametrize, SpectralClip

EXAMPLE = torch.zeros(2, 2, 6, 6)


class Network(nn.Module):
    """Convolutions, a residual sum, a concatenation, a pool and a dense layer."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.branch = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()
        self.side = nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False)
        self.head = nn.Linear(16, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = x + torch.relu(self.norm(self.branch(x)))
        parts = [torch.relu(self.side(x)).mean((2, 3)), F.avg_pool2d(x, 6).flatten(1)]
        return self.head(torch.cat(parts, 1))  # type: ignore[no-any-return]


def trained(
    max_lipschitz: float,
    *,
    steps: int,
    method: Method | None = None,
    model: nn.Module | None = None,
    **settings: Any,
) -> tuple[nn.Module, Attachment, list[float]]:
    """A network trained to grow, and its bound by the rules with dense norms, as it went."""
    torch.manual_seed(0)
    model = model or Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    attachment = attach(
        model, optimizer, EXAMPLE, method=method, max_lipschitz=max_lipschitz, **settings
    )
    seen = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = -model(torch.randn(16, 2, 6, 6)).square().sum(1).sqrt().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 25 == 0:
            seen.append(network_norm(model, attachment))
    return model, attachment, seen


def network_norm(model: nn.Module, attachment: Attachment) -> float:
    layers = attachment.layers
    norms = {name: dense_norm(list(one.modules), one.in_shapes[0]) for name, one in layers.items()}
    return NetworkRules(model, EXAMPLE, layers).of(norms)


METHODS: list[Method] = [
    SpectralClip(),
    SpectralClip(compose="conv_bn"),
    Parametrize(),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda one: type(one).__name__)
def test_the_network_stays_within_its_bound(method: Method, max_lipschitz: float = 1.0) -> None:
    network = Network(norm=method.compose == "conv_bn")
    model, attachment, seen = trained(max_lipschitz, steps=125, method=method, model=network)
    assert max(seen) <= 1.02 * max_lipschitz
    assert seen[-1] >= 0.9 * max_lipschitz  # it presses, and nothing is given away
    attachment.finalize(certify=True)
    assert attachment.network_bound is not None
    assert attachment.network_bound.upper <= max_lipschitz
    assert lipschitz_bounds(model, EXAMPLE).upper <= max_lipschitz


@pytest.mark.parametrize(
    "method", [FastClip(), Gouk(), *METHODS], ids=lambda one: type(one).__name__
)
def test_the_bound_is_proved_at_the_end_whatever_the_method(method: Method) -> None:
    model, attachment, _ = trained(3.0, steps=10, method=method)
    attachment.finalize(certify=True)
    assert lipschitz_bounds(model, EXAMPLE).upper <= 3.0


def test_batch_norms_are_held_as_layers_of_their_own() -> None:
    model, attachment, _ = trained(5.0, steps=30, model=Network(norm=True))
    assert "norm" in attachment.layers
    attachment.finalize(certify=True)
    assert lipschitz_bounds(model, EXAMPLE).upper <= 5.0


def test_bounds_are_equal_at_first_or_as_given() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    example = torch.zeros(1, 4)
    with attach(model, None, example, max_lipschitz=16.0) as attachment:
        assert attachment.max_norms == pytest.approx({"0": 4.0, "2": 4.0})
        assert attachment.max_lipschitz == 16.0
    with attach(
        model, None, example, max_lipschitz=16.0, proportions={"0": 1, "2": 4}
    ) as attachment:
        assert attachment.max_norms == pytest.approx({"0": 2.0, "2": 8.0})


def test_a_layer_that_is_left_out_counts_at_its_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.warns(NormWarning, match=r"'2\.weight' change as the network trains, and are not"):
        attachment = attach(
            model, None, torch.zeros(1, 4), max_lipschitz=16.0, proportions={"0": 1.0}
        )
    norm = dense_norm(model[2], (4,))
    assert attachment.max_norms == pytest.approx({"0": 16 / norm}, rel=1e-3)


def test_frozen_layers_count_at_their_norms_and_get_a_part_when_they_are_freed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attachment = attach(model, optimizer, torch.zeros(1, 4), max_lipschitz=16.0)
    own = dense_norm(model[2], (4,))
    assert attachment.max_norms == pytest.approx({"0": 16 / own}, rel=1e-3)
    model[2].requires_grad_(True)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert math.prod(attachment.max_norms.values()) == pytest.approx(16.0, rel=1e-3)


def test_bounds_move_to_where_they_are_needed() -> None:
    """Of two layers, one is held back by weight decay and gives its part to the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 6, bias=False))
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[2].parameters(), "lr": 0.0},
    ]
    with torch.no_grad():
        model[2].weight.mul_(0.5 / dense_norm(model[2], (6,)))
    optimizer = torch.optim.SGD(groups)
    attachment = attach(model, optimizer, torch.zeros(1, 6), max_lipschitz=4.0)
    for _ in range(401):
        optimizer.zero_grad()
        (-model(torch.randn(16, 6)).norm(dim=1).mean()).backward()
        optimizer.step()
    assert attachment.max_norms["0"] > 2.3 > 1.7 > attachment.max_norms["2"]
    assert dense_norm(model[0], (6,)) * dense_norm(model[2], (6,)) <= 4.0 * 1.02


@pytest.mark.parametrize("at", [99, 130])  # in the middle of a sample of pressures, and after one
def test_a_run_that_goes_on_is_the_same_run(at: int) -> None:
    def run(
        model: nn.Module, optimizer: Any, attachment: Attachment, first: int, last: int
    ) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            optimizer.zero_grad()
            (-model(torch.randn(8, 2, 6, 6)).square().mean()).backward()
            optimizer.step()

    def made() -> tuple[nn.Module, Any, Attachment]:
        torch.manual_seed(0)
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        return model, optimizer, attach(model, optimizer, EXAMPLE, max_lipschitz=2.0)

    model, optimizer, attachment = made()
    run(model, optimizer, attachment, 0, at)
    stored = copy.deepcopy([o.state_dict() for o in (model, optimizer, attachment)])
    run(model, optimizer, attachment, at, 210)
    again, its_optimizer, its_attachment = made()
    for owner, state in zip((again, its_optimizer, its_attachment), stored, strict=True):
        owner.load_state_dict(state)
    run(again, its_optimizer, its_attachment, at, 210)
    assert its_attachment.max_norms == attachment.max_norms
    assert its_attachment.pressures() == attachment.pressures()
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


# --- Refused ---------------------------------------------------------------------------------


def test_both_bounds_at_once() -> None:
    with pytest.raises(ValueError, match="max_norm, or max_lipschitz"):
        attach(Network(), None, EXAMPLE, max_norm=1.0, max_lipschitz=1.0)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_is_none(wrong: float) -> None:
    with pytest.raises(ValueError, match="max_lipschitz"):
        attach(Network(), None, EXAMPLE, max_lipschitz=wrong)


def test_weights_outside_of_layers_are_warned_of() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.register_parameter("last", nn.Parameter(torch.eye(4)))
    model.forward = lambda x: F.linear(model[0](x).relu(), model.last)  # type: ignore
    with pytest.warns(NormWarning, match="'last' change as the network trains, and are not held"):
        attach(model, None, torch.zeros(1, 4), max_lipschitz=1.0).remove()


@pytest.mark.parametrize(
    ("between", "method", "told"),
    [
        (nn.PReLU(), SpectralClip(), r"'1\.weight' change"),
        (nn.BatchNorm1d(8), Parametrize(), r"'1\.weight', '1\.running_var' change.*CenterNorm"),
        (nn.BatchNorm1d(8, affine=False), SpectralClip(), r"'1\.running_var' change.*CenterNorm"),
        (nn.BatchNorm1d(8).requires_grad_(False), SpectralClip(), r"'1\.running_var' change"),
    ],
)
def test_what_moves_and_is_not_held_is_warned_of(
    between: nn.Module, method: Method, told: str
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), between, nn.Linear(8, 3))
    with pytest.warns(NormWarning, match=told):
        attach(model, None, torch.zeros(1, 8), max_lipschitz=9.0, method=method).remove()


@pytest.mark.parametrize("between", [nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False).eval()])
def test_what_is_held_or_rests_is_not_warned_of(
    between: nn.Module, recwarn: pytest.WarningsRecorder
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), between, nn.Linear(8, 3))
    attach(model, None, torch.zeros(1, 8), max_lipschitz=9.0).remove()
    assert not list(recwarn)


@pytest.mark.filterwarnings("ignore:.*are not held")
def test_statistics_are_followed_while_they_settle() -> None:
    """From a variance of 1 to 1e-4: a factor of a hundred, within the first steps."""
    torch.manual_seed(0)
    first, last = nn.Linear(8, 8, bias=False), nn.Linear(8, 3, bias=False)
    model = nn.Sequential(first, nn.BatchNorm1d(8, affine=False), nn.ReLU(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    attachment = attach(model, optimizer, torch.zeros(1, 8), max_lipschitz=5.0)
    for step in range(1, 66):
        optimizer.zero_grad()
        model(0.01 * torch.randn(64, 8)).square().mean().backward()
        optimizer.step()
        variance = model[1].running_var
        if step in (2, 3, 33, 65):  # one step after it was looked at
            gain = float((variance + 1e-5).rsqrt().max())  # type: ignore[operator]
            norm = dense_norm(first, (8,)) * gain * dense_norm(last, (8,))
            assert norm <= 5.0 * 1.25, step
    attachment.remove()


@pytest.mark.filterwarnings("ignore:.*are not held")
def test_a_gain_that_makes_the_bound_unreachable_is_named() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.gain = nn.Linear(4, 4), nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * x + torch.relu(self.dense(x))

    model = Gain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    attach(model, optimizer, torch.zeros(1, 4), max_lipschitz=1.0)
    model.gain.grad = torch.tensor(-2.0)
    with pytest.raises(ValueError, match=r"would be 1\.5, .*nothing holds 'gain'"):
        optimizer.step()


def test_a_decoder_with_the_weight_of_the_encoder_is_held() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(8, 5, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.relu(self.encoder(x)), self.encoder.weight.t())

    torch.manual_seed(0)
    model, example = Tied(), torch.zeros(1, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attachment = attach(model, optimizer, example, max_lipschitz=4.0)
    grow(model, optimizer, 60)
    assert 3.5 <= dense_norm(model.encoder, (8,)) ** 2 <= 4.0 * 1.02
    attachment.finalize(certify=True)
    assert lipschitz_bounds(model, example).upper <= 4.0


def test_proportions_of_layers_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="proportions names"):
        attach(Network(), None, EXAMPLE, max_lipschitz=1.0, proportions={"nothing": 1.0})


def test_a_bound_that_cannot_be_reached_names_the_smallest() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.forward = lambda x: x + model[0](x).relu()  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"its bound would be 1, by what goes around"):
        attach(model, None, torch.zeros(1, 4), max_lipschitz=0.5)


def test_what_has_no_bound_is_named_with_the_remedy() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(8, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.dense(x)
            return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"at attention: .*attention multiplies.* max_norm"):
        attach(Attends(), None, torch.zeros(1, 3, 8), max_lipschitz=1.0)


def test_a_schedule_that_would_raise_the_bound() -> None:
    model = Network()
    with pytest.raises(ValueError, match="at most 1, with max_lipschitz"):
        attach(model, None, EXAMPLE, max_lipschitz=1.0, schedule=lambda step: 1.5)


def test_a_schedule_does_not_pass_for_layers_that_need_less() -> None:
    """A layer that is held at half of its bound is at all of what it may be."""
    torch.manual_seed(0)
    model = dense(8, 8, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attach(
        *(model, optimizer, torch.zeros(1, 8)),
        max_lipschitz=1.0,
        schedule=lambda step: 0.5 if step <= 1000 else 1.0,
    )
    grow(model, optimizer, 1000)
    assert 0.9 * 0.5**3 <= product(model) <= 1.02 * 0.5**3
    grow(model, optimizer, 50)
    assert 0.5 <= product(model) <= 1.02


def test_a_state_of_single_bounds_is_refused_before_anything_has_changed() -> None:
    model = Network()
    with attach(model, None, EXAMPLE, max_norm=1.0) as attachment:
        attachment.step()
        state = attachment.state_dict()
    attachment = attach(Network(), None, EXAMPLE, max_lipschitz=10.0)
    before = copy.deepcopy(attachment.state_dict())
    with pytest.raises(ValueError, match="this one holds the network by max_lipschitz"):
        attachment.load_state_dict(state)
    with pytest.raises(TypeError, match="'allocation' of the state must have numbers by layer"):
        attachment.load_state_dict({**before, "allocation": {"parts": 1}})
    after = attachment.state_dict()
    assert after["steps"] == before["steps"] and after["allocation"] == before["allocation"]
    attachment.load_state_dict(before)


def test_what_would_be_ignored_is_refused() -> None:
    with pytest.raises(ValueError, match="proportions are those of the layers' bounds below"):
        attach(Network(), None, EXAMPLE, proportions={"head": 1.0})
    heads = SpectralClip(compose="heads")
    with pytest.raises(ValueError, match='compose="heads" takes none'):
        attach(Network(), None, EXAMPLE, method=heads, pairs={"stem": "branch"})
    with pytest.raises(ValueError, match=r"proportions names .'norm'., which Gouk leaves alone"):
        attach(
            Network(norm=True),
            None,
            EXAMPLE,
            method=Gouk(batch_norm=False),
            max_lipschitz=10.0,
            proportions={"norm": 1.0},
        )


def dense(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(one, other) for one, other in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


def grow(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps that make every output larger."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = model(torch.randn(16, 8, generator=generator))
        (-(outputs - outputs.roll(1, 0)).abs().mean()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def product(model: nn.Module) -> float:
    """Of the norms of dense layers, by dense decompositions in float64."""
    weights = [part.weight for part in model.modules() if isinstance(part, nn.Linear)]
    return math.prod(float(torch.linalg.matrix_norm(w.detach().double(), 2)) for w in weights)


def test_a_state_of_another_bound_gives_proportions_and_not_bounds() -> None:
    model, example = dense(8, 8, 8, 3), torch.zeros(1, 8)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    with attach(model, optimizer, example, max_lipschitz=50.0) as attachment:
        grow(model, optimizer, 110)
        state = copy.deepcopy(attachment.state_dict())
    assert product(model) > 20
    attachment = attach(model, optimizer, example, max_lipschitz=1.0)
    attachment.load_state_dict(state)
    assert math.prod(attachment.max_norms.values()) == pytest.approx(1.0, rel=0.05)
    grow(model, optimizer, 30)
    assert product(model) <= 1.02


def test_a_state_of_other_frozen_layers_gives_proportions_and_not_bounds() -> None:
    model, example = dense(8, 8, 3), torch.zeros(1, 8)
    model[0].weight.data.mul_(0.01)
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with attach(model, optimizer, example, max_lipschitz=1.0) as attachment:
        state = attachment.state_dict()
        assert attachment.max_norms["2"] > 20
    model[0].weight.requires_grad_(True)
    attachment = attach(model, optimizer, example, max_lipschitz=1.0)
    attachment.load_state_dict(state)
    assert math.prod(attachment.max_norms.values()) == pytest.approx(1.0, rel=0.05)


def test_a_state_of_the_network_is_refused_where_layers_are_held() -> None:
    model, example = dense(8, 8, 3), torch.zeros(1, 8)
    with attach(model, None, example, max_lipschitz=1.0) as attachment:
        state = attachment.state_dict()
    attachment = attach(model, None, example, max_norm=1.0)
    with pytest.raises(ValueError, match="this one holds layers by max_norm"):
        attachment.load_state_dict(state)


def test_nothing_is_held_while_all_is_frozen() -> None:
    model, example = dense(8, 8, 3).requires_grad_(False), torch.zeros(1, 8)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attachment = attach(model, optimizer, example, max_lipschitz=0.5)
    optimizer.step()
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    model.requires_grad_(True)
    grow(model, optimizer, 20)
    assert product(model) <= 0.5 * 1.02
    model[0].weight.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    grow(model, optimizer, 2)
    assert product(model) <= 0.5 * 1.02
    attachment.remove()


def test_a_factor_that_is_called_bias_is_looked_at_again() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return x * (1 + self.bias)

    first, _, last = dense(8, 8, 3)
    model = nn.Sequential(first, nn.ReLU(), Gain(), last)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    attachment = attach(model, optimizer, torch.zeros(1, 8), max_lipschitz=1.0)
    grow(model, optimizer, 100)
    gain = float((1 + model[2].bias.detach()).abs().max())  # type: ignore[operator,union-attr]
    assert gain > 1.5
    assert gain * math.prod(attachment.max_norms.values()) <= 1.03


def test_a_proof_may_be_asked_for_without_chance() -> None:
    convolution = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    model, example = nn.Sequential(convolution, nn.ReLU()), torch.zeros(1, 4, 12, 12)
    attachment = attach(model, None, example, max_lipschitz=1.0)
    attachment.finalize(certify="deterministic")
    assert attachment.network_bound is not None
    assert attachment.network_bound.failure == 0 and attachment.network_bound.upper <= 1


class Switch(nn.Module):
    """A network of another constant far from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dense(x)
        return 100 * y if x.abs().max() > 1 else y


def test_a_network_that_decides_by_its_input_is_warned_of_and_not_proved() -> None:
    model = Switch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(NormWarning, match=r"way through 'the model itself' depends on the input"):
        attachment = attach(model, optimizer, torch.zeros(1, 8), max_lipschitz=1.0)
    with pytest.raises(ValueError, match=r"cannot be proved: the way through"):
        attachment.finalize(certify=True)
    assert not attachment.is_removed
    attachment.finalize()
    assert dense_norm(model.dense, (8,)) <= 1.0


@pytest.mark.filterwarnings("ignore:.*are not held")
def test_weights_that_are_not_finite_are_warned_of_and_end_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.PReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attachment = attach(model, optimizer, torch.zeros(1, 8), max_lipschitz=1.0)
    grow(model, optimizer, 10)
    good = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.warns(NormWarning, match="NaN or infinite"):
        grow(model, optimizer, 100)
    model.load_state_dict(good)
    grow(model, optimizer, 100)
    assert dense_norm(model[0], (8,)) * dense_norm(model[2], (8,)) <= 1.02
    assert attachment.steps == 210


@pytest.mark.filterwarnings("ignore:.*are not held")
@pytest.mark.parametrize("method", [SpectralClip(), Parametrize()])
def test_an_end_that_fails_beforehand_leaves_the_network_held(method: Method) -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope, self.dense = nn.PReLU(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.slope(x) + self.dense(x)

    torch.manual_seed(0)
    model = Slope()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer, torch.zeros(1, 8), method=method, max_lipschitz=2.0)
    with torch.no_grad():
        model.slope.weight.fill_(10.0)
    with pytest.raises(ValueError, match=r"would be 10, .*nothing holds 'slope\.weight'"):
        attachment.finalize(certify=True)
    assert not attachment.is_removed
    with torch.no_grad():
        model.slope.weight.fill_(0.1)
    model.slope.requires_grad_(False)
    grow(model, optimizer, 30)
    # The rules count a slope as at least 1.
    assert dense_norm(model.dense, (8,)) <= 1.02
    attachment.finalize(certify=True)
    assert attachment.is_removed and lipschitz_bounds(model, torch.zeros(1, 8)).upper <= 2.0


def test_a_method_that_has_ended_is_removed_whatever_becomes_of_the_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = dense(8, 4)
    attachment = attach(model, None, torch.zeros(1, 8), method=Parametrize(), max_lipschitz=2.0)
    monkeypatch.setattr(Allocation, "_proof", lambda *_, **__: NetworkBound(0.0, 9.0, 0.0, 9.0))
    with pytest.raises(ValueError, match="is not proved"):
        attachment.finalize(certify=True)
    assert attachment.is_removed


def test_a_wrong_wish_at_the_end_leaves_the_network_held() -> None:
    model, example = dense(8, 8, 3), torch.zeros(1, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    method = Parametrize()
    attachment = attach(model, optimizer, example, max_lipschitz=1.0, method=method)
    with pytest.raises(ValueError, match='certify must be False, True or "deterministic"'):
        attachment.finalize(certify="yes")  # type: ignore[arg-type]
    grow(model, optimizer, 20)
    assert product(model) <= 1.02
