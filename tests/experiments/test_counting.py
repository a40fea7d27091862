"""Operations of runs, against closed forms."""

from __future__ import annotations

import pytest

from experiments.counting import ADDED, Work, work_of
from experiments.experiment import Cell, Config
from experiments.training import TrainConfig


def config(**changes: object) -> Config:
    settings = {"dataset": "mnist", "model": "small", "width": 4, "epochs": 2, "setting": 2}
    return TrainConfig(**(settings | {"train_images": 128, "test_images": 10} | changes)).to_dict()


def work(**changes: object) -> Work:
    found = work_of([Cell("figure_x", "laptop", config(**changes))])
    assert found is not None
    return found


# One convolution to 4 channels with 3 x 3 taps and zero padding, and a dense layer behind it.
FORWARD = 2 * (28 * 28 * 4 * 9 + 4 * 28 * 28 * 10)


def test_a_training_is_three_passes_an_image_and_one_for_tests() -> None:
    assert work().flops == FORWARD * 2 * (3 * 128 + 10)
    assert work().steps == 0  # no method is at work
    assert work(method="gouk", batch=64).steps == 2 * 128 / 64


def test_attacks_are_two_passes_an_iteration_by_each_protocol() -> None:
    pgd = {"eps": 0.1, "steps": 50, "images": 5}
    cw = {"confidence": 0.1, "iterations": 20, "initial_const": 0.1, "images": None, "lr": 0.1}
    more = work(attacks={"pgd": pgd, "cw": cw}).flops - work().flops
    assert more == FORWARD * 2 * (50 * 5 + 20 * 10)
    both = work(attacks={"pgd": pgd, "cw": cw}, protocol="both").flops - work().flops
    assert both == 2 * more


def test_hours_are_of_operations_and_steps() -> None:
    assert Work(7.2e15, 0).hours(1e12) == pytest.approx(2.0)
    assert Work(0.0, 3600 / ADDED).hours(1e12) == pytest.approx(1.0)


def test_runs_that_are_no_trainings_are_not_counted() -> None:
    assert work_of([Cell("figure_x", "laptop", {"k": 3})]) is None
