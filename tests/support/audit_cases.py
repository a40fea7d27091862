"""Audits of the zoo, and the dense matrices to hold against them."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from zoo import BY_NAME

from spectralclip._audit import Audit, LayerAudit, audit


@functools.cache
def audited(name: str) -> tuple[nn.Module, Audit]:
    specimen = BY_NAME[name]
    model = specimen.model()
    return model, audit(model, specimen.inputs(), lipschitz=False)


def matrix(modules: Sequence[nn.Module], in_shape: Sequence[int]) -> Tensor:
    """The operator of a composition by its images of all basis vectors, in float64."""
    if isinstance(modules[0], nn.Embedding):
        assert len(modules) == 1
        return modules[0].weight.detach().double().T
    wide = copy.deepcopy(nn.ModuleList(modules)).double().eval()

    def apply(x: Tensor) -> Tensor:
        for module in wide:
            x = module(x)
        return x.flatten(1)

    with torch.no_grad():
        n = math.prod(in_shape)
        images = apply(torch.eye(n, dtype=torch.float64).reshape(n, *in_shape))
        return (images - apply(torch.zeros(1, *in_shape, dtype=torch.float64))).T


def dense(model: nn.Module, layer: LayerAudit) -> Tensor:
    return matrix([model.get_submodule(part) for part in layer.parts], layer.in_shape)


def norm(operator: Tensor) -> float:
    return float(torch.linalg.matrix_norm(operator, 2))
