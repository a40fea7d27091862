from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spectralclip import Audit, AuditComparison, audit
from spectralclip.demo import load_digits
from spectralclip.demo import tour as demo
from spectralclip.demo.network import RECIPES, small_network, train
from spectralclip.demo.pgd import nearest_classes, pgd, predictions

KEYS = ("unclipped", "layers", "composition", "unclipped-tuned")
TIMES = "seconds of training"


class Ran:
    """What one quick run left behind."""

    def __init__(self, folder: Path, output: str, before: Tensor, after: Tensor) -> None:
        self.folder, self.output = folder, output
        self.random_state = before, after

    def table(self) -> dict[str, list[str]]:
        lines = self.output.splitlines()
        start = next(at for at, line in enumerate(lines) if line.startswith("clipped:"))
        rows = lines[start + 2 : start + 12]
        return {line[:27].strip(): line[27:].split() for line in rows}


def ran(folder: Path, seed: int = 0) -> Ran:
    output = io.StringIO()
    before = torch.get_rng_state()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        demo.run(folder, seed, True)
    return Ran(folder, output.getvalue(), before, torch.get_rng_state())


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("demo") / "made" / "on the way")


# the run


def test_writes_the_report(first: Ran) -> None:
    names = {f"{key}.{kind}" for key in (*KEYS, "comparison") for kind in ("json", "html")}
    assert {path.name for path in first.folder.iterdir()} == names
    audits = {key: Audit.from_json(first.folder / f"{key}.json") for key in KEYS}
    change = AuditComparison.from_json(first.folder / "comparison.json")
    assert change.before == audits["unclipped"] and change.after == audits["composition"]
    for key in (*KEYS, "comparison"):
        assert (first.folder / f"{key}.html").read_text().startswith("<!doctype html>")
    assert str(first.folder / "comparison.html") in first.output


def test_the_table_says_what_the_audits_say(first: Ran) -> None:
    table = first.table()
    for column, key in enumerate(KEYS):
        document = json.loads((first.folder / f"{key}.json").read_text())
        layers = document["layers"]
        norms = {
            "largest conv or dense norm": [x for x in layers if x["kind"] in ("Conv2d", "Linear")],
            "largest conv+BN norm": [x for x in layers if x["kind"] == "Conv2d + BatchNorm2d"],
        }
        # Ends are rounded outward: what is printed is still a bound.
        for row, among in norms.items():
            upper = max(layer["norm"]["upper"] for layer in among)
            assert 0.999999 * upper <= float(table[row][column]) <= 1.01 * upper
        lower, upper = (document["lipschitz"][end] for end in ("lower", "upper"))
        assert (
            0.99 * lower <= float(table["Lipschitz constant at least"][column]) <= 1.000001 * lower
        )
        assert (
            0.999999 * upper <= float(table["Lipschitz constant at most"][column]) <= 1.01 * upper
        )


def test_clipped_is_clipped(first: Ran) -> None:
    table = {row: [float(c.rstrip("%")) for c in cells] for row, cells in first.table().items()}
    none, layers, both, _ = table["largest conv or dense norm"]
    assert layers <= 1.001 and both <= 1.001 < none
    assert table["largest conv+BN norm"][2] <= 1.001 < table["largest conv+BN norm"][1]
    assert table["Lipschitz constant at most"][2] <= 1.01
    for column in range(4):
        falling = [table[row][column] for row in list(table)[:4]]
        assert falling == sorted(falling, reverse=True)


@pytest.mark.slow
def test_a_seed_gives_one_table(first: Ran, tmp_path: Path) -> None:
    mine, again = first.table(), ran(tmp_path / "again").table()
    for table in (mine, again):
        assert len(table.pop(TIMES)) == len(KEYS)
    assert again == mine
    other = demo.sheet([demo.measure(RECIPES[0], demo.QUICK, 1)]).rows
    assert {row[0]: row[1] for row in other[:-1]} != {row: one[0] for row, one in mine.items()}


def test_the_global_random_state_is_left_alone(first: Ran) -> None:
    before, after = first.random_state
    assert torch.equal(before, after)


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(demo, "measure", lambda *given: pytest.fail("the work has begun"))
    with pytest.raises(OSError, match="file"):
        demo.run(tmp_path / "file" / "below", quick=True)


# without optional packages


@pytest.fixture
def results(first: Ran) -> list[demo.Result]:
    audits = [Audit.from_json(first.folder / f"{key}.json") for key in KEYS]
    shares = 0.9, (0.8, 0.7, 0.6), 0.5
    return [
        demo.Result(one, *shares, found, 1.0) for one, found in zip(RECIPES, audits, strict=True)
    ]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither rich nor what pages are made of."""
    absent, real_import, real_find = (
        ("rich", "jinja2"),
        builtins.__import__,
        importlib.util.find_spec,
    )

    def imports(name: str, *given: Any) -> Any:
        if name.partition(".")[0] in absent:
            raise ImportError(f"No module named {name!r}", name=name)
        return real_import(name, *given)

    monkeypatch.setattr(builtins, "__import__", imports)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *given: None if name in absent else real_find(name),
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    yield


def test_pages_and_colours_are_optional(
    results: list[demo.Result], bare: None, capsys: pytest.CaptureFixture[str]
) -> None:
    files, complaint = demo.report(results)
    assert set(files) == {f"{key}.json" for key in (*KEYS, "comparison")}
    assert "jinja2" in complaint and "spectralclip[report]" in complaint
    demo._show(demo.sheet(results))
    assert "under attack, radius 0.5" in capsys.readouterr().out


# the attack


def linear(classes: int, seed: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear classifier, points amid the box, their classes, and their distances to others."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, classes)).double().eval()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    images = 0.45 + 0.1 * torch.rand(200, 1, 4, 6, generator=generator, dtype=torch.float64)
    scores = model(images).detach()
    labels = scores.argmax(1)
    weight = model[1].weight.detach()
    gaps = scores.max(1, keepdim=True).values - scores
    slopes = torch.linalg.vector_norm(weight[labels][:, None] - weight[None], dim=2)
    distances = (gaps / slopes).masked_fill(nn.functional.one_hot(labels, classes).bool(), math.inf)
    return model, images, labels, distances.min(1).values


@pytest.mark.parametrize("classes", [2, 10])
def test_a_linear_classifier_falls_where_the_closed_form_says(classes: int) -> None:
    model, images, labels, distances = linear(classes, seed=classes)
    # Within the box from everywhere, so that the closed form, which knows no box, applies.
    radii = distances[distances < 0.4].quantile(torch.tensor([0.2, 0.5, 0.8]).double())
    assert len(radii.unique()) == 3
    for radius in radii.tolist():
        fell = predictions(model, pgd(model, images, labels, radius)) != labels
        clear = (distances / radius - 1).abs() > 1e-3
        assert torch.equal(fell[clear], (distances < radius)[clear])
        assert 0 < int(fell.sum()) < len(fell)


def test_the_nearest_class_of_a_linear_classifier() -> None:
    model, images, labels, distances = linear(10, seed=3)
    weight, scores = model[1].weight.detach(), model(images).detach()
    nearest = nearest_classes(model, images, labels)
    assert nearest.shape == (200, 9) and not (nearest == labels[:, None]).any()
    rows = torch.arange(200)
    gap = scores[rows, labels] - scores[rows, nearest[:, 0]]
    length = torch.linalg.vector_norm(weight[labels] - weight[nearest[:, 0]], dim=1)
    torch.testing.assert_close(gap / length, distances)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    images, labels = (part[:1280] for part in load_digits())
    return train(RECIPES[3], images, labels, epochs=2, seed=0, width=8).model


@pytest.mark.parametrize("radius", [0.3, 1.0, 3.0])
def test_an_attack_stays_near_and_within_the_box(network: nn.Module, radius: float) -> None:
    images, labels = (part[:100] for part in load_digits("test"))
    found = pgd(network, images, labels, radius)
    moved = (found - images).double().flatten(1).norm(dim=1)
    assert 0.3 < float(moved.max()) / radius <= 1
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    wrong = predictions(network, images) != labels
    assert torch.equal(found[wrong], images[wrong])
    broken = predictions(network, found) != labels
    assert torch.equal(moved > 0, broken & ~wrong) and int(broken.sum()) > int(wrong.sum())


def test_no_attack_breaks_what_is_certified(network: nn.Module) -> None:
    images, labels = (part[:100] for part in load_digits("test"))
    radii = audit(network, images[:2]).certified_radius(network(images))
    right = predictions(network, images) == labels
    radius = float(radii[right].median())
    safe = right & (radii > radius)
    assert int(safe.sum()) > 20
    found = pgd(network, images, labels, radius)
    assert torch.equal(predictions(network, found)[safe], labels[safe])


def test_an_attack_leaves_the_network_as_it_was(network: nn.Module) -> None:
    images, labels = (part[:20] for part in load_digits("test"))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.zero_grad()
    pgd(network, images, labels, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_an_attack_refuses_what_it_cannot_judge(network: nn.Module) -> None:
    images, labels = (part[:4] for part in load_digits("test"))
    with pytest.raises(ValueError, match=r"training mode.*\.eval\(\)"):
        pgd(small_network(0, 4).train(), images, labels, 1.0)
    with pytest.raises(ValueError, match=r"within \[0, 1\], got values from 0 to 2"):
        pgd(network, 2 * images / images.max(), labels, 1.0)
    assert pgd(network, images[:0], labels[:0], 1.0).shape == (0, 1, 28, 28)
