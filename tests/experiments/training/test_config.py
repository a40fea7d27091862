"""Settings of a training: checked by name, and through JSON unchanged."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from study_training import CONFIG
from torch import nn

pytest.importorskip("scipy", reason="the study measures norms by SciPy")

from experiments.training import TrainConfig, recipe


def changed_attack(name: str, **changes: object) -> dict[str, Any]:
    return {"attacks": {name: {**CONFIG["attacks"][name], **changes}}}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"widht": 3}, r"unknown settings \['widht'\].*known are"),
        ({"optimizer": "lion"}, "optimizer must be one of"),
        ({"measure": "all"}, "measure must be one of"),
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"train_images": 0}, "train_images must be a whole number"),
        ({"attacks": {"pgd": {"eps": 1}}}, "attacks must be among"),
        ({"attacks": {"fgsm": {}}}, "attacks must be among .*'fgsm'"),
        ({"attacks": {"pgd": None}}, "attacks must be among .*'pgd' with None"),
        ({"attacks": ["pgd"]}, "attacks must be settings by the name"),
        ({"method": "goku"}, "there is no method 'goku'"),
        ({"method": "gouk+bn", "batch_norm": False}, "the network has none"),
        ({"method": "gouk:evry=1"}, "no setting 'evry'"),
        ({"model": "mine"}, "model must be one of"),
        ({"dataset": "mine"}, "dataset must be one of"),
        ({"setting": 7}, "setting must be one of"),
        ({"setting": True}, "setting must be one of"),
        ({"model": "resnet18"}, "setting must be .*None for others, got 3 for 'resnet18'"),
        ({"epochs": None}, "epochs must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number, at least 0"),
        ({"seed": -1}, "seed must be a whole number, at least 0"),
        ({"lr": math.nan}, "lr must be a finite number above 0"),
        ({"lr": -1}, "lr must be a finite number above 0"),
        ({"lr": math.inf}, "lr must be a finite number above 0"),
        ({"lr_gamma": 0}, "lr_gamma must be a finite number above 0"),
        ({"momentum": -0.9}, "momentum must be a finite number, at least 0"),
        ({"weight_decay": math.nan}, "weight_decay must be a finite number, at least 0"),
        ({"adam_eps": -1}, "adam_eps must be a finite number, at least 0"),
        ({"max_norm": -1}, "max_norm must be a finite number above 0"),
        ({"max_norm": {"conv": 1, "linear": -1}}, "max_norm of layer 'linear' must be"),
        ({"max_norm": {}}, "max_norm must name at least one layer"),
        ({"max_lipschitz": 0}, "max_lipschitz must be a finite number above 0"),
        ({"score_scale": 0}, "score_scale must be a finite number above 0"),
        ({"schedule": "cosine"}, "schedule must be one of"),
        ({"norm": "layer"}, "norm must be one of"),
        ({"batch_norm": 1}, "batch_norm must be True or False"),
        ({"amp": None}, "amp must be True or False"),
        (changed_attack("pgd", eps=-1), "eps of attack 'pgd' must be"),
        (changed_attack("pgd", steps=0), "steps of attack 'pgd' must be"),
        (changed_attack("pgd", images=0), "images of attack 'pgd' must be"),
        (changed_attack("cw", confidence=math.nan), "confidence of attack 'cw' must be"),
        (changed_attack("cw", initial_const=math.nan), "initial_const of attack 'cw' must be"),
        (changed_attack("cw", iterations=1.5), "iterations of attack 'cw' must be"),
        (changed_attack("cw", lr=0), "lr of attack 'cw' must be"),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig.of({**CONFIG, **changes})


def test_what_may_be_left_open_is() -> None:
    config = {**CONFIG, **changed_attack("pgd", images=None), "max_norm": {"conv": 2}}
    assert TrainConfig.of({**config, "train_images": None, "lr_step": None}).batch == 16


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"needs \['epochs'\]"):
        TrainConfig.of({"dataset": "digits", "model": "small"})


def test_a_configuration_survives_json() -> None:
    config = TrainConfig.of(CONFIG)
    assert TrainConfig.of(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_the_rate_follows_torch_for_the_papers_recipes(dataset: str) -> None:
    config = TrainConfig(dataset=dataset, model="resnet18", **recipe(dataset))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], config.lr)
    step = config.lr_step or config.epochs
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step, config.lr_gamma)
    for epoch in range(config.epochs):
        assert config.rate(epoch) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    with pytest.raises(ValueError, match="no recipe"):
        recipe("imagenet")


def test_a_cycle_rises_for_a_fifth_and_falls_to_zero() -> None:
    config = TrainConfig.of({**CONFIG, "epochs": 10, "lr": 0.5, "schedule": "one_cycle"})
    assert [config.rate(at) for at in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.25, 0.5, 0.25, 0])


def test_a_bound_of_the_network_takes_the_place_of_those_of_layers() -> None:
    assert TrainConfig.of({**CONFIG, "max_norm": 2.0}).bounds() == {"max_norm": 2.0}
    config = TrainConfig.of({**CONFIG, "max_lipschitz": 30.0})
    assert config.bounds() == {"max_lipschitz": 30.0}
