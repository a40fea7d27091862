"""Machines that report AMX and fault on it, simulated: what is found out, set and said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import experiments.__main__
import spectralclip.__main__
from spectralclip._common import amx
from spectralclip._common.amx import REMEDY, VARIABLE, needed
from spectralclip.demo import tour as demo

ROOT = Path(__file__).parents[2]
FLAGS = "processor : 0\nmodel name : {name}\nflags : fpu avx512f {amx} sse\n"
# Interpreters that do what Python would do on such machines, and on others.
FAULTS = {
    "dies": "kill -ILL $$",
    "fails": "echo 'RuntimeError: could not create a primitive' >&2; exit 1",
    "hangs": "exec sleep 60",
}
FAULTY = '[ -n "$ONEDNN_MAX_CPU_ISA" ] || {{ {fault}; }}'
BROKEN = "exit 1"  # for whatever other reason


class Machine:
    """A machine that is asked by an interpreter of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {"PATH": os.environ["PATH"]}
        self.reports("amx_bf16 amx_tile amx_int8")

    def reports(self, amx: str, name: str = "Virtual CPU") -> None:
        (self._folder / "cpuinfo").write_text(FLAGS.format(name=name, amx=amx))

    def behaves(self, script: str) -> None:
        python = self._folder / "python"
        python.write_text(f"#!/bin/sh\necho x >> {self._folder}/asked\n{script}\n")
        python.chmod(0o755)

    def needs(self, patience: float = 30.0) -> dict[str, str]:
        python, cpuinfo = str(self._folder / "python"), self._folder / "cpuinfo"
        return needed(self.environment, python, cpuinfo, patience)

    @property
    def asked(self) -> int:
        trace = self._folder / "asked"
        return len(trace.read_text().splitlines()) if trace.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # where the answer is kept
    return Machine(tmp_path)


# --- Found out ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_out_once(machine: Machine, fault: str) -> None:
    machine.behaves(FAULTY.format(fault=FAULTS[fault]))
    for _ in range(2):
        assert machine.needs(patience=0.5) == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
        assert machine.asked == 2  # without the remedy, and with it


def test_a_sound_machine_is_asked_once(machine: Machine) -> None:
    machine.behaves("exit 0")
    assert (machine.needs(), machine.needs(), machine.asked) == ({}, {}, 1)


def test_nobody_is_asked_without_amx_or_where_the_user_has_decided(machine: Machine) -> None:
    machine.behaves(FAULTY.format(fault=FAULTS["dies"]))
    machine.reports("")
    assert machine.needs() == {}
    machine.reports("amx_tile")
    machine.environment[VARIABLE] = "AVX512_CORE_AMX"
    assert machine.needs() == {}
    assert machine.asked == 0


def test_the_answer_of_another_machine_is_not_believed(machine: Machine) -> None:
    machine.behaves("exit 0")
    assert machine.needs() == {}
    machine.reports("amx_tile", name="Another CPU")
    machine.behaves(FAULTY.format(fault=FAULTS["dies"]))
    assert machine.needs() == REMEDY


@pytest.mark.parametrize("text", ["", "[]", "{", '{"faults": 1}', '"x"'])
def test_a_damaged_answer_is_not_believed(machine: Machine, tmp_path: Path, text: str) -> None:
    machine.behaves(FAULTY.format(fault=FAULTS["dies"]))
    assert machine.needs() == REMEDY
    (tmp_path / ".amx.json").write_text(text)
    assert machine.needs() == REMEDY
    assert machine.asked == 4


def test_what_the_remedy_does_not_mend_is_no_such_fault(machine: Machine) -> None:
    machine.behaves(BROKEN)
    assert machine.needs() == {}
    machine.behaves(FAULTY.format(fault=FAULTS["dies"]))
    assert machine.needs() == REMEDY  # nothing was kept


def test_without_a_virtual_environment_the_answer_is_in_the_users_cache(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    machine.environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    machine.behaves("exit 0")
    assert (machine.needs(), machine.needs(), machine.asked) == ({}, {}, 1)
    assert json.loads((tmp_path / "cache/spectralclip/amx.json").read_text())["faults"] is False


def test_where_nothing_can_be_kept_it_is_asked_again(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / ".amx.json").mkdir()  # a folder, which no file replaces
    machine.behaves("exit 0")
    assert (machine.needs(), machine.needs(), machine.asked) == ({}, {}, 2)


def test_the_products_come_out_right() -> None:
    """Else every machine would count as broken for another reason."""
    made: dict[str, Any] = {}
    exec(amx._PRODUCTS, made)
    assert made["half"] == torch.bfloat16


def test_products_that_come_out_wrong_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", lambda *factors: own(*factors) + 1)
    with pytest.raises(AssertionError):
        exec(amx._PRODUCTS, {})


# --- Set: by make ---------------------------------------------------------------------------

# Stands for every program of an environment: makes one, finds a fault if it is asked, and notes how
# it was started.
PROGRAM = f"""#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p $3/bin; for name in $NAMES; do cp $0 $3/bin/$name; done ;;
    *probe_bfloat16.py) echo {VARIABLE}=AVX512_CORE_FP16 ;;
    *) echo "${{{VARIABLE}-without}} $(basename $0) $*" >> $TRACE ;;
esac
"""
WITH_TORCH = ("python", "mkdocs", "spectralclip")
WITHOUT_TORCH = ("ruff", "mypy", "lint-imports")
TARGETS = {"test": 1, "test-all": 3, "test-floor": 1, "docs": 1, "demo": 1, "bench": 7}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_make_sets_it_for_whatever_runs_torch(tmp_path: Path, target: str) -> None:
    """From the first run on, on which there is no environment yet."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tools").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "constraints-floor.txt"):
        (tmp_path / name).touch()
    for name in ("python", "tools/install_chromium.sh"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "TRACE": str(tmp_path / "trace"),
        "NAMES": " ".join((*WITH_TORCH, *WITHOUT_TORCH)),
    }
    command = ["make", f"PYTHON={tmp_path}/python", target]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    noted = [line.split() for line in (tmp_path / "trace").read_text().splitlines()]
    started = [
        how for how, name, *args in noted if name in WITH_TORCH and args[:2] != ["-m", "pip"]
    ]
    assert started == [REMEDY[VARIABLE]] * TARGETS[target]


# --- Set: by what is started without make ---------------------------------------------------

# Imported by every Python that finds it: AMX is reported, and the process that tries the
# products dies unless the variable is set.
MACHINE = f"""
import os, pathlib, signal, sys
plain = pathlib.Path.read_text
def read_text(path, *args, **options):
    if str(path) == "/proc/cpuinfo":
        return "model name : Virtual CPU\\nflags : amx_bf16 amx_tile\\n"
    return plain(path, *args, **options)
pathlib.Path.read_text = read_text
sys.prefix = os.environ["KEPT"]
if "conv2d" in "".join(sys.orig_argv):
    os._exit(0) if "{VARIABLE}" in os.environ else os.kill(os.getpid(), signal.SIGILL)
"""
TOLD = f"""
import os
from torch import nn
class Told(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
    def forward(self, x):
        print("{VARIABLE}", os.environ.get("{VARIABLE}"))
        return super().forward(x)
"""
WATCHED = f"""
import os, sys
from importlib.abc import MetaPathFinder
class Watch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("{VARIABLE}", os.environ.get("{VARIABLE}"))
            os._exit(0)
sys.meta_path.insert(0, Watch())
import conftest
"""


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., str]:
    """What a process says, on such a machine."""
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch/sitecustomize.py").write_text(MACHINE)
    (tmp_path / "told.py").write_text(TOLD)
    paths = (tmp_path / "patch", ROOT / "src", ROOT / "tests", ROOT)
    environment = {
        **{name: value for name, value in os.environ.items() if name != VARIABLE},
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "KEPT": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }

    def run(*args: str) -> str:
        command = [sys.executable, *args]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize(
    "args",
    [
        ("-c", WATCHED),
        (str(ROOT / "tools/probe_bfloat16.py"),),
        pytest.param(
            ("-m", "spectralclip", "audit", "told.py:Told", "--input", "3", "--no-lipschitz"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["pytest", "probe", "command line"],
)
def test_what_is_started_without_make_sets_it(
    started: Callable[..., str], args: tuple[str, ...]
) -> None:
    said = started(*args).replace("=", " ")
    assert f"{VARIABLE} AVX512_CORE_FP16" in said
    assert f"{VARIABLE} None" not in said


@pytest.mark.parametrize(
    ("program", "work"),
    [
        (spectralclip.__main__, "spectralclip.cli.main"),
        (demo, "spectralclip.demo.tour.run"),
        (experiments.__main__, "experiments.__main__.guarded"),
    ],
)
def test_programs_set_it_before_the_work(
    monkeypatch: pytest.MonkeyPatch, program: ModuleType, work: str
) -> None:
    found = []

    def do(*args: object, **options: object) -> int:
        found.append(os.environ.get(VARIABLE))
        return 0

    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setattr(program, "needed", lambda: REMEDY)
    monkeypatch.setattr(work, do)
    program.main()
    assert found == [REMEDY[VARIABLE]]
