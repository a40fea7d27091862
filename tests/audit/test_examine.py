"""The numbers of one layer, against dense matrices and against torch."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from audit_cases import audited, dense
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from zoo import BY_NAME

from oracle import dense_norm


@pytest.mark.parametrize("name", BY_NAME)
def test_spectra_are_those_of_the_dense_matrix(name: str) -> None:
    model, found = audited(name)
    for layer in found.layers:
        operator = dense(model, layer)
        values = torch.linalg.svdvals(operator)[:10]
        assert operator.shape[0] == math.prod(layer.out_shape), layer.name
        shown = torch.tensor(layer.singular_values, dtype=torch.float64)
        torch.testing.assert_close(shown, values, rtol=0.011, atol=1e-6, msg=layer.name)
        assert list(layer.singular_values) == sorted(layer.singular_values, reverse=True)
        frobenius = float(torch.linalg.matrix_norm(operator))
        assert layer.frobenius_is_exact
        assert layer.frobenius == pytest.approx(frobenius, rel=1e-6), layer.name
        rank = frobenius**2 / float(values[0]) ** 2
        assert layer.stable_rank == pytest.approx(rank, rel=0.021), layer.name


def seen_by_torch(module: nn.Module) -> float:
    """By how much torch's spectral_norm divides the weight."""
    other = copy.deepcopy(module).double().train()  # it iterates while training
    weight = other.weight.detach().clone()
    spectral_norm(other, n_power_iterations=1000)
    return float(weight.norm() / other.weight.detach().norm())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BY_NAME)
def test_reshaped_norm_is_what_torch_divides_by(name: str) -> None:
    model, found = audited(name)
    known: dict[nn.Module, float] = {}
    for layer in found.layers:
        modules = [model.get_submodule(part) for part in layer.parts]
        kernels = [m for m in modules if getattr(m, "weight", None) is not None]
        kernels = [m for m in kernels if m.weight.ndim > 1]
        if len(kernels) != 1:
            assert layer.reshaped_norm is None, layer.name
        else:
            truth = known.setdefault(kernels[0], 0.0) or seen_by_torch(kernels[0])
            known[kernels[0]] = truth
            assert layer.reshaped_norm == pytest.approx(truth, rel=2e-4), layer.name


@pytest.mark.parametrize("name", BY_NAME)
def test_batch_norm_and_the_rest_of_a_chain(name: str) -> None:
    model, found = audited(name)
    for layer in found.layers:
        modules = [model.get_submodule(part) for part in layer.parts]
        norms = [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        rest = [m for m in modules if m not in norms]
        if layer.role == "layer" or not norms:
            assert layer.batch_norm is layer.linear is None and not layer.compensates
            continue
        factors = [m.weight / torch.sqrt(m.running_var + m.eps) for m in norms]
        alone = math.prod(float(factor.detach().abs().max()) for factor in factors)
        linear = dense_norm(rest, layer.in_shape)
        assert layer.batch_norm == pytest.approx(alone, rel=1e-5), layer.name
        assert layer.linear == pytest.approx(linear, rel=0.011), layer.name
