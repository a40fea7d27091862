"""`python -m experiments` on a fake study: within this process, and as a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from fake_study.adding import numbers

pytest.importorskip("typer")
pytest.importorskip("rich")

from experiments import registry
from experiments.__main__ import main
from experiments.engine import schedule
from experiments.engine.work import Event, Task, perform
from experiments.store import Store

ROOT = Path(__file__).parents[2]
PATIENCE = 60  # seconds; what takes longer hangs
START = "import sys; from experiments.__main__ import main; sys.exit(main(package='fake_study'))"


class Command:
    """Runs the command line, and keeps what it said."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.output = self.errors = ""

    def __call__(self, *args: object) -> int:
        code = main(list(map(str, args)), package="fake_study")
        self.output, self.errors = self._capture.readouterr()
        return code


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAKE_STUDY_TRACE", str(tmp_path / "trace"))
    monkeypatch.delenv("SPECTRALCLIP_DATA", raising=False)
    return tmp_path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


class InProcess:
    """An engine that does each run in the process of the tests, where torch is loaded already."""

    name, slots = "local", 2

    def __init__(self, *settings: object) -> None:
        self._tasks: list[Task] = []

    def start(self, task: Task) -> None:
        self._tasks.append(task)

    def events(self, seconds: float) -> list[Event]:
        return [perform(self._tasks.pop(0), lambda share, words: None)]

    def close(self) -> None:
        assert not self._tasks


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what does not depend on who does the runs: a process takes seconds to start."""
    monkeypatch.setattr("experiments.__main__.LocalEngine", InProcess)


def steps(folder: Path) -> Counter[str]:
    trace = folder / "trace"
    return Counter(trace.read_text().splitlines() if trace.exists() else [])


def totals(folder: Path, experiment: str, scale: Any) -> dict[str, Any]:
    return {one.id: one.result for one in Store(folder).records(experiment, scale)}


def expected(experiment: str, scale: Any) -> dict[str, Any]:
    cells = registry.cells([experiment], scale, "fake_study")
    return {cell.id: {"total": sum(numbers(cell.config))} for cell in cells}


def test_a_study_from_beginning_to_end(command: Command, folder: Path) -> None:
    assert command("list") == 0
    assert re.search(r"^figure_fine +The figure_fine .* 0/3 +0/2 +0/2 +0/2$", command.output, re.M)
    assert command("run", "figure_fine", "--workers", 2) == 0
    assert command.output == "runs/smoke: 3 runs stored, 0 were there, 0 failed.\n"
    assert totals(folder / "runs/smoke", "figure_fine", "smoke") == expected("figure_fine", "smoke")
    assert not (folder / "results").exists()
    assert command("run", "figure_fine", "--scale", "laptop", "--workers", 1) == 0
    assert totals(folder / "results", "figure_fine", "laptop") == expected("figure_fine", "laptop")
    before = steps(folder)
    assert command("run", "figure_fine", "--scale", "laptop") == 0
    assert command.output == "results: 0 runs stored, 2 were there, 0 failed.\n"
    assert steps(folder) == before
    assert command("list") == 0
    assert re.search(r"^figure_fine .* 3/3 +2/2 +0/2 +0/2$", command.output, re.M)
    assert re.search(r"^table_uses .* 0/0 +0/0 +0/0 +0/0$", command.output, re.M)


def test_all_of_them_with_a_run_that_always_fails(command: Command, folder: Path) -> None:
    assert command("run", "all", "--retries", 1, "--results", "here", "--workers", 2) == 1
    failed = re.findall(r"^failed: .*$", command.errors, re.M)
    assert len(failed) == 1
    key, log = r"table_troubles/always-fails-\w{10}", r"here/\.work/\S+\.log"
    told = rf"failed: {key}: ValueError: the sum is too large \(1 attempt; see ({log})\)"
    match = re.fullmatch(told, failed[0])
    assert match
    assert "Traceback" in Path(match[1]).read_text()
    assert command.output == "here: 12 runs stored, 0 were there, 1 failed.\n"
    for name in registry.names("fake_study"):
        right = {} if name == "table_uses" else expected(name, "smoke")
        right = {key: one for key, one in right.items() if not key.startswith("always")}
        assert totals(folder / "here", name, "smoke") == right


@pytest.mark.usefixtures("in_process")
def test_lines_where_there_is_no_terminal(command: Command) -> None:
    assert command("run", "figure_fine", "--only", "fine-1", "--workers", 1) == 0
    assert re.fullmatch(
        r"\[0/1\] began figure_fine/fine-1-\w{10}\n"
        r"\[1/1\] stored figure_fine/fine-1-\w{10} after \d+\.\d s\n",
        command.errors,
    )


@pytest.mark.usefixtures("in_process")
def test_an_experiment_brings_along_what_it_uses(command: Command, folder: Path) -> None:
    assert command("run", "table_uses", "--only", "*-[02]-") == 0
    assert command.errors.startswith("table_uses also needs the runs of figure_fine.\n")
    assert sorted(totals(folder / "runs/smoke", "figure_fine", "smoke")) == [
        key for key in sorted(expected("figure_fine", "smoke")) if not key.startswith("fine-1")
    ]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("run", "figure_none"), "expected one of figure_fine, .*table_uses or all, got 'figure_n"),
        (("run", "figure_fine", "--only", "gouk"), "--only: expected .*fine-0-.* got gouk: .*of 3"),
        (
            ("run", "figure_fine", "--only", "fine-0", "--only", "gouk", "--only", "*x"),
            r"--only: .* got gouk, \*x: they fit none of 3",
        ),
        (("run", "figure_fine", "--device", "foo"), "that torch knows, .* got 'foo'"),
        (("run", "figure_fine", "--results", "file"), "--results: expected a folder .* got file: "),
        (
            ("list", "--results", "file"),
            "--results: expected a folder for results, got file: it is",
        ),
        (("report", "--results", "file"), "--results: expected a folder .* got file: it is a file"),
        (("report", "--results", "."), r"no results in \.: run experiments first"),
        (("report", "--scale", "smoke"), "no results of the scale smoke in runs/smoke: run"),
        (("run", "figure_fine", "--data", "file"), "--data: expected a folder .* got file: it is"),
        (("run", "figure_fine", "--device", "cuda"), "expected a GPU for 'cuda', got none"),
        (("run", "figure_fine", "--scale", "huge"), "huge"),
        (("run", "figure_fine", "--engine", "dask"), "dask"),
        (("run", "figure_fine", "--workers", "0"), "workers"),
        (("run", "figure_fine", "--results", "file/x"), "cannot use .*file"),
        (("run",), "(?i)missing argument"),
        (("report",), "no results in results: run experiments first"),
        (("dance",), "dance"),
    ],
)
def test_bad_input_is_one_line(
    command: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    complaint: str,
) -> None:
    (folder / "file").touch()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert command(*args) == 2
    assert re.fullmatch(r"error: [^\n]+\n", command.errors), command.errors
    assert re.search(complaint, command.errors)
    assert command.output == ""
    assert not steps(folder)


@pytest.mark.usefixtures("in_process")
def test_what_was_named_is_not_said_to_be_needed(command: Command) -> None:
    only = ("--only", "fine-0")
    for names in (["all"], ["table_uses", "figure_fine"], ["figure_fine"]):
        assert command("run", *names, *only) == 0
        assert "needs" not in command.errors


def test_the_help_names_a_pattern_that_fits_ids_of_the_study(command: Command) -> None:
    assert command("run", "--help") == 0
    (pattern,) = re.findall(r"as '(\S+)'", command.output)
    ids = [cell.id for cell in registry.cells(["table_resnet"], "laptop")]
    assert any(fnmatchcase(one, pattern) for one in ids)


@pytest.mark.usefixtures("in_process")
def test_a_stored_file_that_is_broken_is_named(command: Command, folder: Path) -> None:
    assert command("run", "figure_fine", "--only", "fine-0") == 0
    (path,) = folder.glob("runs/smoke/figure_fine/*.json")
    path.write_text("{")
    for args in (("list",), ("run", "figure_fine")):
        assert command(*args) == 2
        assert re.match(rf"error: .*{path.name} is not a stored run .*: remove it", command.errors)


def test_data_may_come_from_the_environment(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("SPECTRALCLIP_DATA", "file")
    assert command("run", "figure_fine") == 2
    assert "got file" in command.errors


def test_where_an_error_comes_from_is_told_on_demand(command: Command) -> None:
    assert command("run", "figure_none", "--debug") == 2
    assert "Traceback" in command.errors


@pytest.mark.parametrize(
    ("args", "place", "scale"),
    [
        ((), "results", None),
        (("--scale", "paper"), "results", "paper"),
        (("--scale", "smoke"), "runs/smoke", "smoke"),
        (("--results", "here", "--scale", "laptop"), "here", "laptop"),
    ],
)
def test_the_report_is_written_from_the_store(
    command: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    place: str,
    scale: Any,
) -> None:
    calls: list[tuple[Path, Path, str | None]] = []
    options: dict[str, Any] = {}
    pages: Any = ModuleType("experiments.report")

    def write(store: Store, folder: Path, scale: str | None, **more: Any) -> list[Path]:
        calls.append((store.folder, folder, scale))
        options.update(more)
        return [folder / "index.md"]

    pages.write = write
    monkeypatch.setitem(sys.modules, "experiments.report", pages)
    cell = registry.load("figure_fine", "fake_study").cells(scale or "laptop")[0]
    Store(place).save(cell, {"total": 1}, {})
    assert command("report", *args) == 0
    assert calls == [(Path(place), Path(place), scale)]
    assert list(options["experiments"]) == registry.names("fake_study")
    assert options["title"].startswith("A study whose runs take no time: ")
    assert command.output == f"wrote {place}/index.md\n"


@pytest.mark.usefixtures("in_process")
def test_the_report_is_of_the_study_s_own_experiments(command: Command, folder: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    assert command("run", "figure_fine") == 0
    assert command("report", "--scale", "smoke") == 0
    text = (folder / "runs/smoke/index.md").read_text()
    headings = re.findall(r"^## The (\w+)$", text, re.M)
    assert headings == registry.names("fake_study")
    assert "\n\n3 runs\n" in text
    assert text.startswith("# A study whose runs take no time: ")
    for name in ("index.md", "index.html"):
        assert "paper's" not in (folder / "runs/smoke" / name).read_text()


def test_a_package_without_a_docstring_has_its_name_for_a_title(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "silent_study").mkdir()
    (folder / "silent_study" / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)
    assert registry.title("silent_study") == "silent_study"


@pytest.mark.parametrize(("args", "place"), [((), "data"), (("--data", "new/one"), "new/one")])
def test_data_sets_are_fetched_into_a_folder_that_need_not_exist(
    folder: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], place: str
) -> None:
    fetched: list[tuple[str, Path]] = []
    tasks: list[Any] = []

    def run(cells: Any, store: Any, engine: Any, shown: Any, task: Any, **more: Any) -> Any:
        tasks.extend(map(task, cells))
        return schedule.Summary()

    def load(name: str, folder: Path, *, download: bool) -> None:
        assert download
        fetched.append((name, folder))

    monkeypatch.setattr("experiments.data.load", load)
    monkeypatch.setattr(schedule, "run", run)
    assert main(["run", "table_resnet", "--scale", "laptop", *args]) == 0
    assert fetched == [("cifar10", Path(place)), ("mnist", Path(place))]
    assert {task.data for task in tasks} == {folder / place}


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command line in a process of its own, and sees that it ends."""
    started: list[subprocess.Popen[str]] = []

    def run(*args: object) -> subprocess.Popen[str]:
        path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support")))
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, args)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            cwd=folder,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE  # nobody may be there to bury it
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_two_commands_do_not_do_the_same_run(
    start: Callable[..., subprocess.Popen[str]], folder: Path
) -> None:
    both = [start("run", "figure_slow", "--workers", 1) for _ in range(2)]
    told = [process.communicate(timeout=PATIENCE) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert totals(folder / "runs/smoke", "figure_slow", "smoke") == expected("figure_slow", "smoke")
    assert set(steps(folder).values()) == {1}
    counts = [re.search(r"(\d) runs stored, (\d) were there", output) for output, _ in told]
    assert all(counts)
    assert sum(int(one[1]) for one in counts if one) == 6
    assert [sum(map(int, one.groups())) for one in counts if one] == [6, 6]


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_a_command_that_was_stopped_goes_on_where_it_was(
    start: Callable[..., subprocess.Popen[str]],
    command: Command,
    folder: Path,
    sent: signal.Signals,
    code: int,
) -> None:
    process = start("run", "figure_slow", "--scale", "laptop")
    wait_for(lambda: steps(folder)["slow 3"] > 0)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert ("what is stored stays" in errors) == (code > 0)
    wait_for(lambda: all(map(has_ended, workers)))
    done = steps(folder)
    assert done["slow 14"] == 0
    assert totals(folder / "results", "figure_slow", "laptop") == {}
    assert command("run", "figure_slow", "--scale", "laptop") == 0
    assert totals(folder / "results", "figure_slow", "laptop") == expected("figure_slow", "laptop")
    twice = {step for step, times in steps(folder).items() if times > 1}
    assert len(twice) <= 1  # only the step at which it was stopped
    assert not list((folder / "results/.work").glob("*/*"))


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("sent", "code", "told"),
    [
        (signal.SIGINT, 130, "stopped: what is stored stays, and the same command goes on"),
        (signal.SIGTERM, 143, "terminated: what is stored stays, and the same command goes on"),
    ],
)
def test_a_signal_unwinds_the_command(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
    code: int,
    told: str,
) -> None:
    def run(*args: Any, **options: Any) -> None:
        signal.raise_signal(sent)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(schedule, "run", run)
    assert command("run", "figure_fine") == code
    assert command.errors.startswith(told)
    assert command.errors.count("\n") == 1
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_final_file_is_that_of_an_unbroken_run(command: Command, folder: Path) -> None:
    assert command("run", "table_troubles", "--only", "is-killed") == 0
    (broken,) = (json.loads(path.read_text()) for path in folder.glob("runs/smoke/*/*.json"))
    cell = registry.cells(["table_troubles"], "smoke", "fake_study")[0]
    scratch = Store("unbroken").scratch(cell)
    scratch.mkdir(parents=True)
    (scratch / "trouble").touch()  # then it is not killed
    assert command("run", "table_troubles", "--only", "is-killed", "--results", "unbroken") == 0
    (whole,) = (json.loads(path.read_text()) for path in folder.glob("unbroken/*/*.json"))
    assert (broken.pop("run")["attempts"], whole.pop("run")["attempts"]) == (2, 1)
    assert broken == whole
