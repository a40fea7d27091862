"""`--input`: example inputs from their description."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spectralclip.cli._example_inputs import InputSpec, example_inputs, parse_input
from spectralclip.cli._problems import Problem


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
