"""MODEL, --set and --input: from the command line's words to models and inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_cases import NETS
from torch import nn

from spectralclip.cli._example_inputs import InputSpec, example_inputs, parse_input
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


# Inputs


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("3,32,32", InputSpec("", (3, 32, 32))),
        ("3x32x32", InputSpec("", (3, 32, 32))),
        ("7", InputSpec("", (7,))),
        ("16:int64", InputSpec("", (16,), torch.int64)),
        ("16:int64:100", InputSpec("", (16,), torch.int64, 100)),
        ("ids=16:int32:9", InputSpec("ids", (16,), torch.int32, 9)),
        (":int64", InputSpec("", (), torch.int64)),
    ],
)
def test_inputs_are_read(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected .NAME=.SHAPE"),
        ("3,,3", "positive whole numbers"),
        ("3,0", "positive whole numbers"),
        ("-1", "positive whole numbers"),
        ("3:complex64", "unknown type 'complex64'; one of float16"),
        ("3:float32:7", "goes with an integer type only"),
        ("3:int64:0", "goes with an integer type only"),
        ("3:int64:7:9", "expected .NAME=.SHAPE"),
        ("a-b=3", "expected .NAME=.SHAPE"),
    ],
)
def test_other_inputs_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(Problem, match=complaint):
        parse_input(text)


def test_inputs_follow_the_model_and_the_seed() -> None:
    model = nn.ModuleList([nn.Embedding(5, 2), nn.Embedding(9, 2)]).double()
    specs = [parse_input("3,4"), parse_input("40:int64"), parse_input("40:int32:9")]
    numbers, ids, more = example_inputs(specs, model, batch=2, seed=1)
    assert (numbers.shape, numbers.dtype) == ((2, 3, 4), torch.float64)
    assert (ids.dtype, int(ids.max())) == (torch.int64, 4)
    assert (more.dtype, int(more.max())) == (torch.int32, 8)
    again = example_inputs(specs, model, batch=2, seed=1)
    other = example_inputs(specs, model, batch=2, seed=2)
    assert torch.equal(again[0], numbers)
    assert not torch.equal(other[0], numbers)


def test_inputs_by_name() -> None:
    model = nn.Linear(3, 3)
    found = example_inputs([parse_input("a=3"), parse_input("b=2:bool")], model)
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "a": torch.float32,
        "b": torch.bool,
    }
    with pytest.raises(Problem, match="a name to every input, or to none"):
        example_inputs([parse_input("a=3"), parse_input("3")], model)
    with pytest.raises(Problem, match="two inputs have the same name"):
        example_inputs([parse_input("a=3"), parse_input("a=4")], model)


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
