"""`spectralclip conformance`: a function of the user's against the suite."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_cases import Command

from spectralclip.integrations.conformance import default_folder

NORMS = """
import torch

def as_matrix(module, in_shape):
    print("on the way")
    return torch.linalg.matrix_norm(module.weight.flatten(1), 2)

def too_large(module, in_shape):
    return 1.5 * as_matrix(module, in_shape)

NUMBER = 3
"""


@pytest.fixture(autouse=True)
def norms(folder: Path) -> None:
    (folder / "norms.py").write_text(NORMS)


def test_prints_a_table_and_writes_the_answers(spectralclip: Command) -> None:
    args = ("conformance", "norms.py:as_matrix", "--only", "dense", "--only", "blur*")
    assert spectralclip(*args, "--json", "out.json") == 0, spectralclip.errors
    lines = spectralclip.output.splitlines()
    assert lines[0] == "conformance, right within 0.001"
    assert next(line for line in lines if line.startswith("dense")).split()[:3] == [
        *("dense", "16", "16")
    ]
    assert "right on 16 of 18 layers" in spectralclip.output
    assert "Farthest off: blur" in spectralclip.output
    assert "on the way" not in spectralclip.output
    document = json.loads(Path("out.json").read_text())
    assert (document["suite"], len(document["layers"])) == (1, 18)


@pytest.mark.parametrize(
    ("function", "require", "code"),
    [
        ("as_matrix", "right", 0),
        ("too_large", "right", 1),
        ("too_large", "upper", 0),
        ("too_large", "lower", 1),
    ],
)
def test_the_exit_code_tells_what_is_required(
    spectralclip: Command, function: str, require: str, code: int
) -> None:
    args = ("conformance", f"norms:{function}", "--only", "dense-n*", "--require", require)
    assert spectralclip(*args) == code
    assert ("on 1 of 1 layers: dense-normal." in spectralclip.errors) == (code == 1)


def test_another_suite(spectralclip: Command, folder: Path) -> None:
    (folder / "suite").mkdir()
    for name in ("truth.json", "layers.safetensors"):
        shutil.copy(default_folder() / name, folder / "suite")
    args = ("conformance", "spectralclip:spectral_norm", "--only", "haar", "--suite", "suite")
    assert spectralclip(*args, "--require", "right") == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("norms",), "FUNCTION 'norms': expected module.path:name or file.py:name"),
        (("norms:nothing",), "there is no 'nothing' in norms; it has NUMBER, as_matrix"),
        (("norms:NUMBER",), "expected a function, got int"),
        (("nowhere:f",), "FUNCTION 'nowhere:f': cannot import nowhere: there is no module"),
        (("norms:as_matrix", "--only", "convs"), "--only 'convs' fits no layer: give one of"),
        (("norms:as_matrix", "--suite", "."), "There is no conformance suite in ."),
        (("norms:as_matrix", "--json", "no/where.json"), "no"),
        (("norms:as_matrix", "--tol", "0"), "tol"),
    ],
)
def test_bad_arguments_are_one_line(
    spectralclip: Command, args: tuple[str, ...], says: str
) -> None:
    assert spectralclip("conformance", *args) == 2
    assert spectralclip.errors.startswith("error: ")
    assert spectralclip.errors.count("\n") == 1
    assert says in spectralclip.errors
