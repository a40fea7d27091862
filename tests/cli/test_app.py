"""The commands, called within the process of the tests."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_cases import CLIP, NET, Command, dense_norms, files, weights

pytest.importorskip("typer")

from spectralclip import Interval, spectral_norm
from spectralclip._audit import Audit
from spectralclip.cli import _app
from spectralclip.cli._limits import FailOn, above

pytestmark = pytest.mark.usefixtures("folder")

AUDIT = ("audit", *NET, "--no-lipschitz", "--weights", "in.pt")


# audit


def test_audit_prints_a_table_and_writes_what_it_is_asked_for(
    spectralclip: Command, folder: Path
) -> None:
    assert (
        spectralclip("audit", *NET, "--weights", "in.pt", "--json", "a.json", "--html", "a.html")
        == 0
    )
    assert files(folder) == {"nets.py", "in.pt", "a.json", "a.html"}
    found = Audit.from_json(Path("a.json"))
    assert found.model == "nets.py:Net"
    assert found.inputs == ((1, 3, 6, 6),)
    for name, norm in dense_norms(weights()).items():
        interval = found[name].norm
        assert interval.lower * (1 - 1e-5) <= norm <= interval.upper * (1 + 1e-5)
        assert re.search(rf"^{re.escape(name)} ", spectralclip.output, re.MULTILINE)
    assert found.lipschitz is not None and found.lipschitz.lower > 0
    assert "<html" in Path("a.html").read_text()
    assert "weights: 8 tensors of in.pt, kept under 'state_dict'" in spectralclip.errors
    assert "wrote a.html\nwrote a.json\n" in spectralclip.errors


def test_json_can_go_to_the_output(spectralclip: Command, folder: Path) -> None:
    assert spectralclip("audit", "nets:talkative", "--input", 6, "--json", "-") == 0
    assert json.loads(spectralclip.output)["format"] == "spectralclip.audit"
    assert "not a part of the output" in spectralclip.errors
    assert "has the weights that it makes itself" in spectralclip.errors
    assert files(folder) == {"nets.py", "in.pt"}


def test_several_inputs_by_position_and_by_name(spectralclip: Command) -> None:
    words = ("audit", "nets:Words", "--no-lipschitz", "--json", "-", "--batch", 3)
    assert spectralclip(*words, "--input", "7:int64", "--input", "4") == 0
    by_position = json.loads(spectralclip.output)
    assert spectralclip(*words, "--input", "scale=4", "--input", "ids=7:int64") == 0
    by_name = json.loads(spectralclip.output)
    assert by_position["inputs"] == [[3, 7], [3, 4]]
    assert sorted(by_name["inputs"]) == [[3, 4], [3, 7]]
    assert [row["name"] for row in by_name["layers"]] == ["embedding", "fc"]


def test_the_same_seed_gives_the_same_audit(spectralclip: Command) -> None:
    def norms(seed: int) -> list[Any]:
        args = ("audit", *NET, "--no-lipschitz", "--json", "-", "--seed", seed)
        assert spectralclip(*args) == 0
        return [row["singular_values"] for row in json.loads(spectralclip.output)["layers"]]

    state = torch.random.get_rng_state()
    assert norms(1) == norms(1) != norms(2)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_options_reach_the_audit(spectralclip: Command) -> None:
    options = ("-k", 3, "--tol", 0.05, "--deterministic", "--set", "width=2", "--seed", 5)
    assert spectralclip("audit", *NET, *options, "--no-lipschitz", "--json", "-") == 0
    found = json.loads(spectralclip.output)
    wanted = {"k": 3, "tol": 0.05, "deterministic": True, "seed": 5}
    assert found["settings"].items() >= wanted.items()
    assert found["lipschitz"] is None
    assert {row["norm"]["failure"] for row in found["layers"]} == {0}
    assert next(row for row in found["layers"] if row["name"] == "conv")["out_shape"] == [2, 6, 6]


def test_an_exported_program_knows_its_inputs(spectralclip: Command, folder: Path) -> None:
    sys.path.insert(0, str(folder))
    import nets  # type: ignore[import-not-found]

    model = nets.Net().eval()
    model.load_state_dict(weights())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own ways
        torch.export.save(torch.export.export(model, (torch.zeros(1, 3, 6, 6),)), "net.pt2")
    assert spectralclip("audit", "net.pt2", "--no-lipschitz", "--json", "-") == 2
    assert "add --trust" in spectralclip.errors
    assert spectralclip("audit", "net.pt2", "--trust", "--no-lipschitz", "--json", "-") == 0
    rows = {row["name"]: row["norm"] for row in json.loads(spectralclip.output)["layers"]}
    norms = dense_norms(weights())
    assert rows.keys() == norms.keys()
    assert all(rows[n]["lower"] * 0.9999 <= norms[n] <= rows[n]["upper"] * 1.0001 for n in norms)


# --fail-above


@pytest.mark.parametrize(
    ("limit", "what", "code", "names"),
    [
        (1e3, (), 0, ()),
        (1.0, (), 1, ("conv+bn", "fc")),
        (1.0, ("layers",), 1, ("conv", "bn", "fc")),
        (1e9, ("layers", "chains", "network"), 0, ()),
        (1.0, ("network",), 1, ("the network",)),
    ],
)
def test_the_exit_code_tells_of_norms_above(
    spectralclip: Command, limit: float, what: tuple[str, ...], code: int, names: tuple[str, ...]
) -> None:
    chosen = [part for one in what for part in ("--fail-on", one)]
    bound = () if "network" in what else ("--no-lipschitz",)
    args = ("audit", *NET, "--weights", "in.pt", *bound, "--fail-above", limit, *chosen)
    assert spectralclip(*args) == code
    told = [line for line in spectralclip.errors.splitlines() if line.startswith("above")]
    assert len(told) == code
    assert re.findall(r"[:,] ([^,(]+) \(", "".join(told)) == list(names)


def test_an_undecided_norm_is_not_certified(spectralclip: Command) -> None:
    assert spectralclip(*AUDIT, "--json", "a.json") == 0
    found = Audit.from_json(Path("a.json"))
    inside = Interval(0.99, 1.02, "probabilistic", 1e-6)
    layers = tuple(_with_norm(layer, inside) for layer in found.layers)
    undecided = Audit(**{**vars(found), "layers": layers})
    assert above(undecided, 1.02, list(FailOn)[:2]) == []
    assert above(undecided, 1.0, [FailOn.layers])[0] == "conv (0.99 .. 1.02, undecided)"


def _with_norm(layer: Any, norm: Interval) -> Any:
    return type(layer)(**{**vars(layer), "norm": norm})


# compare, and the rest


def test_compare_shows_two_audits(spectralclip: Command, folder: Path) -> None:
    assert spectralclip(*CLIP, "-o", "out.pt", "--max-norm", 1) == 0
    assert spectralclip(*AUDIT, "--json", "a.json") == 0
    assert spectralclip(*AUDIT, "--weights", "out.pt", "--json", "b.json") == 0
    assert spectralclip("compare", "a.json", "b.json", "--html", "c.html", "--json", "c.json") == 0
    expected = 1 / dense_norms(weights())["fc"] - 1
    row = next(line for line in spectralclip.output.splitlines() if line.startswith("fc "))
    assert row.endswith(f"{expected:+.1%}")
    assert json.loads(Path("c.json").read_text())["format"] == "spectralclip.comparison"
    assert "<html" in Path("c.html").read_text()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": "other"}', "text", "\xff", None])
def test_compare_refuses_what_is_no_audit(
    spectralclip: Command, folder: Path, content: str | None
) -> None:
    if content is not None:
        (folder / "a.json").write_text(content, encoding="latin-1")
    assert spectralclip("compare", "a.json", "a.json", "--html", "c.html") == 2
    assert re.fullmatch(r"error: [^\n]*a\.json[^\n]*\n", spectralclip.errors)
    assert not Path("c.html").exists()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("audit",), "Missing argument 'MODEL'. See spectralclip audit --help."),
        (("audit", "nets:Net"), "the shape of its input is not known: add --input"),
        (("nothing",), "No such command 'nothing'"),
        (("audit", *NET, "--wrong"), "No such option: --wrong"),
        (("audit", *NET, "-k", "0"), "Invalid value for '-k': "),
        (("audit", *NET, "--tol", "2"), "tol must be a number between 0 and 1"),
        (("audit", *NET, "--fail-on", "layers"), "--fail-on says what --fail-above looks at"),
        (("audit", *NET, "--fail-above", "1", "--fail-on", "all"), "'all' is not one of"),
        (
            (*AUDIT, "--fail-above", "1", "--fail-on", "network"),
            "needs the network's bound: leave out --no-lipschitz",
        ),
        (("audit", *NET, "--html", "a", "--json", "a"), "the same file, a: choose two"),
        (("audit", *NET, "--html", "gone/a"), "cannot write gone/a: No such file or directory"),
        (("audit", *NET, "--html", "."), "cannot write .: Is a directory"),
        (("audit", *NET, "--device", "nowhere"), "--device 'nowhere' cannot be used"),
        (("audit", *NET, "--set", "width"), "--set 'width': expected name=value"),
        (("clip", *NET, "-o", "out.pt"), "Missing option '--weights'"),
    ],
)
def test_bad_usage_is_told_in_one_line(
    spectralclip: Command, folder: Path, args: tuple[str, ...], complaint: str
) -> None:
    assert spectralclip(*args) == 2
    assert spectralclip.output == ""
    assert spectralclip.errors.startswith("error: ") and spectralclip.errors.count("\n") == 1
    assert complaint in spectralclip.errors
    assert files(folder) == {"nets.py", "in.pt"}


def test_demo_is_handed_its_options(spectralclip: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from spectralclip.demo import tour as demo

    asked = []
    monkeypatch.setattr(demo, "run", lambda *given: asked.append(given))
    assert spectralclip("demo", "-o", "there", "--seed", 4, "--quick") == 0
    assert spectralclip("demo") == 0
    assert asked == [(Path("there"), 4, True), (demo.FOLDER, 0, False)]
    assert spectralclip("demo", "--help") == 0
    assert f"; {demo.FOLDER} by default." in " ".join(spectralclip.output.split())


def test_a_warning_is_one_line(spectralclip: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(*args: object, **options: object) -> None:
        warnings.warn("look\nout", stacklevel=1)
        raise KeyboardInterrupt

    monkeypatch.setattr(_app, "audit_model", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert spectralclip(*AUDIT, "--json", "a.json") == 130
    assert spectralclip.errors == "warning: look out\nstopped; nothing was written.\n"
    assert not os.path.exists("a.json")


def test_the_norm_of_an_operator_is_the_oracles() -> None:
    """The dense norms that the tests above rely on, against the library's own."""
    import torch.nn as nn

    conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    conv.weight.data = weights()["conv.weight"]
    found = float(spectral_norm(conv, (3, 6, 6), tol=1e-6))
    assert found == pytest.approx(dense_norms(weights())["conv"], rel=1e-5)
