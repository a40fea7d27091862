"""How methods say what they are not for, and the small matrices that they share."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from spectralclip import find_layers
from spectralclip._linalg import largest_singular_value
from spectralclip.methods import (
    Delattre,
    Farnia,
    Gouk,
    Miyato,
    Parametrize,
    Sedghi,
    Senderovich,
    Virmaux,
)
from spectralclip.methods._domain import (
    DENSE,
    WEIGHTED,
    OutsideDomain,
    is_batch_norm,
    reshaped_kernel,
    sole_module,
    why_not_plain,
)


class Shouting(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, args, out: 2 * out)
    return layer


def test_the_error_names_the_method_the_layer_and_why() -> None:
    error = OutsideDomain("Sedghi", nn.Conv2d(1, 2, 3, stride=2), "it takes a stride of 1, not 2")
    assert isinstance(error, ValueError)
    text = str(error)
    for part in ("Sedghi", "Conv2d(1, 2", "a stride of 1, not 2", "another method"):
        assert part in text
    assert (error.method, error.why) == ("Sedghi", "it takes a stride of 1, not 2")


def test_the_error_comes_back_from_another_process() -> None:
    error = OutsideDomain("Gouk", nn.ReLU(), "it takes Linear")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.layer == "ReLU()"
    other = OutsideDomain("Gouk", nn.ReLU(), "it takes Linear", "Leave it out.")
    assert str(pickle.loads(pickle.dumps(other))) == str(other)
    assert str(other).endswith("it takes Linear. Leave it out.")


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.Linear(3, 2), ""),
        ([nn.Conv1d(1, 1, 3)], ""),
        (nn.ConvTranspose3d(1, 1, 3), ""),
        (nn.BatchNorm1d(3), "not BatchNorm1d"),
        ([nn.Linear(2, 2), nn.Linear(2, 2)], "not a composition"),
        (torch.sin, "or a function"),
        (Shouting(2, 2), "forward of their own"),
        (hooked(), "without hooks"),
        (parametrizations.weight_norm(nn.Linear(3, 2)), "under a parametrization"),
    ],
)
def test_plain_layers(layer: object, why: str) -> None:
    reason = why_not_plain(layer, *WEIGHTED)
    assert why in reason
    assert bool(reason) == bool(why)


def test_found_layers_are_taken_like_modules() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    composed = find_layers(model, torch.zeros(1, 1, 5, 5))["0+1"]
    alone = find_layers(model, torch.zeros(1, 1, 5, 5), compose="none")
    assert sole_module(composed) is None
    assert sole_module(alone["0"]) is model[0]
    assert "composition" in why_not_plain(composed, *WEIGHTED)
    assert not why_not_plain(alone["0"], *WEIGHTED)
    assert "not Conv2d" in why_not_plain(alone["0"], *DENSE)
    assert is_batch_norm(alone["1"]) and not is_batch_norm(alone["0"])


def test_batch_norms_need_a_scale_and_statistics() -> None:
    assert is_batch_norm(nn.BatchNorm1d(3))
    assert not is_batch_norm(nn.BatchNorm1d(3, affine=False))
    assert not is_batch_norm(nn.BatchNorm1d(3, track_running_stats=False))


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5), (1, 9)])
def test_matrix_norm_by_numpy(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape)
    true = np.linalg.norm(matrix.numpy(), 2)
    assert largest_singular_value(matrix) == pytest.approx(true, rel=1e-6)


def test_matrix_norm_of_batches_and_of_what_is_not_finite() -> None:
    matrices = torch.randn(3, 4, 6)
    expected = max(np.linalg.norm(matrix, 2) for matrix in matrices.numpy())
    assert largest_singular_value(matrices) == pytest.approx(expected, rel=1e-6)
    assert largest_singular_value(torch.zeros(3, 2)) == 0
    matrices[1, 2, 3] = float("inf")
    assert np.isnan(largest_singular_value(matrices))


def test_reshaped_kernels_have_a_row_for_each_output_channel() -> None:
    conv, back = nn.Conv2d(3, 5, (2, 4)), nn.ConvTranspose2d(3, 5, (2, 4))
    assert reshaped_kernel(conv).shape == (5, 24)
    assert torch.equal(reshaped_kernel(conv)[1], conv.weight[1].flatten())
    assert torch.equal(reshaped_kernel(back)[1], back.weight[:, 1].flatten())
    assert torch.equal(reshaped_kernel(conv, 2 * conv.weight), 2 * reshaped_kernel(conv))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "method",
    [Delattre, Farnia, Gouk, Miyato, Parametrize, Sedghi, Senderovich, Virmaux],
    ids=lambda method: method.__name__,
)
def test_there_is_no_estimate_for_weights_that_are_not_finite(method: Any, value: float) -> None:
    conv = nn.Conv2d(2, 3, 3)
    with torch.no_grad():
        conv.weight[0, 0, 1, 1] = value
    with pytest.raises(ValueError, match=r"Conv2d\(2, 3.*finite") as caught:
        method.estimate(conv, (2, 6, 6))
    assert not isinstance(caught.value, OutsideDomain)


def test_there_is_no_estimate_for_a_batch_norm_that_is_not_finite() -> None:
    norm = nn.BatchNorm2d(3)
    norm.running_var[0] = math.nan
    with pytest.raises(ValueError, match=r"Gouk has no estimate of the norm of BatchNorm2d"):
        Gouk.estimate(norm, (3, 4, 4))
