"""The training loop: what it computes, what it measures, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from study_training import ADAM, BATCHES, CONFIG, EPOCHS, begun, text
from torch import nn
from torch.nn import functional

pytest.importorskip("scipy", reason="the study measures norms by SciPy")

from experiments.data import load, subset
from experiments.experiment import Context
from experiments.measuring.norms import layers_to_measure, true_norms
from experiments.models import build
from experiments.training import TrainConfig, TrainingDiverged, batches, evaluate, train
from experiments.training.process_group import ProcessGroup

# --- What is computed -----------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, ADAM], ids=["sgd", "adam"])
def test_the_loop_is_the_usual_one(changes: dict[str, Any], tmp_path: Path) -> None:
    found = begun(tmp_path, **{"attacks": None, **changes})["result"]
    config = TrainConfig.of({**CONFIG, **changes})
    data = subset(load("digits"), 48, 40, seed=5)
    model = build("small", width=3, batch_norm=True, dataset=data, seed=5, setting=3)
    if changes:
        optimizer = torch.optim.Adam(model.parameters(), 2e-3, eps=1e-7, weight_decay=5e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    losses = []
    for epoch in range(EPOCHS):
        for images, labels in batches.batches(data, config, epoch, 1):
            loss = functional.cross_entropy(model(images / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
    means = [sum(losses[k : k + BATCHES]) / BATCHES for k in range(0, len(losses), BATCHES)]
    assert [epoch["loss"] for epoch in found["epochs"]] == pytest.approx(means, rel=1e-4)
    model.eval()
    right = (model(data.test_images / 255).argmax(1) == data.test_labels).float().mean()
    assert found["test_accuracy"] == pytest.approx(right.item())
    layers = layers_to_measure(model, data.test_images[:1] / 255, "compositions")
    assert found["norms"] == pytest.approx(true_norms(model, layers), rel=1e-4)


def test_a_network_is_held_from_an_orthogonal_start(tmp_path: Path) -> None:
    """Its constant, by rules: the scale of the scores times the norms along the chain."""
    changes = {"max_lipschitz": 20.0, "at_bound": True, "score_scale": 4.0, "norm": "center"}
    cycle = {"schedule": "one_cycle", "nesterov": True, "attacks": None}
    found = begun(tmp_path, method="spectral_clip", **changes, **cycle)["result"]
    assert sorted(found["layers"]) == ["network.conv", "network.linear"]
    product = found["final_norms"]["network.conv"] * found["final_norms"]["network.linear"]
    assert 0.5 * 20 < 4 * product <= 20 * (1 + 1e-6)


def test_an_epoch_has_every_image_once_in_an_order_of_its_own() -> None:
    data = subset(load("digits"), 48, 40)
    config = TrainConfig.of({**CONFIG, "augment": False})
    orders = []
    for epoch in range(2):
        images = torch.cat([batch for batch, _ in batches.batches(data, config, epoch, 1)])
        flat, known = images.flatten(1).float(), data.train_images.flatten(1).float()
        orders.append(torch.cdist(flat, known).argmin(1))
        assert torch.equal(orders[-1].sort().values, torch.arange(48))
    assert not torch.equal(*orders)
    again = torch.cat([batch for batch, _ in batches.batches(data, config, 1, 1)])
    assert torch.equal(again, images)


def test_augmentation_depends_on_seed_and_epoch() -> None:
    data = subset(load("digits"), 48, 40)
    drawn = {}
    for seed in (1, 2):
        config = TrainConfig.of({**CONFIG, "seed": seed})
        for epoch in (0, 1):
            drawn[seed, epoch] = next(batches.batches(data, config, epoch, 1))[0].sum().item()
    assert len(set(drawn.values())) == 4


def test_a_rest_that_is_too_small_is_left_out() -> None:
    config = TrainConfig.of({**CONFIG, "batch": 16})
    assert [batches.count(config, images, 1) for images in (32, 33, 34, 2)] == [2, 2, 3, 1]
    assert [batches.count(config, images, 2) for images in (35, 36)] == [2, 3]
    with pytest.raises(ValueError, match="train_images"):
        batches.count(config, 1, 1)


def test_nothing_global_changes(tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    first = begun(tmp_path / "first", method="fast_clip")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert text(begun(tmp_path / "second", method="fast_clip")) == text(first)
    assert torch.get_num_threads() == threads


# --- What is reported -----------------------------------------------------------------------


def test_the_result_has_what_is_promised(tmp_path: Path) -> None:
    outcome = begun(tmp_path, method="spectral_clip_conv_bn", max_norm=0.5)
    result, timing = outcome["result"], outcome["timing"]
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2, 3]
    assert result["layers"] == list(result["norms"]) == list(result["final_norms"])
    assert sorted(result["layers"]) == ["bn", "conv", "conv+bn", "linear"]
    assert list(result["epochs"][0]["tracked"]) == ["conv+bn", "linear"]
    assert result["norms"] == result["epochs"][-1]["norms"]
    assert result["final_norms"]["conv+bn"] <= 0.5 * 1.001
    assert result["parameters"] == 3 * 9 + 6 + 3 * 14 * 14 * 10 + 10
    for key in ("test_accuracy", "pgd_accuracy", "cw_accuracy"):
        assert 0 <= result[key] <= 1
    assert sum(timing["epochs"]) + timing["attacks"] <= timing["total"]
    json.dumps(outcome, allow_nan=False)


def test_norms_are_kept_where_the_method_promises_it(tmp_path: Path) -> None:
    changes = {"batch_norm": False, "attacks": None, "measure": "layers", "max_norm": 0.4}
    free = begun(tmp_path / "free", **changes)["result"]
    kept = begun(tmp_path / "kept", method="spectral_clip", **changes)["result"]
    assert all(norm > 0.5 for norm in free["norms"].values())
    assert all(norm <= 0.4 * 1.01 for epoch in kept["epochs"] for norm in epoch["norms"].values())
    assert all(norm <= 0.4 * 1.001 for norm in kept["final_norms"].values())
    assert free["final_norms"] is None and free["pgd_accuracy"] is None


def test_attacks_by_both_protocols_are_those_by_each(tmp_path: Path) -> None:
    changes = {"dataset": "synthetic", "lr": 0.01, "seed": 6}
    found = {
        protocol: begun(tmp_path / protocol, protocol=protocol, **changes)["result"]
        for protocol in ("pixels", "paper", "both")
    }
    both = found["both"].pop("paper_protocol")
    assert found["both"] == found["pixels"]
    assert both == {key: found["paper"][key] for key in ("pgd_accuracy", "cw_accuracy")}
    assert both["pgd_accuracy"] != found["pixels"]["pgd_accuracy"]


def test_attacked_images_are_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("digits")
    model = build("small", width=3, batch_norm=True, dataset=data, seed=5, setting=3).eval()
    seen: list[torch.Tensor] = []

    def noted(model: nn.Module, images: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        seen.append(images)
        return images

    monkeypatch.setattr(evaluate, "pgd_linf", noted)

    def attacked(seed: int, test_images: int | None) -> torch.Tensor:
        seen.clear()
        attacks = {"pgd": {"eps": 0.1, "steps": 1, "images": 150}}
        config = TrainConfig.of(
            {**CONFIG, "seed": seed, "test_images": test_images, "attacks": attacks}
        )
        group = ProcessGroup.joined("cpu")
        evaluate.attacked_accuracy("pgd", "pixels", model, data, config, group, lambda share: None)
        return torch.cat(seen)

    first = attacked(0, None)
    assert len(first) == len(first.flatten(1).unique(dim=0)) == 150
    assert torch.equal(first, attacked(0, None))
    assert not torch.equal(first, attacked(1, None))
    # A part of the test images was drawn by the seed already.
    assert torch.equal(attacked(0, 200), data.test_images[:150].float() / 255)


def test_batch_norms_on_gpus_see_the_whole_batch() -> None:
    model = build("small", width=3, batch_norm=True, dataset=load("digits"), seed=5, setting=3)
    names = list(model.state_dict())
    for size, device in ((1, "cuda"), (2, "cpu")):
        same = ProcessGroup(0, size, torch.device(device)).with_common_statistics(model)
        assert not any(isinstance(part, nn.SyncBatchNorm) for part in same.modules())
    shared = ProcessGroup(0, 2, torch.device("cuda")).with_common_statistics(model)
    assert sum(isinstance(part, nn.SyncBatchNorm) for part in shared.modules()) == 1
    assert list(shared.state_dict()) == names


def test_a_bound_for_some_layers_leaves_the_others_free(tmp_path: Path) -> None:
    changes = {"batch_norm": False, "attacks": None, "max_norm": {"conv": 0.2}}
    result = begun(tmp_path, method="spectral_clip", **changes)["result"]
    assert result["norms"]["conv"] <= 0.2 * 1.01 < 0.5 < result["norms"]["linear"]


def test_without_measuring_norms_are_there_at_the_end_alone(tmp_path: Path) -> None:
    result = begun(tmp_path, measure="none", attacks=None)["result"]
    assert all(epoch["norms"] == {} for epoch in result["epochs"])
    assert list(result["norms"]) == result["layers"] == ["conv", "linear"]


def test_progress_goes_from_nothing_to_one(tmp_path: Path) -> None:
    shares: list[float] = []
    context = Context(None, tmp_path, say=lambda share, words: shares.append(share))
    train(CONFIG, context)
    assert shares == sorted(shares) and 0 < shares[0] < 0.2 and shares[-1] == pytest.approx(1.0)


# --- What goes wrong ------------------------------------------------------------------------


def test_a_loss_that_is_no_number_ends_the_run_early(tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"the loss is (nan|inf) at epoch 1, batch [23]"):
        begun(tmp_path, lr=1e30, batch_norm=False)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_weights_that_are_lost_with_the_last_step_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"'conv.weight' is not finite after epoch 1"):
        begun(tmp_path, lr=1e30, weight_decay=1e30, batch_norm=False, train_images=16)
