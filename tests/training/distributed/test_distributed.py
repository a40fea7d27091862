"""Several processes: the same weights everywhere, shared work, and clear errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import Processes
from sharding import FSDP, SHARDS
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training_cases import layers_of, tower

from oracle import dense_norm
from spectralclip import as_operator
from spectralclip._models.layers import FoundLayer, find_layers
from spectralclip._training.attach import attach
from spectralclip._training.attachment import Attachment
from spectralclip._training.distributed.consensus import Assignment, Report
from spectralclip._training.distributed.layout import group_of
from spectralclip._training.distributed.process_group import ProcessGroup
from spectralclip._training.distributed.sharing import Sharing
from spectralclip._training.method import Method, MethodState
from spectralclip._training.momentum import Momentum
from spectralclip._training.spectral_clip import SpectralClip

BOUND, SHAPE = 0.7, (3, 8, 8)
OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.02),
}


# --- A method with an exact, dense inside, and a memory that matters --------------------------


class Scale(Method):
    """Scales a layer by its norm and by a memory of it, and takes the weight out of momentum."""

    def __init__(self, compose: bool = False, divides: bool = True, breaks: str = "") -> None:
        self.compose, self.division, self.breaks = compose, divides, breaks

    @property
    def composes(self) -> bool:
        return self.compose

    @property
    def divides(self) -> bool:
        return self.division

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return Scaling(self, sharing)


class Scaling(MethodState):
    def __init__(self, method: Scale, sharing: Sharing) -> None:
        self.method, self.sharing, self.num_matvecs = method, sharing, 0
        self.memory = {name: torch.zeros(()) for name in sharing.mine()}
        self.latest: dict[str, float] = {}

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        for name, bound in bounds.items():
            if self.method.breaks == name:
                raise ValueError(f"{name} is broken")
            layer = self.sharing.mine()[name]
            operator = as_operator(list(layer.modules), layer.in_shapes[0], dtype=torch.float64)
            norm = float(torch.linalg.matrix_norm(operator.to_dense(), 2))
            self.num_matvecs += operator.shape[1]
            self.memory[name] = 0.9 * self.memory[name] + 0.1 * norm
            self.latest[name] = norm
            if norm > bound:
                weight = layer.modules[0].weight
                factor = bound / (norm + 0.1 * float(self.memory[name]))
                with torch.no_grad():
                    weight.mul_(factor)
                self.sharing.project_momentum(weight, partial(take_out, weight.detach().clone()))
                self.latest[name] = factor * norm

    def norms(self) -> dict[str, float]:
        return dict(self.latest)

    def layer_states(self) -> dict[str, Any]:
        return {name: {"memory": memory} for name, memory in self.memory.items()}

    def load_layer_states(self, states: Mapping[str, Any]) -> None:
        self.memory |= {n: states[n]["memory"] for n in self.memory if n in states}


def take_out(weight: Tensor, momentum: Momentum) -> None:
    """No step along -weight is left of it, in the metric of the optimizer's own steps."""
    metric = torch.ones_like(weight) if momentum.metric is None else momentum.metric
    share = (momentum.buffer * metric * weight).sum() / (weight * weight * metric).sum()
    momentum.buffer.sub_(weight, alpha=float(share))


METHODS = [Scale(), SpectralClip()]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


# --- Training, alone or together --------------------------------------------------------------


def network(norm: bool = False) -> nn.Sequential:
    """A small network whose first layer has five rows, which two processes cannot halve."""
    torch.manual_seed(1)
    second = nn.Conv2d(5, 8, 3, stride=2, padding=1, padding_mode="circular")
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()),
        nn.Sequential(second, *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )


def wrapped(model: nn.Sequential, kind: str) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        return sharded(model)
    return model


def sharded(model: nn.Sequential, **options: Any) -> nn.Module:
    """In groups of their own: the first block, the second, and all the rest."""
    from torch.distributed.fsdp import fully_shard

    for block in (model[0], model[1], model):
        fully_shard(block, **options)
    return model


class Run:
    """A training that can be stopped and gone on with."""

    def __init__(
        self, kind: str, optimizer: str, method: Method | None = None, norm: bool = False
    ) -> None:
        self.model = wrapped(network(norm), kind)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.attachment = attach(
            self.model,
            self.optimizer,
            torch.zeros(1, *SHAPE),
            method=Scale() if method is None else method,
            max_norm=BOUND,
        )

    @classmethod
    def of(cls, model: nn.Module, optimizer: Any, attachment: Attachment) -> Run:
        run = object.__new__(cls)
        run.model, run.optimizer, run.attachment = model, optimizer, attachment
        return run

    def train(self, first: int, last: int, *, apart: bool = False) -> Run:
        """Steps on random data, the same in every process or different."""
        for step in range(first, last):
            seed = step + (1000 * dist.get_rank() if apart else 0)
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(8, *SHAPE, generator=generator)
            self.optimizer.zero_grad()
            loss = (self.model(x) - x.mean((1, 2, 3))[:, None]).square().mean()
            loss.backward()
            self.optimizer.step()
        return self

    def weights(self) -> dict[str, Tensor]:
        """All that is trained and remembered, whole."""
        found = {name: whole(p) for name, p in bare(self.model).named_parameters()}
        for name, p in bare(self.model).named_parameters():
            state = self.optimizer.state[p]
            buffer = state.get("momentum_buffer", state.get("exp_avg"))
            found[f"momentum of {name}"] = whole(buffer)
        return found


def bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def whole(tensor: Tensor) -> Tensor:
    full = getattr(tensor.detach(), "full_tensor", None)
    return (full() if full is not None else tensor.detach()).clone()


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def true_norms(weights: Mapping[str, Tensor]) -> dict[str, float]:
    model = network()
    model.load_state_dict({k: v for k, v in weights.items() if "momentum" not in k}, strict=False)
    layers = find_layers(model, torch.zeros(1, *SHAPE), False)
    return {n: dense_norm(layer.modules[0], layer.in_shapes[0]) for n, layer in layers.items()}


@pytest.fixture(scope="module")
def pair() -> Iterator[Processes]:
    processes = Processes(2)
    yield processes
    processes.close()


# --- Equal weights ----------------------------------------------------------------------------


def _trained(kind: str, optimizer: str, apart: bool, method: Method) -> Any:
    run = Run(kind, optimizer, method).train(0, 5, apart=apart)
    return run.weights(), run.attachment.norms()


@pytest.mark.sampled(2)
@each_method
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_ranks_end_with_the_same_bits(
    pair: Processes, kind: str, optimizer: str, method: Method
) -> None:
    ends = pair.run(_trained, kind, optimizer, True, method)
    (weights, norms), (other_weights, other_norms) = ends
    assert same(weights, other_weights)
    assert norms == other_norms and list(norms) == ["0.0", "1.0", "3"]
    for name, norm in true_norms(weights).items():
        assert norm <= BOUND * (1 + 1e-5 if isinstance(method, Scale) else 1.02), name


@pytest.mark.sampled(2)
@each_method
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_two_ranks_on_equal_data_do_what_one_does(
    pair: Processes, kind: str, optimizer: str, method: Method
) -> None:
    """Weights, and momentum as it was projected, on shards of which some are uneven."""
    alone = Run("alone", optimizer, method).train(0, 5)
    (weights, norms), _ = pair.run(_trained, kind, optimizer, False, method)
    expected = alone.weights()
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)
    assert norms == pytest.approx(alone.attachment.norms(), abs=1e-6)


# --- Shared work ------------------------------------------------------------------------------


def _work_on_tower(kind: str, method: Method) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    model = tower()
    model = wrapped_dense(model) if kind == "fsdp" else model
    attachment = attach(model, None, torch.zeros(1, 6, 4, 4), method=method, max_norm=1.2)
    attachment.step()
    with FlopCounterMode(display=False) as counter:
        for _ in range(2):
            attachment.step()
    work = [counter.get_total_flops(), attachment._state.num_matvecs]  # type: ignore[union-attr]
    return work, len(attachment._sharing.mine())


@pytest.mark.sampled(2)
@each_method
@pytest.mark.parametrize("kind", ["plain", FSDP])
def test_work_is_shared(pair: Processes, kind: str, method: Method) -> None:
    (work, layers), (other_work, other_layers) = pair.run(_work_on_tower, kind, method)
    assert layers + other_layers == 20
    for one, other in zip(work, other_work, strict=True):
        assert 0 < max(one, other) <= 0.65 * (one + other)


def _messages(frozen: bool) -> list[list[int]]:
    """How many tensors are sent by each rank at each of three steps."""
    model = network()
    attachment = attach(
        model, None, torch.zeros(1, *SHAPE), method=Scale(), max_norm=1e6 if frozen else BOUND
    )
    sent: list[list[int]] = []
    original = ProcessGroup.broadcast

    def spy(group: ProcessGroup, tensors: Mapping[int, Any]) -> None:
        sent.append(sorted(len(part) for part in tensors.values()))
        original(group, tensors)

    ProcessGroup.broadcast = spy  # type: ignore[method-assign]
    try:
        for _ in range(2):
            attachment.step()
        with torch.no_grad():
            model[3].weight.mul_(3.0)
        attachment.step()
    finally:
        ProcessGroup.broadcast = original  # type: ignore[method-assign]
    return sent


def test_only_what_has_changed_is_sent(pair: Processes) -> None:
    sent, other_sent = pair.run(_messages, True)
    assert sent == other_sent == [[], [], []]
    sent, other_sent = pair.run(_messages, False)
    assert sent == other_sent
    assert sum(sent[0]) > 0 and sent[1:] == [[], [1]]


# --- Resuming ---------------------------------------------------------------------------------


def _state(run: Run) -> dict[str, Any]:
    """A checkpoint of plain and whole tensors, the same whatever the processes."""
    optimizer = run.optimizer.state_dict()
    optimizer["state"] = {
        number: {key: whole(value) for key, value in kept.items()}
        for number, kept in optimizer["state"].items()
    }
    return {
        "model": {name: whole(p) for name, p in bare(run.model).state_dict().items()},
        "optimizer": optimizer,
        "attachment": run.attachment.state_dict(),
    }


def _load(run: Run, state: dict[str, Any]) -> Run:
    from torch.distributed.tensor import DTensor, distribute_tensor

    def placed(value: Tensor, like: Tensor) -> Tensor:
        if isinstance(like, DTensor) and value.shape == like.shape:
            return distribute_tensor(value, like.device_mesh, like.placements)
        return value.clone()

    parameters = list(bare(run.model).parameters())
    own = bare(run.model).state_dict()
    bare(run.model).load_state_dict({n: placed(v, own[n]) for n, v in state["model"].items()})
    remembered = {
        number: {key: placed(value, parameters[number]) for key, value in kept.items()}
        for number, kept in state["optimizer"]["state"].items()
    }
    run.optimizer.load_state_dict({**state["optimizer"], "state": remembered})
    run.attachment.load_state_dict(state["attachment"])
    return run


def _halfway(kind: str, method: Method) -> Any:
    run = Run(kind, "adamw", method).train(0, 3)
    state = _state(run)
    straight = run.train(3, 6)
    resumed = _load(Run(kind, "adamw", method), state).train(3, 6)
    ends = [r.weights() for r in (straight, resumed)]
    return state, *ends, [r.attachment.norms() for r in (straight, resumed)]


@each_method
@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_resuming_is_exact(pair: Processes, kind: str, method: Method) -> None:
    (state, straight, resumed, norms), _ = pair.run(_halfway, kind, method)
    assert same(straight, resumed) and norms[0] == norms[1]
    assert list(state["attachment"]["layers"]) == ["0.0", "1.0", "3"]


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_states_are_whole_and_matter(pair: Processes, kind: str) -> None:
    (state, straight, *_), (other_state, *_) = pair.run(_halfway, kind, Scale())
    memories, others = (
        {name: kept["memory"] for name, kept in s["attachment"]["layers"].items()}
        for s in (state, other_state)
    )
    assert same(memories, others) and all(memory > 0 for memory in memories.values())
    forgetful = dict(state["attachment"], layers={})
    changed, _ = pair.run(_resumed, kind, {**state, "attachment": forgetful}, Scale())
    assert not same(straight, changed)


def _resumed(kind: str, state: dict[str, Any], method: Method) -> dict[str, Tensor]:
    return _load(Run(kind, "adamw", method), state).train(3, 6).weights()


@SHARDS
@each_method
def test_one_process_goes_on_where_two_were(pair: Processes, method: Method) -> None:
    (state, straight, *_), _ = pair.run(_halfway, "fsdp", method)
    resumed = _load(Run("alone", "adamw", method), state).train(3, 6).weights()
    for name, value in straight.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-6)


@each_method
def test_two_processes_go_on_where_one_was(pair: Processes, method: Method) -> None:
    run = Run("alone", "adamw", method).train(0, 3)
    resumed, other = pair.run(_resumed, "ddp", _state(run), method)
    assert same(resumed, other)
    for name, value in run.train(3, 6).weights().items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-6)


# --- Disagreement -----------------------------------------------------------------------------


def _error(run: Any, *args: Any) -> str:
    """What it says when it fails, in each process."""
    try:
        run(*args)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _attach_apart(kind: str, what: str) -> str:
    rank = dist.get_rank()
    model = network()
    if what == "shapes" and rank:
        model[3] = nn.Linear(8 * 16, 11)
    elif what == "layers" and rank:
        model.append(nn.Linear(10, 10))
    elif what == "frozen" and rank:
        model[3].weight.requires_grad_(False)
    elif what == "weights" and rank:
        with torch.no_grad():
            model[1][0].weight[0, 0, 0, 0] += 1e-6
    model = wrapped(model, "fsdp") if kind == "fsdp" else model
    return _error(
        lambda: attach(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.zeros(1, *SHAPE),
            method=Scale(breaks="here" if what == "settings" and rank else ""),
            max_norm={"0.0": 1.0, "3": 1.0 + 0.5 * (what == "bounds") * rank}
            if what != "layers"
            else 1.0,
            seed=rank if what == "seed" else 0,
        )
    )


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("bounds", r"on the bound of layer '3': rank 0 has 1.0, rank 1 has 1.5"),
        ("seed", "on the seed: rank 0 has 0, rank 1 has 1"),
        ("settings", "on the method: .*'breaks': ''.*'breaks': 'here'"),
        ("shapes", "on the shapes of the weights of layer '3': .*10, 128.*11, 128"),
        ("layers", "on the layers: .*'4'"),
        ("frozen", "on the training of layer '3': rank 0 has True, rank 1 has False"),
    ],
)
def test_attaching_different_things_is_refused(pair: Processes, what: str, message: str) -> None:
    for error in pair.run(_attach_apart, "plain", what):
        assert error.startswith("DisagreementError")
        assert re.search(message, error), error


@SHARDS
def test_sharded_models_are_compared_too(pair: Processes) -> None:
    for error in pair.run(_attach_apart, "fsdp", "bounds"):
        assert "on the bound of layer '3': rank 0 has 1.0, rank 1 has 1.5" in error


def test_replicas_that_differ_at_the_start_are_refused(pair: Processes) -> None:
    # Of the layers that are taken care of, none differs.
    assert pair.run(_attach_apart, "plain", "weights") == ["no error"] * 2
    for error in pair.run(_diverged, 0):
        assert "At attach() the weights of layer '1.0' on rank 1 are not those on rank 0" in error


def _diverged(step: int) -> str:
    model = network()

    def diverge() -> None:
        with torch.no_grad():
            model[1][0].weight[0, 0, 0, 0] += 1e-6 * dist.get_rank()

    def go() -> None:
        if step == 0:
            diverge()
        attachment = attach(model, None, torch.zeros(1, *SHAPE), method=Scale(), max_norm=BOUND)
        for number in range(1, 103):
            if number == step:
                diverge()
            # The others' work would hide it.
            attachment._state.after_step = lambda step, bounds: None  # type: ignore[union-attr]
            attachment.step()

    return _error(go)


@pytest.mark.parametrize("step", [1, 50])
def test_replicas_that_come_apart_are_found(pair: Processes, step: int) -> None:
    for error in pair.run(_diverged, step):
        assert "the weights of layer '1.0' on rank 1 are not those on rank 0" in error


def _elsewhere(kind: str) -> str:
    run = Run(kind, "sgd").train(0, 1)
    attachment = run.attachment
    return _error(attachment.step if dist.get_rank() else attachment.state_dict)


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_ranks_at_different_things_do_not_wait_forever(pair: Processes, kind: str) -> None:
    for error in pair.run(_elsewhere, kind):
        assert "rank 0 at state_dict() " in error and "rank 1 at " in error
        assert "step" in error and "equally often" in error


def _absent() -> str:
    group = dist.new_group(timeout=timedelta(seconds=2))
    layers = layers_of(network(), SHAPE)
    assignment = Assignment(
        ProcessGroup(group, torch.device("cpu")), layers, dict.fromkeys(layers, 1.0)
    )
    return _error(assignment.reach_consensus, Report("step 7")) if dist.get_rank() == 0 else ""


def test_a_rank_that_does_not_come_is_missed(pair: Processes) -> None:
    error, _ = pair.run(_absent)
    assert "DisagreementError: At step 7, rank 0 did not hear from all others" in error
    assert "equally often" in error


def _broken(kind: str) -> Any:
    run = Run(kind, "sgd", Scale(breaks="3"))
    errors = [_error(run.train, 0, 1), _error(run.attachment.step)]
    return [*errors, run.weights()]


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_all_hear_of_a_failure_and_have_equal_weights(pair: Processes, kind: str) -> None:
    *errors, weights = zip(*pair.run(_broken, kind), strict=True)
    for said in errors:
        assert "ValueError: 3 is broken" in said
        (other,) = [text for text in said if text != "ValueError: 3 is broken"]
        assert re.fullmatch(r"RuntimeError: Rank [01] failed at .*: 3 is broken", other)
    assert same(*weights)


def _unfrozen_apart() -> str:
    run = Run("fsdp", "sgd").train(0, 1)
    run.model[3].weight.requires_grad_(dist.get_rank() == 0)
    return _error(run.attachment.step)


@SHARDS
def test_layers_frozen_on_one_rank_alone_are_refused(pair: Processes) -> None:
    for error in pair.run(_unfrozen_apart):
        assert "the requires_grad flags of layer '3' on rank 1 are not those on rank 0" in error


# --- What is not supported --------------------------------------------------------------------


def _refused(what: str) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    mesh, method = init_device_mesh("cpu", (2,)), Scale()
    if what == "tensor parallel":
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    elif what == "flat":
        flat = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        model = nn.Sequential(flat, nn.Linear(8, 8))
    elif what == "does not divide":
        model = wrapped_dense(model)
        method = Scale(divides=False)
    return _error(lambda: attach(model, None, torch.zeros(1, 8), method=method))


def wrapped_dense(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("tensor parallel", "tensor parallel models are not supported"),
        ("flat", "FullyShardedDataParallel, whose weights .*fully_shard instead"),
        pytest.param(
            *("does not divide", "every layer in every process.* DistributedDataParallel"),
            marks=SHARDS,
        ),
    ],
)
def test_unsupported_models_are_refused(pair: Processes, what: str, message: str) -> None:
    for error in pair.run(_refused, what):
        assert error.startswith("ValueError") and re.search(message, error), error


@pytest.fixture(scope="module")
def four() -> Iterator[Processes]:
    processes = Processes(4)
    yield processes
    processes.close()


def _tensor_parallel_inside() -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(8, 8))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return _error(group_of, model, {"0": FoundLayer("0", (model[0],), ((8,),), (), 1)})


@pytest.mark.slow
def test_tensor_parallel_placements_are_refused(four: Processes) -> None:
    for error in four.run(_tensor_parallel_inside):
        assert re.search("ValueError: 'weight' of layer '0' is placed as .*Shard", error), error
        assert "tensor parallel placements are not" in error


# --- Sharded weights --------------------------------------------------------------------------


def _on_mesh(shape: tuple[int, ...]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    names = ("replicas", "shards")[-len(shape) :]
    model = sharded(network(), mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = attach(model, optimizer, torch.zeros(1, *SHAPE), method=Scale(), max_norm=BOUND)
    run = Run.of(model, optimizer, attachment).train(0, 4)
    return run.weights()


@SHARDS
@pytest.mark.parametrize("shape", [(1, 2), (2, 1)])
def test_meshes_with_replicas(pair: Processes, shape: tuple[int, ...]) -> None:
    weights, other = pair.run(_on_mesh, shape)
    assert same(weights, other)
    for name, value in Run("alone", "sgd").train(0, 4).weights().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2), (4,)])
def test_four_processes(four: Processes, shape: tuple[int, ...]) -> None:
    weights, *others = four.run(_on_mesh, shape)
    assert all(same(weights, other) for other in others)
    for name, value in Run("alone", "sgd").train(0, 4).weights().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


def _held() -> Any:
    """What a process holds beside its shards."""
    model = wrapped(network(), "fsdp")
    mine = attach(model, None, torch.zeros(1, *SHAPE), method=Scale())._sharing.mine()
    return {
        name: [tuple(p.shape) for p in layer.modules[0].parameters()]
        for name, layer in mine.items()
    }, [type(p).__name__ for p in model.parameters()]


@SHARDS
def test_no_process_holds_the_whole_model(pair: Processes) -> None:
    (held, kinds), (other_held, _) = pair.run(_held)
    assert not held.keys() & other_held.keys()
    together = {**held, **other_held}
    expected = {
        n: [tuple(p.shape) for p in layer.modules[0].parameters()]
        for n, layer in layers_of(network(), SHAPE).items()
    }
    assert together == expected
    assert set(kinds) == {"DTensor"}  # the model is sharded as it was


def _frozen_and_thawed(kind: str) -> Any:
    run = Run(kind, "sgd")
    last = bare(run.model)[3]
    last.weight.requires_grad_(False)
    last.bias.requires_grad_(False)
    before = whole(last.weight)
    norms = run.train(0, 2).attachment.norms()
    unmoved = torch.equal(whole(last.weight), before)
    last.weight.requires_grad_(True)
    with torch.no_grad():
        last.weight.mul_(5.0)
    run.attachment.step()
    return norms, unmoved, run.attachment.norms(), whole(last.weight)


@pytest.mark.parametrize("kind", ["plain", FSDP])
def test_frozen_layers_stay_until_they_are_not(pair: Processes, kind: str) -> None:
    for norms, unmoved, later, weight in pair.run(_frozen_and_thawed, kind):
        assert unmoved and "3" not in norms
        assert later["3"] == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=1e-5)


def _with_little(kind: str) -> Any:
    """One layer for two processes, and tied ones, which one process has to look after."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    if kind == "fsdp":
        wrapped_dense(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    attachment = attach(model, optimizer, torch.zeros(1, 6), method=Scale(), max_norm=0.3)
    optimizer.zero_grad()
    model(torch.ones(4, 6)).sum().backward()
    optimizer.step()
    return len(attachment._sharing.mine()), attachment.norms(), whole(model[0].weight)


@pytest.mark.parametrize("kind", ["plain", FSDP])
def test_a_process_may_have_nothing_to_do(pair: Processes, kind: str) -> None:
    (mine, norms, weight), (other_mine, other_norms, other_weight) = pair.run(_with_little, kind)
    assert sorted([mine, other_mine]) == [0, 2]
    assert norms == other_norms and torch.equal(weight, other_weight)
    assert torch.linalg.matrix_norm(weight, 2) <= 0.3 * (1 + 1e-5)


class Diagonal(nn.Module):
    """An affine layer of no known type."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 3.0, 10))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def _each_by_itself(kind: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = network(norm=True).append(nn.Sequential(Diagonal(), nn.ReLU(), Diagonal()))
    if kind == "fsdp":
        for layer in (model[0][0], *model[1][:2], model[4][0], model):
            fully_shard(layer)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = attach(
        model, optimizer, torch.zeros(1, *SHAPE), method=Scale(compose=True), max_norm=BOUND
    )
    run = Run.of(model, optimizer, attachment).train(0, 3)
    return run.weights(), attachment.norms()


@SHARDS
def test_layers_that_are_sharded_one_by_one(pair: Processes) -> None:
    """Their classes and hooks are those of `fully_shard`."""
    (weights, norms), (other_weights, other_norms) = pair.run(_each_by_itself, "fsdp")
    assert same(weights, other_weights) and norms == other_norms
    expected, expected_norms = _each_by_itself("alone")
    assert list(norms) == list(expected_norms) == ["0.0", "1.0+1.1", "3", "4.0", "4.2"]
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


# --- Running statistics -----------------------------------------------------------------------


def _with_statistics(kind: str) -> Any:
    run = Run(kind, "sgd", Scale(compose=True), norm=True).train(0, 2, apart=True)
    block, rank = bare(run.model)[1], dist.get_rank()
    assert ("1.0+1.1" in run.attachment._sharing.mine()) == (rank == 1)
    with torch.no_grad():
        block[1].running_var.fill_(0.01 if rank == 0 else 100.0)
    before, held = block[1].running_var.clone(), block[1].running_var
    run.attachment.step()
    untouched = block[1].running_var is held and torch.equal(held, before)
    return untouched, run.attachment.norms()["1.0+1.1"], [whole(p) for p in block.parameters()]


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_statistics_of_the_first_rank_count(pair: Processes, kind: str) -> None:
    for untouched, norm, (weight, bias, gamma, beta) in pair.run(_with_statistics, kind):
        assert untouched
        block = network(norm=True)[1][:2]
        values = {"0.weight": weight, "0.bias": bias, "1.weight": gamma, "1.bias": beta}
        block.load_state_dict(values, strict=False)
        block[1].running_var.fill_(0.01)
        true = dense_norm([block[0], block[1]], (5, 8, 8))
        assert norm == pytest.approx(true, rel=1e-4)
        assert true <= BOUND * (1 + 1e-5)


def _composed(kind: str) -> Any:
    run = Run(kind, "sgd", SpectralClip(compose="conv_bn"), norm=True).train(0, 4)
    return run.weights(), run.attachment.norms()


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_compositions_are_kept_together(pair: Processes, kind: str) -> None:
    (weights, norms), (other_weights, other_norms) = pair.run(_composed, kind)
    assert same(weights, other_weights) and norms == other_norms
    expected, expected_norms = _composed("alone")
    assert norms == pytest.approx(expected_norms, abs=1e-5)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)


# --- The end ----------------------------------------------------------------------------------


def _finalized(kind: str) -> Any:
    run = Run(kind, "sgd").train(0, 2)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(2.0)
        x = torch.ones(2, *SHAPE)
        run.model(x)  # after which a sharded model's root has whole weights at hand
    results = run.attachment.finalize()
    weights = run.weights()
    plain = network()
    plain.load_state_dict({k: v for k, v in weights.items() if "momentum" not in k})
    with torch.no_grad():
        seen = torch.allclose(run.model(x), plain(x), atol=1e-6)
    return results, weights, seen


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_finalize_clips_everywhere(pair: Processes, kind: str) -> None:
    (results, weights, seen), (other_results, other_weights, _) = pair.run(_finalized, kind)
    assert same(weights, other_weights) and results == other_results
    assert seen  # the next forward pass uses the clipped weights
    assert list(results) == ["0.0", "1.0", "3"] and any(r.distance > 0 for r in results.values())
    for name, norm in true_norms(weights).items():
        assert norm <= 1.001 * BOUND, name


# --- The example ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options", [[], pytest.param(["--shard"], marks=SHARDS)], ids=["replicated", "sharded"]
)
def test_example_runs_on_two_processes(options: list[str]) -> None:
    root = Path(__file__).resolve().parents[3]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [str(root / "examples" / "train_distributed.py"), "--steps=12", *options]
    done = subprocess.run(
        launch + script,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "every rank has the same weights" in done.stdout
    assert done.stdout.count("loss") == done.stdout.count("largest norm") > 0
