"""From batch norms to norms under a bound, and back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectralclip.nn import CenterNorm, ScalarBatchNorm, replace_batch_norms_, to_batch_norms_


class Network(nn.Module):
    """With a norm of each kind; one of them is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6, eps=1e-3))
        self.twice = nn.BatchNorm2d(6, momentum=None)
        self.same = self.twice
        self.volume = nn.BatchNorm3d(6, affine=False)
        self.synced = nn.SyncBatchNorm(6)
        self.flat = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.same(torch.relu(self.twice(self.stem(x))))
        return self.flat(self.synced(self.volume(x[:, :, None])[:, :, 0]).flatten(2))


NAMES = ["stem.1", "twice", "volume", "synced", "flat"]


def trained() -> Network:
    """Its statistics and parameters are no longer where they begin."""
    model = Network()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.exponential_()
                module.num_batches_tracked.fill_(5)
                for parameter in module.parameters():
                    parameter.normal_()
    model.volume.running_var.fill_(0.3)  # without weights, variances have to be alike
    return model.eval()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scalar_norm_computes_the_same_there_and_back(dtype: torch.dtype) -> None:
    model = trained().to(dtype)
    x = torch.randn(3, 2, 8, 8, dtype=dtype)
    expected, keys = model(x), list(model.state_dict())
    assert replace_batch_norms_(model) == NAMES
    assert isinstance(model.twice, ScalarBatchNorm) and model.twice is model.same
    for module in model.modules():
        if isinstance(module, ScalarBatchNorm):
            assert torch.equal(module.running_var, module.running_var[:1].expand(6))
    assert [model.get_submodule(name).dims for name in NAMES] == [2, 2, 3, None, 1]
    torch.testing.assert_close(model(x), expected)
    assert replace_batch_norms_(model) == []
    assert to_batch_norms_(model, dims=2) == NAMES
    kinds = [type(model.get_submodule(name)) for name in NAMES]
    one, two, three = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
    assert kinds == [two, two, three, two, one]
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == keys
    assert model.stem[1].eps == 1e-3 and model.twice.momentum is None
    fresh = Network().to(dtype)
    assert [set(vars(model.get_submodule(n))) for n in ("stem.1", "flat")] == [
        set(vars(fresh.get_submodule(n))) for n in ("stem.1", "flat")
    ]


def test_a_center_norm_keeps_means_and_biases() -> None:
    model = trained()
    before = copy.deepcopy(model)
    assert replace_batch_norms_(model, CenterNorm) == NAMES
    x = torch.randn(3, 6, 8, 8)
    old, new = before.stem[1], model.stem[1]
    assert isinstance(new, CenterNorm) and list(new.state_dict()) == [
        *("bias", "running_mean", "num_batches_tracked")
    ]
    wide = (1, 6, 1, 1)
    torch.testing.assert_close(new(x), x - old.running_mean.view(wide) + old.bias.view(wide))
    assert model.volume.bias is None and new.num_batches_tracked == 5
    fresh = CenterNorm(6, dims=2)
    assert set(vars(new)) == set(vars(fresh)) and repr(new) == repr(fresh)


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_center_norm_is_a_batch_norm_in_evaluation(dtype: torch.dtype, eps: float | None) -> None:
    model = trained().to(dtype)
    keys = list(model.state_dict())
    replace_batch_norms_(model, CenterNorm)
    x = torch.randn(3, 2, 8, 8, dtype=dtype)
    expected = model(x)
    to_batch_norms_(model, dims=2, eps=eps)
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == keys
    # The state alone has to do, in a network that was made elsewhere.
    elsewhere = Network().to(dtype).eval()
    for name in NAMES:
        elsewhere.get_submodule(name).eps = 1e-5 if eps is None else eps
    elsewhere.load_state_dict(model.state_dict())
    torch.testing.assert_close(elsewhere(x), expected)
    model.train()(x).sum().backward()


def test_an_export_makes_up_for_another_eps() -> None:
    norm = nn.Sequential(ScalarBatchNorm(6, eps=0.1, dims=2)).eval()
    norm[0].running_var.fill_(0.5)
    x = torch.randn(2, 6, 3, 3)
    expected = norm(x)
    with pytest.raises(ValueError, match=r"'0', ScalarBatchNorm\(6.*cannot have eps=0.7"):
        to_batch_norms_(norm, eps=0.7)
    with pytest.raises(ValueError, match="cannot have eps=-1"):
        to_batch_norms_(norm, eps=-1.0)
    assert to_batch_norms_(norm, eps=1e-5) == ["0"]
    assert type(norm[0]) is nn.BatchNorm2d and norm[0].eps == 1e-5
    torch.testing.assert_close(norm(x), expected)


def test_averaging_and_exporting_commute() -> None:
    models = [nn.Sequential(ScalarBatchNorm(6, dims=1)) for _ in range(2)]
    for scale, model in enumerate(models, 1):
        model(scale * torch.randn(20, 6) * torch.rand(6))

    def average(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: (states[0][name] + states[1][name]) / 2 for name in states[0]}

    mean = copy.deepcopy(models[0])
    mean.load_state_dict(average([model.state_dict() for model in models]))
    for model in (*models, mean):
        to_batch_norms_(model)
    expected = average([model.state_dict() for model in models])
    torch.testing.assert_close(dict(mean.state_dict()), expected, check_dtype=False)


@pytest.mark.parametrize("norm", [ScalarBatchNorm, CenterNorm])
def test_what_an_optimizer_and_hooks_hold_stays(norm: Any) -> None:
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)).to(torch.bfloat16)
    model[1].bias.requires_grad_(False)
    model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[type] = []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(type(module)))
    held = model[1], model[1].bias
    replace_batch_norms_(model, norm)
    assert model[1] is held[0] and model[1].bias is held[1]
    assert not model[1].training and model[0].training
    assert not model[1].bias.requires_grad and model[1].bias.dtype == torch.bfloat16
    assert any(one is model[1].bias for one in optimizer.param_groups[0]["params"])
    model(torch.zeros(1, 2, 4, 4, dtype=torch.bfloat16))
    assert seen == [norm]


def test_a_model_that_is_a_norm_itself() -> None:
    model: Any = nn.BatchNorm1d(3)
    assert replace_batch_norms_(model, CenterNorm) == [""]
    assert isinstance(model, CenterNorm)
    assert to_batch_norms_(model) == [""] and type(model) is nn.BatchNorm1d


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("norm", [ScalarBatchNorm, CenterNorm])
def test_synchronized_norms_stay_so(norm: Any, sync: bool) -> None:
    model = Network()
    model.synced.process_group = marker = object()
    replace_batch_norms_(model, norm, sync=sync)
    assert model.synced.sync and model.synced.process_group is marker
    assert model.flat.sync == sync and model.flat.process_group is None


class Activated(nn.BatchNorm2d):
    """As in some libraries of models."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.relu(super().forward(input))


def shared_weight() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("culprit", "told"),
    [
        (nn.LazyBatchNorm2d, r"'last\.0'.*is lazy.*run the model once"),
        (lambda: nn.BatchNorm2d(3, track_running_stats=False), "has no running statistics"),
        (lambda: Activated(3), r"Activated\(3.*class of its own, expected one of BatchNorm1d"),
        (shared_weight, r"'last\.0\.0' and 'last\.0\.1' share a weight"),
    ],
)
def test_what_cannot_be_replaced_is_told_before_anything_has_changed(
    culprit: Any, told: str
) -> None:
    model = trained()
    model.last = nn.Sequential(culprit())
    kinds = [type(module) for module in model.modules()]
    before = state_of(model.stem)
    with pytest.raises(ValueError, match=told):
        replace_batch_norms_(model)
    assert [type(module) for module in model.modules()] == kinds
    torch.testing.assert_close(state_of(model.stem), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [ScalarBatchNorm, CenterNorm])
def test_what_cannot_be_exported_is_told_before_anything_has_changed(kind: Any) -> None:
    model = nn.Sequential(kind(3, dims=2), kind(3))
    with pytest.raises(ValueError, match=r"'1', .*does not say how many axes.*give dims"):
        to_batch_norms_(model)
    with pytest.raises(ValueError, match="dims must be 1, 2 or 3"):
        to_batch_norms_(model, dims=0)
    assert [type(module) for module in model] == [kind, kind]
    without = nn.Sequential(kind(3, dims=2), kind(3, track_running_stats=False, dims=1))
    with pytest.raises(ValueError, match=r"'1', .*no running statistics"):
        to_batch_norms_(without)
    assert [type(module) for module in without] == [kind, kind]


@pytest.mark.parametrize("norm", ["scalar", nn.BatchNorm2d, None])
def test_only_norms_of_this_room_are_put_in(norm: Any) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    with pytest.raises(TypeError, match="norm must be ScalarBatchNorm or CenterNorm"):
        replace_batch_norms_(model, norm)
    assert type(model[0]) is nn.BatchNorm1d
