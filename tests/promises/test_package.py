"""What a user installs: the wheel, what it needs, what it imports, and the bundled digits."""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pickle
import struct
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import spectralclip
from spectralclip.demo.digits import load_digits

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "src" / "spectralclip" / "demo" / "data" / "digits.npz"


def test_exported_classes_are_named_by_where_users_find_them() -> None:
    for name in spectralclip.__all__:
        exported = getattr(spectralclip, name)
        if isinstance(exported, type):
            assert exported.__module__ == "spectralclip"
            assert pickle.loads(pickle.dumps(exported)) is exported
    assert not {"Step", "Unbounded", "Comparison"} & set(spectralclip.__all__)


def test_what_a_type_checker_sees_is_what_is_there() -> None:
    tree = ast.parse(Path(spectralclip.__file__).read_text())
    seen = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spectralclip"):
            room = (node.module or "").partition(".")[2]
            seen |= {alias.name: room for alias in node.names}
    subpackages = {name for name, room in seen.items() if not room}
    assert subpackages == set(spectralclip._SUBPACKAGES)
    assert {name: room for name, room in seen.items() if room} == spectralclip._ROOM_OF
    assert set(spectralclip.__all__) == set(seen) - {"demo", "integrations", "nn"}
    assert set(spectralclip.__all__) <= set(dir(spectralclip))
    with pytest.raises(AttributeError, match="'spectralclip' has no attribute 'svd'"):
        spectralclip.svd  # noqa: B018


def test_names_are_imported_when_they_are_asked_for() -> None:
    code = (
        "import sys, torch, spectralclip\n"
        "print([m for m in sys.modules if m.startswith('spectralclip.')])\n"
        "spectralclip.svds\n"
        "print('spectralclip._spectrum' in sys.modules, 'spectralclip._training' in sys.modules)"
    )
    assert run(sys.executable, "-c", code).splitlines() == ["[]", "True False"]


def run(*command: object, **environment: str) -> str:
    """Run a command away from the source tree, show what it said if it failed."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        [str(part) for part in command],
        env=inherited | environment,
        # From the root of the source tree, an import might find the tree itself.
        cwd=sys.prefix,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


# The wheel


def declared_closure(*names: str) -> list[importlib.metadata.Distribution]:
    """The named distributions and all that they declare to require, transitively."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        for line in found[name].requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return list(found.values())


def link_distributions(distributions: list[importlib.metadata.Distribution], folder: Path) -> None:
    for distribution in distributions:
        site_packages = Path(str(distribution.locate_file("")))
        top_level = {file.parts[0] for file in distribution.files or []}
        for name in top_level - {"..", "__pycache__"}:
            link = folder / name
            if not link.exists():
                link.symlink_to(site_packages / name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_data_licences_and_type_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        digits = archive.read("spectralclip/demo/data/digits.npz")
        for name in ("truth.json", "layers.safetensors"):  # the conformance suite
            packed = archive.read(f"spectralclip/integrations/conformance/data/{name}")
            assert packed == (ROOT / "conformance" / name).read_bytes()
    assert digits == DIGITS.read_bytes()
    assert {"spectralclip/py.typed", "spectralclip/demo/data/DIGITS_LICENSE.md"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    top_level = {name.split("/")[0] for name in names}
    assert top_level == {"spectralclip", f"spectralclip-{spectralclip.__version__}.dist-info"}


INSPECT_INSTALLED = """
import importlib.util, json
from importlib.resources import files
import spectralclip
from spectralclip.integrations.conformance import load
from spectralclip.demo.digits import load_digits

print(json.dumps({
    "version": spectralclip.__version__,
    "file": spectralclip.__file__,
    "typed": files("spectralclip").joinpath("py.typed").is_file(),
    "train": list(load_digits("train")[0].shape),
    "test": list(load_digits("test")[0].shape),
    "conformance": len(load()),
    "development_tools": [
        name for name in ("pytest", "scipy", "hypothesis") if importlib.util.find_spec(name)
    ],
}))
"""


@pytest.mark.slow
def test_wheel_works_with_torch_and_numpy_alone(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    requirements = tmp_path / "requirements"
    requirements.mkdir()
    link_distributions(declared_closure("torch", "numpy"), requirements)

    found = json.loads(run(python, "-c", INSPECT_INSTALLED, PYTHONPATH=str(requirements)))

    # Otherwise the environment would prove nothing about what the wheel needs.
    assert found["development_tools"] == []
    assert Path(found["file"]).is_relative_to(environment)
    assert found["version"] == spectralclip.__version__
    assert found["version"] == importlib.metadata.version("spectralclip")
    assert found["typed"]
    assert found["train"] == [4000, 1, 28, 28]
    assert found["test"] == [1000, 1, 28, 28]
    assert found["conformance"] == 200


# What importing costs

OPTIONAL = (
    "accelerate",
    "hypothesis",
    "jinja2",
    "jsonschema",
    "lightning",
    "matplotlib",
    "psutil",
    "pytest",
    "rich",
    "safetensors",
    "scipy",
    "selenium",
    "sympy",
    "tensorboard",
    "timm",
    "transformers",
    "typer",
    "vl_convert",
    "wandb",
)

MODULES_ADDED_BY_IMPORT = """
import json, sys
import torch, numpy
before = set(sys.modules)
import spectralclip
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_pulls_in_no_optional_package(tmp_path: Path) -> None:
    # An import that is attempted and forgiven shows only where the package can be found.
    for name in OPTIONAL:
        if importlib.util.find_spec(name) is None:
            (tmp_path / f"{name}.py").touch()

    output = run(sys.executable, "-c", MODULES_ADDED_BY_IMPORT, PYTHONPATH=str(tmp_path))

    modules = json.loads(output)
    assert not [name for name in modules if name.startswith("spectralclip.integrations")]
    added = {module.partition(".")[0] for module in modules}
    assert "spectralclip" in added
    assert added - set(sys.stdlib_module_names) <= {"spectralclip", "torch", "numpy"}


FIRST_CALLS = """
import sys
import torch
from torch import nn
import spectralclip as sc


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        return 2 * self.conv(x)


shape = (3, 8, 8)
layers = nn.Conv2d(3, 4, 2, stride=2), nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(3), Own()
for layer in layers:
    spectrum = sc.svds(layer, shape, k=3)
    sc.norm_bounds(layer, shape)
    sc.set_spectrum_(layer, shape, spectrum, lambda S: 2 * S)
    sc.clip_(layer, max_norm=0.1, in_shape=shape)
sc.clip_(nn.Linear(8, 8), max_norm=0.1, in_shape=(8,))
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
sc.lipschitz_bounds(model, torch.zeros(1, *shape))
sc.audit(model, torch.zeros(1, *shape), progress=False)
print("sympy" in sys.modules)
"""


def test_no_first_call_imports_sympy() -> None:
    """It takes two seconds; `torch.unravel_index` and gradients against a vector import it."""
    assert run(sys.executable, "-c", FIRST_CALLS).strip() == "False"


# The digits


@pytest.mark.parametrize(("split", "per_class"), [("train", 400), ("test", 100)])
def test_digits_are_balanced_images_in_the_unit_range(split: str, per_class: int) -> None:
    images, labels = load_digits(split)
    assert images.shape == (10 * per_class, 1, 28, 28)
    assert images.dtype == torch.float32
    assert images.min() == 0
    assert images.max() == 1
    assert labels.dtype == torch.int64
    assert torch.bincount(labels).tolist() == [per_class] * 10


@pytest.mark.parametrize(
    ("split", "sha256"),
    [
        ("train", "9bb29e014dfa15ce48fa9745d9ab1a175a2db3e81b08852af395d152b4b3058e"),
        ("test", "c2607999153c1b75b505480f806c0645f9d7fba021a52ca3a5835bb478c728ae"),
    ],
)
def test_digits_are_those_of_mnist(split: str, sha256: str) -> None:
    images, labels = load_digits(split, dtype=torch.float64)
    pixels = (images * 255).round().to(torch.uint8)
    content = pixels.numpy().tobytes() + labels.to(torch.uint8).numpy().tobytes()
    assert hashlib.sha256(content).hexdigest() == sha256


def test_digits_file_is_the_one_its_licence_describes() -> None:
    assert hashlib.sha256(DIGITS.read_bytes()).hexdigest() in (
        DIGITS.with_name("DIGITS_LICENSE.md").read_text(encoding="utf-8")
    )
    assert DIGITS.stat().st_size < 1_500_000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_digits_come_in_the_dtype_asked_for(dtype: torch.dtype) -> None:
    images, labels = load_digits("test", dtype=dtype)
    assert images.dtype == dtype
    assert images.max() == 1
    assert labels.dtype == torch.int64


def test_digits_refuse_what_they_cannot_give() -> None:
    with pytest.raises(ValueError, match='"train" or "test", got \'validation\''):
        load_digits("validation")
    with pytest.raises(TypeError, match=r"floating point type.*got torch\.uint8"):
        load_digits("test", dtype=torch.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 0x08, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_make_digits_takes_the_first_of_each_class_and_repeats_itself(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat(np.arange(10, dtype=np.uint8), 410))
    images = random.integers(0, 256, size=(len(labels), 2, 3), dtype=np.uint8)
    for prefix in ("train", "t10k"):
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte.gz", labels)

    made = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for output in made:
        script = ROOT / "tools" / "make_digits.py"
        run(sys.executable, script, "--mnist", tmp_path, "--output", output)

    assert made[0].read_bytes() == made[1].read_bytes()
    taken = dict.fromkeys(range(10), 0)
    expected = []
    for index, label in enumerate(labels.tolist()):
        taken[label] += 1
        if taken[label] <= 100:
            expected.append(index)
    with np.load(made[0], allow_pickle=False) as arrays:
        assert arrays["train_images"].shape == (4000, 2, 3)
        np.testing.assert_array_equal(arrays["test_images"], images[expected])
        np.testing.assert_array_equal(arrays["test_labels"], labels[expected])
