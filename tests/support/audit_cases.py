"""Audits of the zoo, and the dense matrices to hold against them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from zoo import BY_NAME

from oracle import dense_matrix
from spectralclip._audit import Audit, LayerAudit, audit


@functools.cache
def audited(name: str) -> tuple[nn.Module, Audit]:
    specimen = BY_NAME[name]
    model = specimen.model()
    return model, audit(model, specimen.inputs(), lipschitz=False)


def dense(model: nn.Module, layer: LayerAudit) -> Tensor:
    parts = [model.get_submodule(part) for part in layer.parts]
    return torch.from_numpy(dense_matrix(parts, layer.in_shape))


def norm(operator: Tensor) -> float:
    return float(torch.linalg.matrix_norm(operator, 2))
