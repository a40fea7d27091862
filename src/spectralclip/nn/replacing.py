"""From batch norms to the norms of this room, in place, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from spectralclip._operators import AnyBatchNorm, describe
from spectralclip.nn.norms import CenterNorm, ScalarBatchNorm
from spectralclip.nn.statistics import checked_dims

_BATCH_NORMS: dict[int, type[nn.Module]] = {
    1: nn.BatchNorm1d,
    2: nn.BatchNorm2d,
    3: nn.BatchNorm3d,
}
_DIMS = {kind: dims for dims, kind in _BATCH_NORMS.items()}
_TRACK = "make it with track_running_stats=True, and train it"


@torch.no_grad()
def replace_batch_norms_(
    model: nn.Module,
    norm: type[ScalarBatchNorm] | type[CenterNorm] = ScalarBatchNorm,
    *,
    sync: bool = False,
) -> list[str]:
    """Turn every batch norm of a model into a `ScalarBatchNorm` or a `CenterNorm`, in place.

    The modules stay the same objects and change their class, as under torch's parametrizations. So
    names, hooks, modules used twice, training flags, devices, dtypes and the parameters that an
    optimizer holds are as they were. Norms of this room that are there already are left alone. Call
    it before `attach`.

    With `ScalarBatchNorm`, the model computes the same in evaluation, to rounding: `running_var`
    becomes the largest variance, and each weight is multiplied by what its channel loses,
    `sqrt((max var + eps) / (var + eps))`. Without weights (`affine=False`) there is nothing to
    multiply, and outputs change. With `CenterNorm` they always do: means and biases stay, weights
    and variances go. That is for networks that are about to be trained.

    Args:
        model: Any module with `BatchNorm1d`, `BatchNorm2d`, `BatchNorm3d` or `SyncBatchNorm` in it,
            or one of these itself.
        norm: `ScalarBatchNorm` or `CenterNorm`.
        sync: Take statistics over all processes while training. What was a `SyncBatchNorm` does so
            in any case, in its own group of processes.

    Returns:
        The names of the modules that were replaced.

    Raises:
        ValueError: A batch norm is lazy, has no running statistics, or is of a class of its own,
            or two share a weight; nothing has changed.

    Example:
        >>> import torch
        >>> from spectralclip.nn import ScalarBatchNorm, replace_batch_norms_
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        >>> replace_batch_norms_(model, ScalarBatchNorm)
        ['1']
        >>> type(model[1]).__name__
        'ScalarBatchNorm'
    """
    if norm is not ScalarBatchNorm and norm is not CenterNorm:
        raise TypeError(f"norm must be ScalarBatchNorm or CenterNorm, got {norm!r}.")
    found: dict[str, Any] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, AnyBatchNorm) and not isinstance(module, ScalarBatchNorm)
    }
    for name, module in found.items():
        _require_plain(name, module)
    if norm is ScalarBatchNorm:
        _require_own_weights(found)
    for module in found.values():
        settings = {
            "dims": _DIMS.get(type(module)),
            "sync": sync or isinstance(module, nn.SyncBatchNorm),
            "process_group": getattr(module, "process_group", None),
        }
        if norm is ScalarBatchNorm:
            _share_variance(module)
        else:
            del module.weight, module.running_var, module.eps, module.affine
        module.__class__ = norm
        vars(module).update(settings)
    return list(found)


@torch.no_grad()
def to_batch_norms_(
    model: nn.Module, *, eps: float | None = None, dims: int | None = None
) -> list[str]:
    """Turn every `ScalarBatchNorm` and `CenterNorm` of a model into torch's batch norm, in place.

    For use without this library: in evaluation the model computes the same, to rounding. It would
    not if it were trained further, since batch norm normalizes in another way. The modules stay the
    same objects, as with `replace_batch_norms_`. A `CenterNorm` becomes a batch norm with weight 1
    and variance `1 - eps`; without a bias, one without parameters.

    Args:
        model: Any module.
        eps: That of the batch norms; variances make up for another one. By default a
            `ScalarBatchNorm` keeps its own, and a `CenterNorm` gets torch's 1e-5.
        dims: For norms that were not told theirs: 1, 2 or 3, for `BatchNorm1d` to `BatchNorm3d`.

    Returns:
        The names of the modules that were replaced.

    Raises:
        ValueError: A norm has no running statistics, or does not know its number of axes, or its
            variance is too small for this `eps`; nothing has changed.

    Example:
        >>> import torch
        >>> from spectralclip.nn import CenterNorm, to_batch_norms_
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), CenterNorm(8, dims=2))
        >>> to_batch_norms_(model)
        ['1']
        >>> type(model[1]).__name__
        'BatchNorm2d'
    """
    checked_dims(dims)
    found: dict[str, Any] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (ScalarBatchNorm, CenterNorm))
    }
    made = {name: _exported(name, module, eps, dims) for name, module in found.items()}
    for name, module in found.items():
        kind, variance, own_eps = made[name]
        if isinstance(module, CenterNorm):
            vars(module).update(affine=module.bias is not None)
            weight = None if module.bias is None else nn.Parameter(torch.ones_like(module.bias))
            # In torch's order, which is that of the state's keys.
            bias, mean = module._parameters.pop("bias"), module._buffers.pop("running_mean")
            batches = module._buffers.pop("num_batches_tracked")
            module._parameters.update(weight=weight, bias=bias)
            module._buffers.update(
                running_mean=mean, running_var=variance, num_batches_tracked=batches
            )
        else:
            module.running_var.copy_(variance)
        module.eps = own_eps
        del module.sync, module.process_group, module.dims
        module.__class__ = kind
    return list(found)


def _require_plain(name: str, module: Any) -> None:
    """Raise unless a batch norm is torch's own, and has running statistics."""
    if isinstance(module, LazyModuleMixin):
        why = "is lazy and has no size yet: run the model once on an example input"
    elif type(module) not in (*_DIMS, nn.SyncBatchNorm):
        kinds = ", ".join(kind.__name__ for kind in (*_DIMS, nn.SyncBatchNorm))
        why = f"is of a class of its own, expected one of {kinds}: replace it by hand"
    elif module.running_mean is None or module.running_var is None:
        why = f"has no running statistics: {_TRACK}"
    else:
        return
    raise ValueError(
        f"The batch norm {name!r}, {describe(module)}, {why}. Nothing has been replaced."
    )


def _require_own_weights(found: dict[str, Any]) -> None:
    """Raise if weights are shared, which would have to be multiplied for each of their norms."""
    owners: dict[int, str] = {}
    for name, module in found.items():
        if module.weight is not None and owners.setdefault(id(module.weight), name) != name:
            raise ValueError(
                f"The batch norms {owners[id(module.weight)]!r} and {name!r} share a weight, "
                "expected one for each: give them weights of their own. Nothing has been replaced."
            )


def _share_variance(module: Any) -> None:
    """One variance for all channels, and in the weights what this takes from them."""
    largest = module.running_var.amax()
    if module.weight is not None:
        ratio = (largest + module.eps) / (module.running_var + module.eps)
        module.weight.mul_(ratio.sqrt())
    module.running_var.copy_(largest.expand_as(module.running_var))


def _exported(
    name: str, norm: Any, eps: float | None, dims: int | None
) -> tuple[type[nn.Module], Tensor, float]:
    """The class, running variance and eps of the batch norm that computes the same."""
    dims = dims if norm.dims is None else norm.dims
    about = f"The norm {name!r}, {describe(norm)},"
    if dims is None:
        raise ValueError(
            f"{about} does not say how many axes its inputs have: give dims, such as 2 for "
            "BatchNorm2d. Nothing has been replaced."
        )
    if norm.running_mean is None:
        raise ValueError(f"{about} has no running statistics: {_TRACK}. Nothing has been replaced.")
    if isinstance(norm, CenterNorm):
        own_eps = 1e-5 if eps is None else eps
        variance = torch.ones_like(norm.running_mean) - own_eps
    else:
        own_eps = norm.eps if eps is None else eps
        variance = norm.running_var + (norm.eps - own_eps)
    if not own_eps >= 0 or not bool((variance >= 0).all()):
        raise ValueError(
            f"{about} cannot have eps={own_eps:g}: expected one that is not negative, and at most "
            "the variance plus eps that it divides by now. Nothing has been replaced."
        )
    return _BATCH_NORMS[dims], variance, own_eps
