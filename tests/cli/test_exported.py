"""Exported programs get their layers back: the same names, shapes and spectra as the model's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.nn import functional

from spectralclip import find_layers, skipped_layers, spectral_norm
from spectralclip.cli._exported import load_program
from spectralclip.cli._problems import Problem


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, (3, 5), padding=(1, 2), padding_mode="reflect"), nn.BatchNorm2d(4)
        )
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.down = nn.Conv2d(4, 4, 3, stride=2, dilation=2, padding="valid")
        self.up = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)
        self.same = nn.Conv2d(6, 2, 3, padding="same")
        self.twice = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)
        self.bare = nn.Parameter(torch.randn(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.stem(x)))
        x = functional.max_pool2d(torch.relu(self.down(x)), 2)
        x = self.same(torch.relu(self.up(x))).mean((2, 3))
        x = self.twice(torch.relu(self.twice(torch.relu(x))))
        return functional.linear(torch.relu(self.norm(x)), self.bare)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.convolution = nn.Conv1d(4, 3, 2)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.convolution(self.embedding(ids).transpose(1, 2)))


def statistics_(model: nn.Module) -> nn.Module:
    """Batch norms as after training."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for value in (module.weight, module.running_var):
                value.data = 0.5 + torch.rand(value.shape, generator=generator)
            module.running_mean.data = torch.randn(value.shape, generator=generator)
    return model


def exported(model: nn.Module, example: Tensor, path: Path, decompose: bool = False) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own ways
        program = torch.export.export(model.eval(), (example,))
        if decompose:
            program = program.run_decompositions()
        torch.export.save(program, path)
    return load_program(path)[0]


IMAGES = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(2))
IDS = torch.tensor([[1, 2, 6, 0, 3]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[nn.Module, nn.Module]:
    with seeded(0):
        model = statistics_(Net())
        return model, exported(model, IMAGES, folder / "net.pt2")


def test_the_program_computes_the_same(pair: tuple[nn.Module, nn.Module]) -> None:
    model, program = pair
    torch.testing.assert_close(program(IMAGES), model(IMAGES), rtol=0, atol=0)


def test_its_weights_keep_their_names(pair: tuple[nn.Module, nn.Module]) -> None:
    model, program = pair
    own = program.state_dict()
    assert set(own) == set(model.state_dict())
    assert all(torch.equal(own[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("compose", ["none", "conv_bn", "chains"])
def test_the_same_layers_are_found(pair: tuple[nn.Module, nn.Module], compose: Any) -> None:
    model, program = pair
    expected = find_layers(model, IMAGES, compose)
    found = find_layers(program, IMAGES, compose)
    assert list(found) == list(expected)
    for name, layer in expected.items():
        assert [type(part) for part in found[name].modules] == [type(p) for p in layer.modules]
        assert (found[name].in_shapes, found[name].uses) == (layer.in_shapes, layer.uses)
        for shape in layer.in_shapes:
            one, other = (spectral_norm(list(x.modules), shape) for x in (layer, found[name]))
            torch.testing.assert_close(one, other)
    # What the model calls as a function is passed over in both, and said.
    assert (
        set(skipped_layers(program, IMAGES)) == set(skipped_layers(model, IMAGES)) == {"", "norm"}
    )


def test_token_ids_and_one_dimension(folder: Path) -> None:
    model = statistics_(Words())
    program = exported(model, IDS, folder / "words.pt2")
    torch.testing.assert_close(program(IDS), model(IDS), rtol=0, atol=0)
    assert list(find_layers(program, IDS)) == list(find_layers(model, IDS))


def test_decomposed_programs_keep_what_can_be_told(folder: Path) -> None:
    model = statistics_(Net())
    program = exported(model, IMAGES, folder / "core.pt2", decompose=True)
    torch.testing.assert_close(program(IMAGES), model(IMAGES))
    found, expected = find_layers(program, IMAGES), find_layers(model, IMAGES)
    assert {"blocks.0.conv+blocks.0.norm", "up", "down"} <= set(found)
    # Dense layers have become products of matrices, which are affine all the same.
    one, other = (spectral_norm(layers["twice"].modules[0], 2) for layers in (found, expected))
    torch.testing.assert_close(one, other)


def test_other_sizes_of_the_batch(pair: tuple[nn.Module, nn.Module]) -> None:
    model, program = pair
    torch.testing.assert_close(program(IMAGES[:1]), model(IMAGES[:1]))


def test_the_inputs_of_the_export_come_along(folder: Path) -> None:
    _, example = load_program(folder / "net.pt2")
    assert example is not None and [tuple(x.shape) for x in example] == [(2, 3, 12, 12)]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"nothing"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(content)
    with pytest.raises(Problem, match=r"bad\.pt2: expected an exported program"):
        load_program(path)
