"""Reading the suite, and our own functions on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import spectralclip as sc
from conformance.peers import by_kernel
from spectralclip.integrations.conformance import ConformanceLayer, default_folder, load

LAYERS = load()
EVERY = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


@EVERY
@pytest.mark.sampled(9)
def test_our_norms_are_right(layer: ConformanceLayer) -> None:
    found = float(sc.spectral_norm(layer.make(), layer.in_shape, tol=1e-6))
    assert found == pytest.approx(layer.value, rel=2e-6, abs=0)


@EVERY
@pytest.mark.sampled(9)
def test_our_intervals_hold_the_truth(layer: ConformanceLayer) -> None:
    for deterministic in (False, True):
        found = sc.norm_bounds(layer.make(), layer.in_shape, deterministic=deterministic)
        assert found.lower <= layer.norm.upper
        assert found.upper >= layer.norm.lower
        assert found.upper <= 1.02 * layer.value


@EVERY
@pytest.mark.sampled(9)
def test_kernels_as_arrays_have_the_norm_of_the_layer(layer: ConformanceLayer) -> None:
    by_module = float(sc.spectral_norm(layer.make().double(), layer.in_shape, tol=1e-7))
    for layout in ("OIHW", "HWIO"):
        found = by_kernel(layer.make(), layer.in_shape, layout)
        assert found == pytest.approx(by_module, rel=1e-6, abs=0)
        assert found == pytest.approx(layer.value, rel=1e-6, abs=0)


@EVERY
@pytest.mark.sampled(5)
def test_modules_are_what_the_document_says(layer: ConformanceLayer) -> None:
    module = layer.make()
    assert tuple(module(torch.zeros(1, *layer.in_shape)).shape[1:]) == layer.out_shape
    assert not module.training
    assert module.weight.dtype == torch.float32
    np.testing.assert_array_equal(module.weight.detach().numpy(), layer.weight)
    module.weight.data.zero_()
    assert layer.value == 0 or layer.weight.any()  # each call makes its own


def test_our_reader_reads_what_safetensors_does() -> None:
    expected = load_file(default_folder() / "layers.safetensors")
    assert expected.keys() == {layer.name for layer in LAYERS}
    for layer in LAYERS:
        np.testing.assert_array_equal(layer.weight, expected[layer.name])


def test_another_folder_is_read(tmp_path: Path) -> None:
    for name in ("truth.json", "layers.safetensors"):
        shutil.copy(default_folder() / name, tmp_path)
    assert [layer.name for layer in load(tmp_path)] == [layer.name for layer in LAYERS]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "There is no conformance suite in .*give the folder conformance/"),
        ("[", "cannot be read"),
        ("{}", "lacks 'version'"),
        (json.dumps({"version": 2}), "of version 2, expected 1"),
        (json.dumps({"version": 1, "weights": "none"}), "There is no conformance suite"),
    ],
)
def test_what_is_no_suite_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "truth.json").write_text(text)
    with pytest.raises(ValueError, match=says):
        load(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="There is no conformance suite in"):
        load(default_folder() / "truth.json")
