"""A killed training ends as an unbroken one, and what others have begun is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_training import (
    ALIKE,
    BATCHES,
    CONFIG,
    EPOCHS,
    RESUMED,
    ROOT,
    Killed,
    begun,
    text,
    weights,
)

pytest.importorskip("scipy", reason="the study measures norms by SciPy")

import spectralclip
from experiments.engine import sources
from experiments.experiment import Context
from experiments.training import TrainConfig, checkpoint, train
from experiments.training.process_group import ProcessGroup


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
