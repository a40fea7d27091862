"""Training by several processes: the same weights everywhere, and exact after a resume."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_cases import (
    BOUND,
    OPTIMIZERS,
    SHAPE,
    Run,
    Scale,
    bare,
    each_method,
    error_of,
    network,
    same,
    true_norms,
    whole,
)
from processes import Processes
from sharding import FSDP, SHARDS
from torch import Tensor

from spectralclip._training.method import Method
from spectralclip._training.spectral_clip import SpectralClip


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
    # One process looks again when it is asked. Several tell each other what the step has seen.
    tolerance = 1e-6 if isinstance(method, Scale) else 0.01 * BOUND
    assert norms == pytest.approx(alone.attachment.norms(), abs=tolerance)


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


def _broken(kind: str) -> Any:
    run = Run(kind, "sgd", Scale(breaks="3"))
    errors = [error_of(run.train, 0, 1), error_of(run.attachment.step)]
    return [*errors, run.weights()]


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_all_hear_of_a_failure_and_have_equal_weights(pair: Processes, kind: str) -> None:
    *errors, weights = zip(*pair.run(_broken, kind), strict=True)
    for said in errors:
        assert "ValueError: 3 is broken" in said
        (other,) = [text for text in said if text != "ValueError: 3 is broken"]
        assert re.fullmatch(r"RuntimeError: Rank [01] failed at .*: 3 is broken", other)
    assert same(*weights)


def _composed(kind: str) -> Any:
    run = Run(kind, "sgd", SpectralClip(compose="conv_bn"), norm=True).train(0, 4)
    return run.weights(), run.attachment.norms()


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_compositions_are_kept_together(pair: Processes, kind: str) -> None:
    (weights, norms), (other_weights, other_norms) = pair.run(_composed, kind)
    assert same(weights, other_weights) and norms == other_norms
    expected, expected_norms = _composed("alone")
    assert norms == pytest.approx(expected_norms, abs=0.02 * BOUND)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)


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


def _held_as_one(kind: str, steps: int) -> Any:
    """A network trained under a bound of its own, and its end."""
    run = Run(kind, "sgd", SpectralClip(), max_lipschitz=2.0).train(0, steps, apart=True)
    bounds = dict(run.attachment.max_norms)
    run.attachment.finalize(certify=True)
    assert run.attachment.network_bound is not None
    return run.weights(), bounds, run.attachment.network_bound.upper


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_one_bound_for_the_network_is_the_same_for_all_ranks(pair: Processes, kind: str) -> None:
    """Past the step at which bounds move."""
    (weights, bounds, proved), (other_weights, other_bounds, other_proved) = pair.run(
        _held_as_one, kind, 101
    )
    assert same(weights, other_weights)
    assert bounds == other_bounds
    assert proved == other_proved <= 2.0
