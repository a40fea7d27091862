"""MODEL and --set: from the words of the command line to models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_cases import NETS
from torch import nn

from spectralclip.cli._model_source import load, parse_options
from spectralclip.cli._problems import Problem


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, whose modules are forgotten afterwards."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text("import sys\n" + NETS)
    (tmp_path / "broken_file.py").write_text("x = 1\nimport not_there_at_all\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in repr(module):
            del sys.modules[name]


@pytest.mark.parametrize(
    "text",
    ["nets:Net", "nets.py:Net", "./nets.py:Net", "package.inner:Net", "package/inner.py:Net"],
)
def test_factories_are_found(text: str) -> None:
    model = load(text, {"width": 6}).model
    assert type(model).__name__ == "Net"
    assert model.get_parameter("conv.weight").shape[0] == 6


def test_a_module_is_taken_as_it_is() -> None:
    model = load("nets:ready", {}).model
    assert model is sys.modules["nets"].ready
    with pytest.raises(Problem, match="is a module already: --set has nothing to set"):
        load("nets:ready", {"width": 6})


def test_a_file_never_takes_the_place_of_another_module(folder: Path) -> None:
    (folder / "json.py").write_text(NETS)
    usual = sys.modules["json"]
    assert isinstance(load("json.py:ready", {}).model, nn.Module)
    assert sys.modules["json"] is usual


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nets", "expected module.path:factory, file.py:factory, timm:NAME"),
        (":Net", "expected module.path:factory"),
        ("nets:", "expected module.path:factory"),
        ("timm:", "expected a name after 'timm:'"),
        ("gone:Net", "cannot import gone: there is no module 'gone' here"),
        ("package.gone:Net", "there is no module 'package.gone' here"),
        ("gone.py:Net", "cannot read gone.py: No such file"),
        ("gone.pt2", "cannot read gone.pt2: No such file"),
        ("broken_file:Net", r"No module named 'not_there_at_all' \(line 2 of .*broken_file.py\)"),
        ("broken_file.py:Net", r"No module named 'not_there_at_all' \(line 2 of .*broken_file"),
        ("syntax.py:Net", "cannot import syntax.py: SyntaxError"),
        ("nets:Nett", "there is no 'Nett' in nets; it has Net, "),
        ("nets:Net.gone", "there is no 'gone' in nets"),
        ("nets:number", "expected a class, a function or a module, got int"),
        ("nets:nothing", "expected it to make a torch.nn.Module, got int"),
        ("nets:broken", r"raised ValueError: the width is missing \(line \d+ of .*nets.py\)"),
        ("nets:quits", "raised SystemExit: gone"),
    ],
)
def test_what_is_no_model_is_named(text: str, complaint: str) -> None:
    with pytest.raises(Problem, match=complaint) as caught:
        load(text, {})
    assert "\n" not in str(caught.value)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(Problem, match=r"unexpected keyword argument 'depth'.*--set name=value"):
        load("nets:Net", {"depth": 2})


def test_a_program_needs_trust(folder: Path) -> None:
    (folder / "net.pt2").write_bytes(b"x")
    with pytest.raises(Problem, match="can run code while it is loaded: add --trust"):
        load("net.pt2", {})
    with pytest.raises(Problem, match="--set has nothing to set"):
        load("net.pt2", {"width": 1}, trust=True)


@pytest.mark.parametrize("package", ["timm", "transformers"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Problem, match=f"needs the package {package}.*pip install {package}"):
        load(f"{package}:something", {})


def test_options_are_literals_or_words() -> None:
    given = ["a=1", "b=0.5", "c=(1, 2)", "d=text", "e=None", "f=true", "g=a=b", "h="]
    assert parse_options(given) == {
        **{"a": 1, "b": 0.5, "c": (1, 2), "d": "text", "e": None, "f": True, "g": "a=b", "h": ""},
    }
    for wrong in ("a", "=1", "a b=1"):
        with pytest.raises(Problem, match="expected name=value"):
            parse_options([wrong])


# transformers, without a network


@pytest.fixture
def bert(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        num_labels=3,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "bert")
    return folder / "bert"


def test_a_saved_model_comes_with_head_and_weights(bert: Path) -> None:
    source = load(f"transformers:{bert}", {})
    assert type(source.model).__name__ == "BertForSequenceClassification"
    assert not source.random
    import safetensors.torch

    saved = safetensors.torch.load_file(bert / "model.safetensors")
    assert torch.equal(source.model.get_parameter("classifier.weight"), saved["classifier.weight"])


def test_a_configuration_alone_gives_random_weights(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    source = load(f"transformers:{bert}", {"num_hidden_layers": 2})
    assert source.random
    model: Any = source.model
    assert model.config.num_hidden_layers == 2


def test_transformers_errors_are_one_line(folder: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(Problem, match="there is no such folder"):
        load("transformers:./gone", {})
    (folder / "empty").mkdir()
    with pytest.raises(Problem, match="transformers:empty") as caught:
        load("transformers:empty", {})
    assert "\n" not in str(caught.value)


def test_code_beside_a_configuration_is_never_run(folder: Path) -> None:
    pytest.importorskip("transformers")
    own = folder / "own"
    own.mkdir()
    trace = folder / "trace"
    (own / "config.json").write_text(
        '{"model_type": "own", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Net"}}'
    )
    (own / "code.py").write_text(f"open({str(trace)!r}, 'w')\nclass Config: pass\n")
    with pytest.raises(Problem, match="transformers:own"):
        load("transformers:own", {})
    assert not trace.exists()
