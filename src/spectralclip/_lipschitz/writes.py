"""Operations that write values to places by index: linear where no place is written twice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectralclip._lipschitz.chain_norms import Norms
from spectralclip._lipschitz.flow import Flow, Node
from spectralclip._lipschitz.reasons import TWICE
from spectralclip._lipschitz.rules import Rule, RuleOf, measured


def _put_counts(node: Node, zeros: Tensor) -> Tensor:
    one = torch.ones((), dtype=zeros.dtype, device=zeros.device)
    return torch.index_put(zeros, node.argument("indices"), one, accumulate=True)


def _scatter_counts(node: Node, zeros: Tensor) -> Tensor:
    index = node.argument("index")
    ones = torch.ones(index.shape, dtype=zeros.dtype, device=zeros.device)
    return zeros.scatter_add(node.argument("dim"), index, ones)


def _copy_counts(node: Node, zeros: Tensor) -> Tensor:
    dim, index = node.argument("dim"), node.argument("index")
    shape = list(zeros.shape)
    if shape:
        shape[dim] = index.numel()
    ones = torch.ones(shape, dtype=zeros.dtype, device=zeros.device)
    return zeros.index_add(dim, index, ones)


def _written_once(counts: Callable[[Node, Tensor], Tensor]) -> RuleOf:
    """Values are written, unless they accumulate; `counts` says how many to each place."""

    def rule(node: Node, flow: Flow, norms: Norms) -> Rule:
        if not node.argument("accumulate", False):
            zeros = torch.zeros(node.shape, dtype=torch.float32, device=node.device)
            written = counts(node, zeros)
            if written.numel() and float(written.max()) > 1:
                return Rule(reason=TWICE)
        return measured(node, flow, norms)

    return rule


index_put = _written_once(_put_counts)
scatter = _written_once(_scatter_counts)
index_copy = _written_once(_copy_counts)
