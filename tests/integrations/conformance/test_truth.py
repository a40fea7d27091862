"""The suite's truth: against torch's own forward, and one certified method against another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from conformance import norms
from conformance.cases import formulas
from conformance.layer import Layer
from conformance.matrices import matrix
from oracle import dense_matrix, true_norm
from spectralclip.integrations.conformance import ConformanceLayer, load

ROOT = Path(__file__).resolve().parents[3]
LAYERS = load()
EVERY = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)


def written(layer: ConformanceLayer) -> Layer:
    """A layer of the files as the scripts have it."""
    entry = layer.geometry
    return Layer(
        layer.name,
        layer.kind,
        layer.weight,
        layer.in_shape,
        tuple(entry["stride"]),
        tuple((low, high) for low, high in entry["padding"]),
        tuple(entry["dilation"]),
        entry["groups"],
        entry["padding_mode"],
        tuple(entry["output_padding"]) if "output_padding" in entry else None,
    )


@EVERY
@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_the_matrix_is_that_of_torch(layer: ConformanceLayer) -> None:
    defined, module = matrix(written(layer)), layer.make()
    if max(defined.shape) <= 1000:
        entries = dense_matrix(module, layer.in_shape)
        largest = np.abs(entries).max(initial=0)
        np.testing.assert_allclose(defined.toarray(), entries, rtol=1e-12, atol=1e-12 * largest)
        return
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, *layer.in_shape, generator=generator, dtype=torch.float64)
    images = module.double()(x).detach().flatten(1).numpy()
    np.testing.assert_allclose((defined @ x.flatten(1).numpy().T).T, images, atol=1e-10)


@EVERY
@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_the_oracle_agrees(layer: ConformanceLayer) -> None:
    scale = 2.0 ** -np.floor(np.log2(layer.value)) if layer.value else 1.0  # ARPACK squares it
    module = layer.make().double()
    module.weight.data.mul_(scale)
    found = true_norm(module, layer.in_shape, tol=1e-9).value / scale
    assert layer.norm.lower * (1 - 1e-8) <= found <= layer.norm.upper * (1 + 1e-8)


def test_every_part_is_there() -> None:
    kinds = {layer.kind: 0 for layer in LAYERS}
    for layer in LAYERS:
        kinds[layer.kind] += 1
        assert layer.norm.lower <= layer.value <= layer.norm.upper <= layer.norm.lower * (1 + 1e-6)
    assert kinds == {
        **{"grid": 96, "transposed": 24, "shapes": 20, "dense": 16, "repeated": 16},
        **{"scales": 12, "large": 4, "trained": 12},
    }
    modules = {layer.geometry["module"] for layer in LAYERS}
    assert modules == {
        "Linear",
        *(f"Conv{axes}d" for axes in (1, 2, 3)),
        *(f"ConvTranspose{axes}d" for axes in (1, 2, 3)),
    }
    assert {layer.norm.kind for layer in LAYERS} == {"dense", "symbol", "cholesky"}


def test_the_files_are_small_and_made_by_the_script() -> None:
    folder = ROOT / "conformance"
    assert (folder / "layers.safetensors").stat().st_size < 2**20
    seed = json.loads((folder / "truth.json").read_text())["seed"]
    made = {layer.name: layer for layer in formulas(seed)}
    assert len(made) == 188  # all but the trained ones
    for layer in LAYERS:
        if layer.kind != "trained":
            np.testing.assert_allclose(layer.weight, made[layer.name].weight, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["conv2d-reflect-s2-d1-g2", "transposed1d-s2-d1-g2-o1"])
def test_a_cholesky_factor_proves_what_lapack_finds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = written(next(layer for layer in LAYERS if layer.name == name))
    by_lapack = norms.certified(layer)
    monkeypatch.setattr(norms, "DENSE_SIDE", 0)
    by_cholesky = norms.certified(layer)
    assert (by_lapack.method, by_cholesky.method) == ("dense", "cholesky")
    assert by_cholesky.lower <= by_lapack.value <= by_cholesky.upper
    assert by_cholesky.second == pytest.approx(by_lapack.second, rel=1e-6)
    # A bound that is too small has no factor.
    monkeypatch.setattr(norms, "SHIFT", -1e-6)
    with pytest.raises(np.linalg.LinAlgError):
        norms.certified(layer)


def test_symbols_are_those_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = next(layer for layer in LAYERS if layer.name == "conv2d-circular-s1-d2-g1")
    by_lapack = norms.certified(written(layer))
    monkeypatch.setattr(norms, "DENSE_SIDE", 0)
    by_symbols = norms.certified(written(layer))
    assert by_symbols.method == "symbol"
    assert by_symbols.value == pytest.approx(by_lapack.value, rel=1e-12)
