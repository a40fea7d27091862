"""A forward pass under watch: whatever the model is wrapped in, it is left as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from call_graph_cases import SMALL_IMAGES, Model, conv, names, norm, resnet
from cases import train_batch_norm
from model_cases import IMAGES, network
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from untouched import assert_same, disturb, state, surroundings

from spectralclip import attach, audit
from spectralclip._models.layers import find_layers, skipped_layers


class Restless(nn.Module):
    """Changes all it can in a forward pass, whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.spectral = parametrizations.spectral_norm(nn.Linear(4, 4))
        self.old_spectral = nn.utils.spectral_norm(nn.Linear(4, 4))
        self.words = nn.Embedding(5, 4, max_norm=0.1)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.calls = 0
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.count += 1
        self.replaced = self.replaced + 1
        self.cache = x
        self.words(torch.zeros(2, dtype=torch.long))
        x = F.dropout(self.old_spectral(self.spectral(self.norm(self.linear(x)))), 0.5, True)
        if self.fails:
            raise RuntimeError("out of luck")
        return x.mul_(torch.rand(()))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("use", [find_layers, skipped_layers])
def test_model_is_as_it_was(use: Callable[..., Any], fails: bool) -> None:
    model = Restless()
    train_batch_norm(model.norm)
    model.norm.eval()
    model.fails = fails
    model.linear.register_forward_hook(lambda *_: None)
    disturb(model)
    x = torch.ones(3, 4)
    before, outside = state(model), surroundings()
    if fails:
        with pytest.raises(RuntimeError, match="out of luck"):
            use(model, x)
    else:
        use(model, x)
    assert_same(before, state(model))
    assert_same(outside, surroundings())
    assert model.calls == 0
    assert torch.equal(x, torch.ones(3, 4))


def test_model_in_training_is_as_it_was() -> None:
    model = network()
    disturb(model)
    model[1].eval()
    before, outside = state(model), surroundings()
    find_layers(model, IMAGES)
    skipped_layers(model, IMAGES)
    assert_same(before, state(model))
    assert_same(outside, surroundings())
    assert torch.equal(IMAGES, torch.ones(2, 3, 8, 8))


def test_evaluation_semantics() -> None:
    """In training mode batch norm would refuse a batch of one."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    assert list(find_layers(model, torch.ones(1, 3))) == ["0+1"]


def test_input_that_the_model_writes_into_is_as_it_was() -> None:
    x = -torch.ones(2, 3)
    find_layers(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3)), x)
    assert torch.equal(x, -torch.ones(2, 3))


def test_under_inference_mode_and_autocast() -> None:
    model = network()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert list(find_layers(model, IMAGES)) == list(find_layers(network(), IMAGES))


def test_on_the_meta_device() -> None:
    """Shapes need no values."""
    model = network().to("meta")
    assert find_layers(model, IMAGES.to("meta"))["7"].in_shapes == ((64,),)


@pytest.mark.parametrize("wrap", ["compile", "method", "inside", "ddp", "both"])
def test_names_are_those_of_the_bare_model(wrap: str, process_group: None) -> None:
    model = network()
    expected = find_layers(model, IMAGES)
    compiled = partial(torch.compile, backend="eager", fullgraph=True)
    if wrap == "inside":
        whole = nn.Sequential(*model[:3], compiled(model[3]), *model[4:-1], compiled(model[-1]))
    elif wrap == "method":
        whole = model
        whole.compile(backend="eager", fullgraph=True)
    else:
        whole = compiled(model) if wrap == "compile" else DistributedDataParallel(model)
        whole = compiled(whole) if wrap == "both" else whole
    assert find_layers(whole, IMAGES) == expected
    assert skipped_layers(whole, IMAGES) == {}
    assert find_layers(nn.DataParallel(model), IMAGES) == expected


def test_compiled_layers() -> None:
    layers = nn.Linear(4, 4), parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(*(torch.compile(layer, backend="eager") for layer in layers))
    found = find_layers(model, torch.ones(2, 4))
    assert {name: layer.modules for name, layer in found.items()} == {
        "0": (layers[0],),
        "1": (layers[1],),
    }
    assert skipped_layers(model, torch.ones(2, 4)) == {}


def test_models_that_do_not_run_under_watch() -> None:
    """Some of torch refuses to: what can be seen without is used, and said."""

    def run(m: Any, x: Tensor) -> Tensor:
        if torch._C._len_torch_dispatch_stack():
            raise RuntimeError("not under a mode")
        return m.last(m.bn(m.conv(x)))

    model = Model(run, conv=conv(), bn=norm(), last=conv())
    with pytest.warns(UserWarning, match="does not run while .*: not under a mode What reads"):
        assert names(model) == ["conv", "bn", "last"]
    with pytest.warns(UserWarning, match="only `pairs` are composed"):
        assert names(model, pairs=[("conv", "bn")]) == ["conv+bn", "last"]


def test_an_error_of_the_model_is_its_own() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        raise KeyError("its own")

    model = Model(run, conv=conv())
    with pytest.raises(KeyError, match="its own") as failure:
        find_layers(model, SMALL_IMAGES)
    assert failure.value.__context__ is None
    assert not model.conv._forward_hooks and not model.conv._forward_pre_hooks


@pytest.mark.parametrize("compose", ["conv_bn", "chains"])
def test_leaves_the_model_as_it_was(compose: Any) -> None:
    model = resnet()
    disturb(model)
    before, outside = state(model), surroundings()
    find_layers(model, SMALL_IMAGES, compose, pairs=[("0", "1")])
    assert_same(before, state(model))
    assert_same(outside, surroundings())
    assert torch._C._len_torch_dispatch_stack() == 0


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    names(resnet(), compose="chains")
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have notes since Python 3.11")
@pytest.mark.parametrize("call", [find_layers, audit, lambda m, x: attach(m, None, x)])
def test_inputs_that_do_not_fit_are_named(call: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        call(model, torch.zeros(2, 5))
    assert "example_inputs, with tensors of the shapes (2, 5)" in caught.value.__notes__[0]
