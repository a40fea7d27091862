"""Finished runs on the disk, the locks of those that run, and what the page says of them all."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from experiments.experiment import SCALES, Cell, Experiment, Scale, Section
from experiments.report._page import Page, gather
from experiments.store import Store, Unreadable, default_folder
from experiments.store import lock as lock_module
from experiments.store.lock import take
from experiments.store.plain import plain

RUN = {"seconds": 1.5}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def cell(scale: Scale = "laptop", **config: Any) -> Cell:
    return Cell("table_one", scale, {"label": "A cell", "seed": 3, **config})


def test_a_run_comes_back_as_it_was(store: Store) -> None:
    one = cell(rates=(0.1, 0.01))
    assert not store.finished(one)
    path = store.save(one, {"norms": {"conv": 1.25}, "epochs": [1, None]}, RUN)
    assert path == store.folder / "table_one" / f"{one.id}.json"
    assert store.finished(one)
    (record,) = store.records("table_one", "laptop")
    assert (record.experiment, record.id, record.scale) == ("table_one", one.id, "laptop")
    assert record.config == {"label": "A cell", "seed": 3, "rates": [0.1, 0.01]}
    assert record.result == {"norms": {"conv": 1.25}, "epochs": [1, None]}
    assert record.run == RUN
    assert Cell("table_one", "laptop", record.config).id == one.id
    assert json.loads(path.read_text())["result"] == record.result


def test_runs_of_other_configurations_scales_and_experiments_are_apart(store: Store) -> None:
    store.save(cell(), {"a": 1}, RUN)
    store.save(cell("paper", epochs=200), {"a": 2}, RUN)
    assert not store.finished(cell(epochs=7))
    assert not store.finished(Cell("table_two", "laptop", cell().config))
    assert not store.finished(cell("paper"))
    assert [one.result for one in store.records("table_one", "paper")] == [{"a": 2}]
    assert store.records("table_one", "smoke") == store.records("table_two", "paper") == []


def test_a_configuration_of_two_scales_is_one_run(store: Store) -> None:
    assert not store.adopt(cell("paper"))
    store.save(cell("paper"), {"a": 1}, RUN)
    assert store.adopt(cell("laptop"))
    assert store.adopt(cell("laptop"))
    for scale in ("laptop", "paper"):
        assert store.finished(cell(scale))
        assert [(one.scale, one.result) for one in store.records("table_one", scale)] == [
            (scale, {"a": 1})
        ]
    assert not store.finished(cell("smoke"))
    assert len(list((store.folder / "table_one").iterdir())) == 1


def test_records_are_in_the_order_of_their_ids(store: Store) -> None:
    for seed in (4, 1, 3, 0, 2):
        store.save(cell(label=f"seed {seed}", seed=seed), {"seed": seed}, RUN)
    assert [one.result["seed"] for one in store.records("table_one", "laptop")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("result", "error", "complaint"),
    [
        ({"epochs": [{"loss": float("nan")}]}, ValueError, r"result\.epochs\[0\]\.loss: .* nan"),
        ({"norm": float("inf")}, ValueError, r"result\.norm: .* inf"),
        ({"norm": torch.ones(1)}, TypeError, r"result\.norm: .* Tensor: .*item"),
        ({"count": numpy.int64(3)}, TypeError, r"result\.count: .* int64"),
        ({1: 2}, TypeError, r"result: expected words for keys, got 1 \(int\)"),
        ({}, ValueError, "result: expected what came out of the run, got nothing"),
    ],
)
def test_what_json_cannot_hold_is_refused(
    store: Store, result: Any, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        store.save(cell(), result, RUN)
    assert not store.finished(cell())


def test_plain_values_go_through_json_unchanged() -> None:
    value = {"a": (1, [2.5, "b", None, True]), "c": {"d": numpy.float64(0.1)}, "e": []}
    assert plain(value) == json.loads(json.dumps(value)) == json.loads(json.dumps(plain(value)))
    assert type(plain(value)["c"]["d"]) is float


def test_a_full_disk_leaves_what_was_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.save(cell(), {"a": 1}, RUN)
    before = path.read_bytes()

    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    for result, one in (({"a": 2}, cell()), ({"a": 3}, cell(seed=4))):
        with pytest.raises(OSError, match="No space left"):
            store.save(one, result, RUN)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text[:-20], "not a stored run"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "expected format 1, got 9"),
        (lambda text: "[]", "expected format 1, got list"),
        (lambda text: text.replace('"result"', '"other"'), "the fields result"),
        (lambda text: text.replace("table_one", "table_two"), "it is of table_two/a-cell"),
    ],
)
def test_a_file_that_is_no_run_is_named(store: Store, change: Any, complaint: str) -> None:
    path = store.save(cell(), {"a": 1}, RUN)
    path.write_text(change(path.read_text()))
    for use in (lambda: store.finished(cell()), lambda: store.records("table_one", "laptop")):
        with pytest.raises(Unreadable, match=complaint) as raised:
            use()
        assert str(path) in str(raised.value)
        assert "remove it" in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"config": {"label": "A cell", "seed": 4}}, "its configuration is that of a-cell-"),
        ({"config": {"label": "A cell", "seed": None}}, "its configuration is that of a-cell-"),
        ({"config": {"label": "A cell", "seed": float("nan")}}, "config: .*JSON"),
        ({"config": None}, "config: expected names with values, got NoneType"),
        ({"result": {}}, "result: expected what came out of the run, got nothing"),
        ({"result": [1]}, "result: expected names with values, got list"),
        ({"run": []}, "run: expected names with values, got list"),
        ({"scales": "laptop"}, "scales: expected some of smoke, laptop, desk, paper, got laptop"),
        ({"scales": []}, "scales: expected some of"),
        ({"scales": ["laptop", {}]}, "scales: expected some of"),
    ],
)
def test_a_file_whose_parts_do_not_belong_together_is_named(
    store: Store, change: dict[str, Any], complaint: str
) -> None:
    path = store.save(cell(), {"a": 1}, RUN)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    for use in (lambda: store.finished(cell()), lambda: store.records("table_one", "laptop")):
        with pytest.raises(Unreadable, match=complaint) as raised:
            use()
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_the_study_s_own_results_can_be_read() -> None:
    folder = Path(__file__).parents[2] / "results"
    paths = sorted(folder.glob("*/*.json"))
    store = Store(folder)
    names = {path.parent.name for path in paths}
    found = [store.records(name, scale) for name in sorted(names) for scale in SCALES]
    assert {record.id for records in found for record in records} == {path.stem for path in paths}


def test_only_what_unfinished_runs_need_is_cleared(store: Store) -> None:
    store.save(cell(), {"a": 1}, RUN)
    for one in (cell(), cell(seed=4)):
        store.scratch(one).mkdir(parents=True)
        (store.scratch(one) / "checkpoint").touch()
        store.log(one).touch()
    store.clear(cell())
    store.clear(cell())
    assert not store.scratch(cell()).exists()
    assert not store.log(cell()).exists()
    assert store.finished(cell())
    assert (store.scratch(cell(seed=4)) / "checkpoint").exists()
    assert store.log(cell(seed=4)).exists()


def test_folders_that_cannot_be_written_are_known_before(tmp_path: Path) -> None:
    Store(tmp_path / "new" / "folder").require_writable()
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Store(tmp_path / "file" / "folder").require_writable()


def test_only_the_smoke_test_is_kept_elsewhere() -> None:
    assert default_folder("smoke") == Path("runs/smoke")
    assert {default_folder(scale) for scale in ("laptop", "paper", None)} == {Path("results")}


def test_a_lock_has_one_owner(store: Store) -> None:
    lock = store.lock(cell())
    assert lock is not None
    assert store.lock(cell()) is None
    assert f"process {os.getpid()} " in store.owner(cell())
    other = store.lock(cell(seed=4))
    assert other is not None
    other.release()
    lock.release()
    again = store.lock(cell())
    assert again is not None
    again.release()
    assert list((store.folder / ".work" / "table_one").iterdir()) == []


def test_a_room_is_for_many_or_for_one_who_measures_times(store: Store) -> None:
    timed, others = cell(alone=True), [store.room(cell(seed=seed)) for seed in range(2)]
    for other in others:
        assert other is not None
        assert store.room(timed) is None
        assert f"process {os.getpid()} " in store.room_owner()
        other.release()
    alone = store.room(timed)
    assert alone is not None
    assert store.room(cell()) is None
    assert store.room(cell(alone=True, seed=4)) is None
    alone.release()
    assert list((store.folder / ".work").iterdir()) == []


HOLD = """
import runpy, sys, time
from pathlib import Path
take = runpy.run_path(sys.argv[2])["take"]  # without its package, which would load torch
assert take(Path(sys.argv[1])) is not None
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    command = [sys.executable, "-c", HOLD, path, lock_module.__file__]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        assert take(path) is None
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    assert path.exists()  # it had no time to remove it
    lock = take(path)
    assert lock is not None
    lock.release()


def test_many_who_want_a_lock_have_it_one_at_a_time(tmp_path: Path) -> None:
    inside, most, times = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, times
        for _ in range(150):
            while (lock := take(tmp_path / "a.lock")) is None:
                pass
            inside += 1
            most = max(most, inside)
            times += 1
            inside -= 1
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, times) == (1, 600)


def experiment(name: str, *uses: str) -> Experiment:
    """Of ten runs at each scale, and twenty at the paper's."""
    return Experiment(
        name,
        f"The {name}",
        "Section 0",
        grid=lambda scale: [
            {"label": scale, "seed": seed} for seed in range(20 if scale == "paper" else 10)
        ],
        run=lambda config, context: {},
        section=lambda records: Section([]),
        uses=uses,
    )


def page(store: Store, *experiments: Experiment, scale: Scale | None = None) -> Page:
    return gather(store, {one.name: one for one in experiments}, scale)


def test_the_page_adds_up_the_hours_of_runs_that_were_resumed(store: Store) -> None:
    one = experiment("table_one")
    runs: list[dict[str, Any]] = [
        {"seconds": 3600, "timing": None},
        {"seconds": 36, "timing": {"total": 7200.0}},  # taken up again shortly before its end
        {"seconds": 1800, "timing": {"seconds": {"gouk": 2.0}}, "processes": 8},
    ]
    for made, run in zip(one.cells("laptop"), runs, strict=False):
        store.save(made, {"a": 1}, run)
    table = page(store, one).runs()
    assert table.header[-2:] == ("hours", "processes")
    assert table.rows == [["The table_one", "laptop", "3", "10", "3.50", "1 or 8"]]


def test_the_page_names_the_commits(store: Store) -> None:
    one, other = experiment("table_one"), experiment("table_two", "table_one")
    commits = ["abc", "abc", "def-dirty", None]
    for made, commit in zip(one.cells("laptop"), commits, strict=False):
        store.save(made, {"a": 1}, {"commit": commit})
    store.save(other.cells("laptop")[0], {"a": 1}, {"commit": "abc"})
    caption = page(store, one, other).runs().caption
    named = "abc (3 runs), def-dirty (1 run), unknown (1 run)."
    assert f"Commits of the sources: {named}" in caption
    assert "**1 run of changed sources**" in caption
    assert named in page(store, one, other).runs().caption
    # What an experiment only reads is named too.
    assert "abc (3 runs), def-dirty" in page(store, other, one).runs().caption
    clean = page(store, experiment("table_two")).runs().caption
    assert "abc (1 run)." in clean and "changed sources" not in clean


def test_the_page_of_another_study_does_not_speak_of_the_paper(store: Store) -> None:
    ours = page(store, experiment("table_one"))
    assert "paper's" in ours.title and "paper's" in ours.lead
    other = gather(store, {}, None, "Coin tosses")
    assert other.title == "Coin tosses"
    assert "paper" not in other.lead and other.lead.startswith("Every number below comes from")


def test_runs_that_an_experiment_cannot_read_are_an_error_that_names_it(store: Store) -> None:
    def section(records: Any) -> Section:
        return Section([str(record.result["epochs"].keys()) for record in records])

    one = replace(experiment("table_one"), section=section)
    store.save(one.cells("laptop")[0], {"epochs": None}, {})
    with pytest.raises(
        ValueError, match=r"table_one expects other values .* laptop \(Attr"
    ) as raised:
        page(store, one)
    assert "\n" not in str(raised.value)


def test_a_few_runs_of_a_larger_scale_hide_nothing(store: Store) -> None:
    one = experiment("table_one")

    def chosen() -> Scale | None:
        return page(store, one).parts[0].scale

    assert chosen() is None
    for made in one.cells("smoke"):
        store.save(made, {"a": 1}, {})
    assert chosen() == "smoke"
    for made in one.cells("laptop")[:9]:
        store.save(made, {"a": 1}, {})
    store.save(one.cells("paper")[0], {"a": 1}, {})
    assert chosen() == "laptop"  # 9 of 10, and 1 of 20
    for made in one.cells("paper")[1:19]:
        store.save(made, {"a": 1}, {})
    assert chosen() == "paper"  # 19 of 20
    assert page(store, one, scale="laptop").parts[0].scale == "laptop"
