"""What belongs to a layer and to the world around it, to compare before and after."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from cases import modules, parts
from torch import Tensor, nn

HOOKS = [
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
]


def tensor_state(tensor: Tensor) -> tuple[Any, ...]:
    """Identity, place, number of in-place writes, and content."""
    return (
        *(id(tensor), tensor.data_ptr(), tensor._version, tensor.dtype, tensor.stride()),
        *(tensor.requires_grad, tensor.is_leaf, tensor.detach().clone()),
    )


def state(layer: Any) -> dict[str, Any]:
    """Everything about a layer that a user could notice."""
    found: dict[str, Any] = {}
    for index, part in enumerate(parts(layer)):
        if isinstance(part, nn.Module):
            found[f"{index}: keys"] = list(part.state_dict())
            for key, tensor in part.state_dict(keep_vars=True).items():
                found[f"{index}: {key}"] = tensor_state(tensor)
                found[f"{index}: {key}.grad"] = (
                    None if tensor.grad is None else tensor_state(tensor.grad)
                )
    for index, module in enumerate(modules(layer)):
        found[f"module {index}: training"] = module.training
        found[f"module {index}: type"] = type(module)
        found[f"module {index}: attributes"] = list(module.__dict__)
        for hooks in HOOKS:
            # Hooks as torch keeps them: in order, under their number.
            found[f"module {index}: {hooks}"] = list(getattr(module, hooks).items())
    return found


def surroundings() -> dict[str, Any]:
    numpy_state = np.random.get_state()
    return {
        "torch rng": torch.get_rng_state(),
        "numpy rng": (numpy_state[1].tolist(), numpy_state[2]),
        "python rng": random.getstate(),
        "grad enabled": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def equal(before: Any, after: Any) -> bool:
    """Equality, bit by bit for tensors."""
    if isinstance(before, Tensor):
        return isinstance(after, Tensor) and torch.equal(
            before.contiguous().view(-1).view(torch.uint8),
            after.contiguous().view(-1).view(torch.uint8),
        )
    if isinstance(before, (tuple, list)):
        return (
            type(before) is type(after)
            and len(before) == len(after)
            and all(map(equal, before, after))
        )
    return bool(before == after)


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert list(before) == list(after)
    changed = [key for key in before if not equal(before[key], after[key])]
    assert not changed


def disturb(layer: Any) -> None:
    """Gradients on some parameters, others frozen: what a layer in training looks like."""
    seen = {}
    for module in modules(layer):
        for parameter in module.parameters():
            seen[id(parameter)] = parameter
    for index, parameter in enumerate(seen.values()):
        if index % 2 == 0:
            parameter.grad = torch.full_like(parameter, 0.25)
        if index % 3 == 2:
            parameter.requires_grad_(False)
