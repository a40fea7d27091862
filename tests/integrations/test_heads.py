"""Attention heads in dashboards, against dense products of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from integration_parts import BoardNotes, Notes, RunNotes, read_lines
from seeds import seeded
from torch import Tensor, nn

from spectralclip import Attachment, attach
from spectralclip.integrations import HeadLogger, NormCallback, NormLogger
from spectralclip.integrations.csv import CsvWriter
from spectralclip.integrations.tensorboard import TensorBoardWriter
from spectralclip.integrations.wandb import WandbWriter
from spectralclip.methods import SpectralClip

HEADS, WIDTH, SIZE = 2, 4, 8
EXAMPLE = torch.zeros(1, 5, SIZE)


def network() -> Any:
    """Two blocks, whose biases count."""
    with seeded(0):
        block = nn.TransformerEncoderLayer(SIZE, HEADS, 16, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        for parameter in model.parameters():
            nn.init.normal_(parameter, 0.0, 0.5)
    return model


def factors(attention: Any, head: int) -> dict[str, tuple[Tensor, ...]]:
    """The four parts of a head, with their biases as a further column."""
    packed = torch.cat([attention.in_proj_weight, attention.in_proj_bias[:, None]], 1).detach()
    own = slice(WIDTH * head, WIDTH * head + WIDTH)
    q, k, v = (part[own].double() for part in packed.chunk(3))
    return {"logit": (q, k), "value": (attention.out_proj.weight.detach().double().T[own], v)}


def dense_norms(model: Any) -> dict[str, float]:
    """The norms of all products, by their names."""
    found = {}
    for place, block in enumerate(model.layers):
        for head in range(HEADS):
            for kind, (first, second) in factors(block.self_attn, head).items():
                scale = WIDTH**-0.5 if kind == "logit" else 1.0
                norm = scale * float(torch.linalg.matrix_norm(first.T @ second, 2))
                found[f"layers.{place}.self_attn[{head}].{kind}"] = norm
    return found


def largest(norms: Mapping[str, float]) -> dict[str, float]:
    """Over the heads of each layer."""
    names = {name.replace(f"[{head}]", "") for name in norms for head in range(HEADS)}
    return {
        name: max(norms[name.replace(".self_attn", f".self_attn[{n}]")] for n in range(HEADS))
        for name in names
        if "[" not in name
    }


def held(model: Any, rate: float = 0.01) -> tuple[torch.optim.SGD, Attachment]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    method = SpectralClip(compose="heads", project_momentum=False)
    return optimizer, attach(model, optimizer, EXAMPLE, method=method, max_norm=0.5)


def set_gradients(model: nn.Module) -> None:
    """Those that make every product grow."""
    for parameter in model.parameters():
        parameter.grad = -parameter.detach().clone()


def test_heads_that_are_held_have_norm_bound_and_pressure(tmp_path: Path) -> None:
    model = network()
    optimizer, attachment = held(model)
    logger = NormLogger(CsvWriter(tmp_path / "norms.csv"), attachment, every=2)
    starts = []
    for _ in range(2):
        starts = [factors(b.self_attn, h) for b in model.layers for h in range(HEADS)]
        set_gradients(model)
        optimizer.step()
        logger.step()
    found = {name: value for (_, name), value in read_lines(tmp_path / "norms.csv").items()}
    true = dense_norms(model)
    assert len(true) == 8
    for name, norm in true.items():
        assert found[f"spectral_norm/{name}"] == pytest.approx(norm, rel=1e-3)
        assert found[f"spectral_norm_bound/{name}"] == 0.5
    ends = [factors(b.self_attn, h) for b in model.layers for h in range(HEADS)]
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for kind in ("logit", "value"):
            # Plain descent multiplies all weights by 1.01; what was there after it is known.
            before = torch.cat([part.flatten() for part in start[kind]])
            after = torch.cat([part.flatten() for part in end[kind]])
            share = (after - 1.01 * before).norm() / (0.01 * before).norm()
            name = f"layers.{place // HEADS}.self_attn[{place % HEADS}].{kind}"
            pressure = found[f"spectral_norm_pressure/{name}"]
            assert pressure > 0.1
            assert pressure == pytest.approx(float(share), rel=1e-3)


def test_the_largest_of_each_layer_where_nothing_is_attached(tmp_path: Path) -> None:
    model = network()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    logger = HeadLogger(CsvWriter(tmp_path / "norms.csv"), model, EXAMPLE, every=2)
    expected = {}
    for step in range(1, 5):
        set_gradients(model)
        optimizer.step()
        logger.step()
        if step % 2 == 0:
            for name, norm in largest(dense_norms(model)).items():
                expected[step, f"spectral_norm_heads/{name}"] = pytest.approx(norm, rel=1e-6)
    assert len(expected) == 8
    assert read_lines(tmp_path / "norms.csv") == expected


def test_the_model_is_only_looked_at() -> None:
    model = network()
    model.train()
    set_gradients(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    versions = [parameter._version for parameter in model.parameters()]
    random = torch.get_rng_state()
    HeadLogger(Notes(), model, EXAMPLE).write()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert versions == [parameter._version for parameter in model.parameters()]
    assert all(torch.equal(p.grad, -p) for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_resumed_loop_gives_its_own_count() -> None:
    notes = Notes()
    logger = HeadLogger(notes, network(), EXAMPLE, every=10)
    for step in (101, 105, 105, 109, 113, 113, 120):
        logger.step(step)
    assert notes.steps == [113, 120]
    logger.write(7)
    assert notes.steps == [113, 120, 7]


def test_weights_that_are_not_finite_are_written_as_such() -> None:
    model, notes = network(), Notes()
    logger = HeadLogger(notes, model, EXAMPLE)
    model.layers[1].self_attn.in_proj_weight.data[0, 0] = math.nan
    logger.write()
    assert len(notes.records[0].heads) == 4
    assert all(map(math.isnan, notes.records[0].heads.values()))


def test_other_dashboards_have_the_same_names() -> None:
    model, board, run = network(), BoardNotes(), RunNotes()
    HeadLogger(TensorBoardWriter(board), model, EXAMPLE).write(3)
    HeadLogger(WandbWriter(run), model, EXAMPLE).write(3)  # type: ignore[arg-type]
    expected = {f"spectral_norm_heads/{name}" for name in largest(dense_norms(model))}
    assert {name for name, _, step in board.scalars if step == 3} == expected
    assert board.histograms == []  # which are over layers
    assert set(run.rows[0]) == {*expected, "spectral_norm_step"}
    assert run.axes["spectral_norm_heads/*"] == "spectral_norm_step"


def test_tensorboard_reads_the_curves_back(tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed: it is in the integrations extra"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model = network()
    optimizer, attachment = held(model)
    set_gradients(model)
    optimizer.step()
    with SummaryWriter(tmp_path) as writer:
        HeadLogger(TensorBoardWriter(writer), model, EXAMPLE).write(1)
        NormLogger(TensorBoardWriter(writer), attachment).write()
    curves = EventAccumulator(str(tmp_path)).Reload()
    true = dense_norms(model)
    for names, group in ((true, "spectral_norm"), (largest(true), "spectral_norm_heads")):
        for name, norm in names.items():
            (event,) = curves.Scalars(f"{group}/{name}")
            assert event.value == pytest.approx(norm, rel=1e-3)


def test_an_offline_run_has_the_latest_heads(tmp_path: Path) -> None:
    wandb = pytest.importorskip(
        "wandb", reason="wandb is not installed: it is in the integrations extra"
    )
    model = network()
    settings = wandb.Settings(silent=True, console="off")
    with wandb.init(mode="offline", dir=tmp_path, project="heads", settings=settings) as run:
        HeadLogger(WandbWriter(run), model, EXAMPLE).write(1)
        summary = dict(run.summary)
    for name, norm in largest(dense_norms(model)).items():
        assert summary[f"spectral_norm_heads/{name}"] == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("compose", ["none", "heads"])
def test_callbacks_log_them_too(compose: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = SpectralClip(compose=compose)
    callback = NormCallback(EXAMPLE, method=method, max_norm=0.5, log_heads=EXAMPLE)
    callback._start(model, [optimizer], None)
    set_gradients(model)
    optimizer.step()
    logged = callback._logged()
    for name, norm in largest(dense_norms(model)).items():
        assert logged[f"spectral_norm_heads/{name}"] == pytest.approx(norm, rel=1e-6)
    assert ("spectral_norm/layers.0.self_attn[1].value" in logged) == (compose == "heads")
    callback.remove()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Linear has no attention head.*NormLogger instead"):
        HeadLogger(Notes(), nn.Linear(4, 4), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="positive number of steps, got 0"):
        HeadLogger(Notes(), network(), EXAMPLE, every=0)
    with pytest.raises(TypeError, match=r"writer must have a method write\(record\).*got None"):
        HeadLogger(None, network(), EXAMPLE)  # type: ignore[arg-type]
