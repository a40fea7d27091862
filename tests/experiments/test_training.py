"""The training loop: what it computes, what it measures, and that a killed run ends the same."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("scipy", reason="the study measures norms by SciPy")

import spectralclip
from experiments import methods
from experiments.data import load, subset
from experiments.engine import sources
from experiments.experiment import Context
from experiments.measuring.norms import layers_to_measure, true_norms
from experiments.models import build
from experiments.training import (
    TrainConfig,
    TrainingDiverged,
    batches,
    checkpoint,
    recipe,
    train,
)
from experiments.training.board import VARIABLE
from experiments.training.process_group import ProcessGroup
from spectralclip import methods as library

ROOT = Path(__file__).parents[2]
BATCHES, EPOCHS = 3, 3
CONFIG: dict[str, Any] = {
    "label": "for readers",
    "dataset": "digits",
    "model": "small",
    "width": 3,
    "setting": 3,
    "batch_norm": True,
    "epochs": EPOCHS,
    "train_images": 48,
    "test_images": 40,
    "batch": 16,
    "lr": 0.1,
    "lr_step": 2,
    "augment": True,
    "seed": 5,
    "attacks": {
        "pgd": {"eps": 0.1, "steps": 3, "images": 20},
        "cw": {"confidence": 0.1, "iterations": 3, "initial_const": 0.1, "images": 10, "lr": 0.01},
    },
    "measure": "compositions",
}
ADAM = {"optimizer": "adam", "lr": 2e-3, "augment": False}
# Those with a memory of their own, those that parametrize, a penalty, and two at once; their
# periods are short enough for rounds to happen on both sides of where a run is cut.
RESUMED = {
    "none": {},
    "miyato": {},
    "miyato+bn": ADAM,
    "gouk+bn": {},
    "farnia": {},
    "senderovich:every=2": {},
    "delattre": {},
    "fast_clip:every=2": {},
    "fast_clip_concat:every=2,concat_every=3": {},
    "spectral_clip": {"max_norm": 0.5},
    "spectral_clip_conv_bn": ADAM,
    "parametrize:check_every=4": {"max_norm": 0.5},
    "lot": {},
}
# These do what others of the list do.
ALIKE = ("miyato+bn", "gouk+bn", "farnia", "fast_clip:every=2", "spectral_clip_conv_bn")


class Killed(BaseException):
    """As sudden as Ctrl-C."""


def killer(call: int) -> Callable[[float, str], None]:
    """Progress that is cut off at its n-th report."""
    reports = []

    def say(share: float, words: str) -> None:
        reports.append(share)
        if len(reports) == call:
            raise Killed

    return say


def begun(folder: Path, **changes: Any) -> dict[str, Any]:
    """One call of `train`; `kill` ends it at a report of progress."""
    say = killer(changes.pop("kill", 0))
    context = Context(data=None, scratch=folder, threads=1, say=say)
    return train({**CONFIG, **changes}, context)


def weights(folder: Path) -> list[tuple[str, torch.Tensor]]:
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    return sorted(state.items())


def text(outcome: dict[str, Any]) -> str:
    return json.dumps(outcome["result"], allow_nan=False, sort_keys=True)


# --- Killed and resumed ---------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in RESUMED],
)
def test_a_killed_run_ends_as_an_unbroken_one(method: str, tmp_path: Path) -> None:
    changes = {"method": method, **RESUMED[method]}
    whole = begun(tmp_path / "whole", **changes)
    # In the first epoch, in the middle of the second, right after it, and in an attack; the
    # counts begin again with each call.
    for kill in (2, BATCHES + 2, BATCHES + 1, BATCHES + 1):
        with pytest.raises(Killed):
            begun(tmp_path / "broken", kill=kill, **changes)
    broken = begun(tmp_path / "broken", **changes)
    assert text(broken) == text(whole)
    pairs = zip(weights(tmp_path / "broken"), weights(tmp_path / "whole"), strict=True)
    assert all(one[0] == two[0] and torch.equal(one[1], two[1]) for one, two in pairs)
    assert len(broken["timing"]["epochs"]) == EPOCHS


@pytest.mark.parametrize("changes", [{"channels_last": True}, {"amp": True}], ids=str)
def test_options_of_speed_do_not_break_resuming(changes: dict[str, Any], tmp_path: Path) -> None:
    changes = {**changes, "method": "fast_clip:every=2", "attacks": None, "epochs": 2}
    whole = begun(tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        begun(tmp_path / "broken", kill=BATCHES + 2, **changes)
    assert text(begun(tmp_path / "broken", **changes)) == text(whole)


@pytest.mark.usefixtures("ctrl_c")
def test_a_checkpoint_that_was_not_written_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = begun(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            begun(tmp_path / "broken")
    assert list((tmp_path / "broken").iterdir()) == []
    assert text(begun(tmp_path / "broken")) == text(whole)


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from experiments.experiment import Context
from experiments.training import train
config, folder, kill = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
reports = []

def say(share, words):
    reports.append(share)
    if len(reports) == kill:
        os.kill(os.getpid(), signal.SIGKILL)

outcome = train(config, Context(data=None, scratch=folder, threads=1, say=say))
name = f"result-{os.environ.get('RANK', 0)}.json"
(folder / name).write_text(json.dumps(outcome["result"], allow_nan=False, sort_keys=True))
"""


TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def launched(folder: Path, kill: int, *launcher: str, script: str = SCRIPT, **changes: Any) -> int:
    """The same in processes of their own."""
    folder.mkdir(exist_ok=True)
    file = folder / "script.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, *launcher, file, json.dumps({**CONFIG, **changes}), folder, str(kill)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 or kill, done.stderr.decode()
    return done.returncode


# One process of two meets a loss that is no number.
POISONED = """
import json, os, sys
from pathlib import Path
from torch.nn import functional
from experiments.experiment import Context
from experiments.training import TrainingDiverged, train
plain, rank = functional.cross_entropy, os.environ["RANK"]
if rank == "1":
    functional.cross_entropy = lambda *args, **more: plain(*args, **more) * float("nan")
folder = Path(sys.argv[2])
try:
    train(json.loads(sys.argv[1]), Context(data=None, scratch=folder, threads=1))
except TrainingDiverged as error:
    (folder / f"diverged-{rank}").write_text(str(error))
"""


@pytest.mark.slow
def test_processes_give_up_together(tmp_path: Path) -> None:
    launched(tmp_path, 0, *TWO, script=POISONED, method="none", attacks=None)
    told = [(tmp_path / f"diverged-{rank}").read_text() for rank in range(2)]
    assert told[0] == told[1]
    assert told[0].startswith("the loss is nan at epoch 1, batch 1")


@pytest.mark.slow
def test_a_killed_process_leaves_a_run_that_ends_the_same(tmp_path: Path) -> None:
    whole = begun(tmp_path / "whole", method="spectral_clip")
    folder = tmp_path / "broken"
    assert launched(folder, BATCHES + 2, method="spectral_clip") == -signal.SIGKILL
    assert not (folder / "result-0.json").exists()
    assert text(begun(folder, method="spectral_clip")) == text(whole)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spectral_clip", "miyato"])
def test_two_processes_share_a_run(method: str, tmp_path: Path) -> None:
    changes = {"method": method, "batch_norm": False, "lr": 0.01, "train_images": 49, "batch": 18}
    launched(tmp_path / "whole", 0, *TWO, **changes)
    found = [(tmp_path / "whole" / f"result-{rank}.json").read_text() for rank in range(2)]
    assert found[0] == found[1]
    assert launched(tmp_path / "broken", BATCHES + 2, *TWO, **changes) != 0
    launched(tmp_path / "broken", 0, *TWO, **changes)
    assert (tmp_path / "broken" / "result-0.json").read_text() == found[0]
    # Without batch norm, one process computes the same up to rounding.
    alone = begun(tmp_path / "alone", **changes)["result"]
    shared = json.loads(found[0])
    for one, two in zip(alone["epochs"], shared["epochs"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)
        assert two["norms"] == pytest.approx(one["norms"], rel=1e-2)
    with pytest.raises(ValueError, match="another number of processes"):
        begun(tmp_path / "broken", **changes)


# --- What is computed -----------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, ADAM], ids=["sgd", "adam"])
def test_the_loop_is_the_usual_one(changes: dict[str, Any], tmp_path: Path) -> None:
    found = begun(tmp_path, **{"attacks": None, **changes})["result"]
    config = TrainConfig.of({**CONFIG, **changes})
    data = subset(load("digits"), 48, 40, seed=5)
    model = build("small", width=3, batch_norm=True, dataset=data, seed=5, setting=3)
    if changes:
        optimizer = torch.optim.Adam(model.parameters(), 2e-3, eps=1e-7, weight_decay=5e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    losses = []
    for epoch in range(EPOCHS):
        for images, labels in batches.batches(data, config, epoch, 1):
            loss = functional.cross_entropy(model(images / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
    means = [sum(losses[k : k + BATCHES]) / BATCHES for k in range(0, len(losses), BATCHES)]
    assert [epoch["loss"] for epoch in found["epochs"]] == pytest.approx(means, rel=1e-4)
    model.eval()
    right = (model(data.test_images / 255).argmax(1) == data.test_labels).float().mean()
    assert found["test_accuracy"] == pytest.approx(right.item())
    layers = layers_to_measure(model, data.test_images[:1] / 255, "compositions")
    assert found["norms"] == pytest.approx(true_norms(model, layers), rel=1e-4)


def test_an_epoch_has_every_image_once_in_an_order_of_its_own() -> None:
    data = subset(load("digits"), 48, 40)
    config = TrainConfig.of({**CONFIG, "augment": False})
    orders = []
    for epoch in range(2):
        images = torch.cat([batch for batch, _ in batches.batches(data, config, epoch, 1)])
        flat, known = images.flatten(1).float(), data.train_images.flatten(1).float()
        orders.append(torch.cdist(flat, known).argmin(1))
        assert torch.equal(orders[-1].sort().values, torch.arange(48))
    assert not torch.equal(*orders)
    again = torch.cat([batch for batch, _ in batches.batches(data, config, 1, 1)])
    assert torch.equal(again, images)


def test_augmentation_depends_on_seed_and_epoch() -> None:
    data = subset(load("digits"), 48, 40)
    drawn = {}
    for seed in (1, 2):
        config = TrainConfig.of({**CONFIG, "seed": seed})
        for epoch in (0, 1):
            drawn[seed, epoch] = next(batches.batches(data, config, epoch, 1))[0].sum().item()
    assert len(set(drawn.values())) == 4


def test_a_rest_that_is_too_small_is_left_out() -> None:
    config = TrainConfig.of({**CONFIG, "batch": 16})
    assert [batches.count(config, images, 1) for images in (32, 33, 34, 2)] == [2, 2, 3, 1]
    assert [batches.count(config, images, 2) for images in (35, 36)] == [2, 3]
    with pytest.raises(ValueError, match="train_images"):
        batches.count(config, 1, 1)


def test_nothing_global_changes(tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    first = begun(tmp_path / "first", method="fast_clip")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert text(begun(tmp_path / "second", method="fast_clip")) == text(first)
    assert torch.get_num_threads() == threads


# --- What is reported -----------------------------------------------------------------------


def test_the_result_has_what_is_promised(tmp_path: Path) -> None:
    outcome = begun(tmp_path, method="spectral_clip_conv_bn", max_norm=0.5)
    result, timing = outcome["result"], outcome["timing"]
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2, 3]
    assert result["layers"] == list(result["norms"]) == list(result["final_norms"])
    assert sorted(result["layers"]) == ["bn", "conv", "conv+bn", "linear"]
    assert list(result["epochs"][0]["tracked"]) == ["conv+bn", "linear"]
    assert result["norms"] == result["epochs"][-1]["norms"]
    assert result["final_norms"]["conv+bn"] <= 0.5 * 1.001
    assert result["parameters"] == 3 * 9 + 6 + 3 * 14 * 14 * 10 + 10
    for key in ("test_accuracy", "pgd_accuracy", "cw_accuracy"):
        assert 0 <= result[key] <= 1
    assert sum(timing["epochs"]) + timing["attacks"] <= timing["total"]
    json.dumps(outcome, allow_nan=False)


def test_norms_are_kept_where_the_method_promises_it(tmp_path: Path) -> None:
    changes = {"batch_norm": False, "attacks": None, "measure": "layers", "max_norm": 0.4}
    free = begun(tmp_path / "free", **changes)["result"]
    kept = begun(tmp_path / "kept", method="spectral_clip", **changes)["result"]
    assert all(norm > 0.5 for norm in free["norms"].values())
    assert all(norm <= 0.4 * 1.01 for epoch in kept["epochs"] for norm in epoch["norms"].values())
    assert all(norm <= 0.4 * 1.001 for norm in kept["final_norms"].values())
    assert free["final_norms"] is None and free["pgd_accuracy"] is None


def test_attacks_by_both_protocols_are_those_by_each(tmp_path: Path) -> None:
    changes = {"dataset": "synthetic", "lr": 0.01, "seed": 6}
    found = {
        protocol: begun(tmp_path / protocol, protocol=protocol, **changes)["result"]
        for protocol in ("pixels", "paper", "both")
    }
    both = found["both"].pop("paper_protocol")
    assert found["both"] == found["pixels"]
    assert both == {key: found["paper"][key] for key in ("pgd_accuracy", "cw_accuracy")}
    assert both["pgd_accuracy"] != found["pixels"]["pgd_accuracy"]


def test_batch_norms_on_gpus_see_the_whole_batch() -> None:
    model = build("small", width=3, batch_norm=True, dataset=load("digits"), seed=5, setting=3)
    names = list(model.state_dict())
    for size, device in ((1, "cuda"), (2, "cpu")):
        same = ProcessGroup(0, size, torch.device(device)).with_common_statistics(model)
        assert not any(isinstance(part, nn.SyncBatchNorm) for part in same.modules())
    shared = ProcessGroup(0, 2, torch.device("cuda")).with_common_statistics(model)
    assert sum(isinstance(part, nn.SyncBatchNorm) for part in shared.modules()) == 1
    assert list(shared.state_dict()) == names


def test_a_bound_for_some_layers_leaves_the_others_free(tmp_path: Path) -> None:
    changes = {"batch_norm": False, "attacks": None, "max_norm": {"conv": 0.2}}
    result = begun(tmp_path, method="spectral_clip", **changes)["result"]
    assert result["norms"]["conv"] <= 0.2 * 1.01 < 0.5 < result["norms"]["linear"]


def test_without_measuring_norms_are_there_at_the_end_alone(tmp_path: Path) -> None:
    result = begun(tmp_path, measure="none", attacks=None)["result"]
    assert all(epoch["norms"] == {} for epoch in result["epochs"])
    assert list(result["norms"]) == result["layers"] == ["conv", "linear"]


def test_progress_goes_from_nothing_to_one(tmp_path: Path) -> None:
    shares: list[float] = []
    context = Context(None, tmp_path, say=lambda share, words: shares.append(share))
    train(CONFIG, context)
    assert shares == sorted(shares) and 0 < shares[0] < 0.2 and shares[-1] == pytest.approx(1.0)


# --- What goes wrong ------------------------------------------------------------------------


def test_a_loss_that_is_no_number_ends_the_run_early(tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"the loss is (nan|inf) at epoch 1, batch [23]"):
        begun(tmp_path, lr=1e30, batch_norm=False)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_weights_that_are_lost_with_the_last_step_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"'conv.weight' is not finite after epoch 1"):
        begun(tmp_path, lr=1e30, weight_decay=1e30, batch_norm=False, train_images=16)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    begun(tmp_path, epochs=1, attacks=None)
    with pytest.raises(ValueError, match="another configuration"):
        begun(tmp_path, epochs=2, attacks=None)


def test_what_other_code_or_other_threads_have_begun_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "commit", lambda: "abc")
    with pytest.raises(Killed):
        begun(tmp_path, kill=BATCHES + 2)
    with pytest.raises(ValueError, match=r"is of another number of threads .*remove it"):
        train(CONFIG, Context(data=None, scratch=tmp_path, threads=2))
    monkeypatch.setattr(checkpoint, "commit", lambda: "def")
    with pytest.raises(
        ValueError, match=r"is of another commit \(abc, now def\): remove it to begin anew"
    ):
        begun(tmp_path)
    monkeypatch.setattr(checkpoint, "commit", lambda: "abc")
    assert len(begun(tmp_path)["result"]["epochs"]) == EPOCHS


@pytest.mark.parametrize("known", [None, "abc-dirty"])
def test_what_changed_sources_or_packages_have_begun_is_refused(
    known: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is the same before and after changes that are not committed, or None."""
    monkeypatch.setattr(checkpoint, "commit", lambda: known)
    kept = checkpoint.Checkpoint(
        tmp_path, TrainConfig.of(CONFIG), ProcessGroup.joined("cpu"), threads=1
    )
    kept.save({"epochs": [1]})
    assert (kept.load() or {})["epochs"] == [1]
    for change, message in (
        ((checkpoint, "sources_digest", lambda: "0" * 64), "state of the sources:"),
        ((torch, "__version__", "1.0"), f"version of torch ({torch.__version__}, now 1.0):"),
        ((np, "__version__", "1.0"), f"version of numpy ({np.__version__}, now 1.0):"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            with pytest.raises(ValueError, match=re.escape(f"another {message} remove it")):
                kept.load()
    assert kept.load()


def test_a_digest_of_sources_is_that_of_paths_and_contents(tmp_path: Path) -> None:
    files = {"a.py": "1", "part/b.py": "2", "data.txt": "3"}
    found = {}
    for name, changes in {
        "same": {},
        "moved": {},
        "other data": {"data.txt": "4"},
        "other content": {"part/b.py": "3"},
        "other name": {"c.py": "1", "a.py": ""},
        "shifted": {"a.py": "12", "part/b.py": ""},
    }.items():
        for path, content in {**files, **changes}.items():
            file = tmp_path / name / "package" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        found[name] = sources.digest_of(tmp_path / name / "package")
    assert found["same"] == found["moved"] == found["other data"]
    assert len(set(found.values())) == 4
    packages = [Path(spectralclip.__file__).parent, ROOT / "experiments"]
    assert sources.sources_digest() == sources.digest_of(*packages)


@pytest.mark.parametrize("damage", ["cut", "empty", "another file", "one bit"])
def test_a_damaged_checkpoint_is_named_with_the_remedy(damage: str, tmp_path: Path) -> None:
    kept = checkpoint.Checkpoint(
        tmp_path, TrainConfig.of(CONFIG), ProcessGroup.joined("cpu"), threads=1
    )
    kept.save({"model": torch.zeros(1000)})
    path = tmp_path / checkpoint.NAME
    content = path.read_bytes()
    zeros = content.index(bytes(4000))
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "empty": b"",
            "another file": b"words" * 100,
            "one bit": content[:zeros] + b"\1" + content[zeros + 1 :],
        }[damage]
    )
    with pytest.raises(ValueError, match=r"checkpoint.pt is damaged .*remove it") as error:
        kept.load()
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def changed_attack(name: str, **changes: object) -> dict[str, Any]:
    return {"attacks": {name: {**CONFIG["attacks"][name], **changes}}}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"widht": 3}, r"unknown settings \['widht'\].*known are"),
        ({"optimizer": "lion"}, "optimizer must be one of"),
        ({"measure": "all"}, "measure must be one of"),
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"train_images": 0}, "train_images must be a whole number"),
        ({"attacks": {"pgd": {"eps": 1}}}, "attacks must be among"),
        ({"attacks": {"fgsm": {}}}, "attacks must be among .*'fgsm'"),
        ({"attacks": {"pgd": None}}, "attacks must be among .*'pgd' with None"),
        ({"attacks": ["pgd"]}, "attacks must be settings by the name"),
        ({"method": "goku"}, "there is no method 'goku'"),
        ({"method": "gouk+bn", "batch_norm": False}, "the network has none"),
        ({"method": "gouk:evry=1"}, "no setting 'evry'"),
        ({"model": "mine"}, "model must be one of"),
        ({"dataset": "mine"}, "dataset must be one of"),
        ({"setting": 7}, "setting must be one of"),
        ({"setting": True}, "setting must be one of"),
        ({"model": "resnet18"}, "setting must be .*None for others, got 3 for 'resnet18'"),
        ({"epochs": None}, "epochs must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number, at least 0"),
        ({"seed": -1}, "seed must be a whole number, at least 0"),
        ({"lr": math.nan}, "lr must be a finite number above 0"),
        ({"lr": -1}, "lr must be a finite number above 0"),
        ({"lr": math.inf}, "lr must be a finite number above 0"),
        ({"lr_gamma": 0}, "lr_gamma must be a finite number above 0"),
        ({"momentum": -0.9}, "momentum must be a finite number, at least 0"),
        ({"weight_decay": math.nan}, "weight_decay must be a finite number, at least 0"),
        ({"adam_eps": -1}, "adam_eps must be a finite number, at least 0"),
        ({"max_norm": -1}, "max_norm must be a finite number above 0"),
        ({"max_norm": {"conv": 1, "linear": -1}}, "max_norm of layer 'linear' must be"),
        ({"max_norm": {}}, "max_norm must name at least one layer"),
        ({"batch_norm": 1}, "batch_norm must be True or False"),
        ({"amp": None}, "amp must be True or False"),
        (changed_attack("pgd", eps=-1), "eps of attack 'pgd' must be"),
        (changed_attack("pgd", steps=0), "steps of attack 'pgd' must be"),
        (changed_attack("pgd", images=0), "images of attack 'pgd' must be"),
        (changed_attack("cw", confidence=math.nan), "confidence of attack 'cw' must be"),
        (changed_attack("cw", initial_const=math.nan), "initial_const of attack 'cw' must be"),
        (changed_attack("cw", iterations=1.5), "iterations of attack 'cw' must be"),
        (changed_attack("cw", lr=0), "lr of attack 'cw' must be"),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig.of({**CONFIG, **changes})


def test_what_may_be_left_open_is() -> None:
    config = {**CONFIG, **changed_attack("pgd", images=None), "max_norm": {"conv": 2}}
    assert TrainConfig.of({**config, "train_images": None, "lr_step": None}).batch == 16


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"needs \['epochs'\]"):
        TrainConfig.of({"dataset": "digits", "model": "small"})


def test_a_configuration_survives_json() -> None:
    config = TrainConfig.of(CONFIG)
    assert TrainConfig.of(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_the_rate_follows_torch_for_the_papers_recipes(dataset: str) -> None:
    config = TrainConfig(dataset=dataset, model="resnet18", **recipe(dataset))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], config.lr)
    step = config.lr_step or config.epochs
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step, config.lr_gamma)
    for epoch in range(config.epochs):
        assert config.rate(epoch) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    with pytest.raises(ValueError, match="no recipe"):
        recipe("imagenet")


# --- TensorBoard ----------------------------------------------------------------------------


def test_curves_need_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "board"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        begun(tmp_path / "run", attacks=None)


def test_curves_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv(VARIABLE, str(tmp_path / "board"))
    with pytest.raises(Killed):
        begun(tmp_path / "run", attacks=None, kill=BATCHES + 2)
    result = begun(tmp_path / "run", attacks=None)["result"]
    seen = EventAccumulator(str(tmp_path / "board" / "run")).Reload()
    assert [event.step for event in seen.Scalars("loss")] == [1, 2, 3]
    norms = [epoch["norms"]["conv"] for epoch in result["epochs"]]
    assert [event.value for event in seen.Scalars("norms/conv")] == pytest.approx(norms)


# --- The methods by name --------------------------------------------------------------------


def test_every_name_stands_for_the_papers_settings() -> None:
    found = {name: methods.get(name, batch_norm=True) for name in methods.available()}
    assert found.pop("none") == ()
    assert all(len(made) == 1 for made in found.values())
    delattre, senderovich = found["delattre"][0], found["senderovich"][0]
    assert (delattre.use, delattre.weight, delattre.iterations) == ("penalty", 0.1, 6)
    assert senderovich.every == 100 and found["gouk"][0].power_iterations == 5
    assert found["miyato"][0].power_iterations == 1
    for batch_norm, expected in ((True, (0.35, 5, 50)), (False, (0.35, 1, 100))):
        (clip,) = methods.get("fast_clip", batch_norm=batch_norm)
        assert (clip.lr, clip.inner_steps, clip.every) == expected
    concat = found["fast_clip_concat"][0]
    assert (concat.concat, concat.concat_lr, concat.concat_every) == (True, 0.01, 500)
    assert [name for name in methods.available() if methods.is_ours(name)] == [
        "spectral_clip",
        "spectral_clip_conv_bn",
    ]


def test_batch_norms_are_clamped_beside_any_method() -> None:
    made = methods.get("gouk+bn", batch_norm=True)
    assert [type(each).__name__ for each in made] == ["Gouk", "ClipBatchNorm"]
    assert made[0].batch_norm is False
    assert methods.get("none+bn", batch_norm=True) == (library.ClipBatchNorm(),)
    assert methods.is_ours("spectral_clip:headroom=0.02+bn")
    with pytest.raises(ValueError, match="the network has none"):
        methods.get("gouk+bn", batch_norm=False)


def test_settings_behind_a_name_replace_the_papers() -> None:
    (made,) = methods.get("fast_clip:every=10,averaged=false", batch_norm=True)
    assert (made.every, made.averaged, made.inner_steps) == (10, False, 5)
    for name, message in (
        ("fast_clip:evry=10", "no setting 'evry'"),
        ("fast_clip:every=ten", "as JSON writes it"),
        ("none:every=10", "takes none"),
    ):
        with pytest.raises(ValueError, match=message):
            methods.get(name, batch_norm=True)
