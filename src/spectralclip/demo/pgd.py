"""An attack on a classifier: projected gradient steps in the l2 norm, towards the nearest classes.

Each digit is pushed towards one other class at a time, the one that is nearest by the
linearization first. The push follows the difference of two scores, and not the cross-entropy:
that difference has a gradient of its own size however sure the network is, so that networks whose
scores differ a thousandfold are attacked with the same force.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Rounding must not carry a point out of the ball.
INSIDE = 1 - 1e-6
TINY = 1e-30


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    radius: float,
    *,
    steps: int = 20,
    targets: int = 2,
) -> Tensor:
    """Images near the given ones that the model takes for another class, where some are found.

    Nothing here is random. Images that the model gets wrong already come back as they are.

    Args:
        model: From images to scores, in evaluation mode.
        images: With values in [0, 1], where those of the attack stay.
        labels: Their classes.
        radius: How far an image may move, in the l2 norm.
        steps: Steps towards each class.
        targets: How many of the nearest classes are tried.

    Returns:
        One image for each: the first found that is taken for another class; where there was none,
        the image itself.

    Raises:
        ValueError: The model is in training mode, or an image is outside [0, 1].

    Example:
        >>> import torch
        >>> from spectralclip.demo.pgd import pgd
        >>> model = torch.nn.Linear(2, 2, bias=False).eval()
        >>> model.weight.data = torch.eye(2)
        >>> image, label = torch.tensor([[0.6, 0.4]]), torch.tensor([0])
        >>> [model(pgd(model, image, label, r)).argmax().item() for r in (0.14, 0.15)]
        [0, 1]
    """
    if model.training:
        raise ValueError(
            f"{type(model).__name__} is in training mode, where digits of a batch influence each "
            "other: call .eval() before the attack."
        )
    if images.numel() and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise ValueError(
            f"images must be within [0, 1], got values from {float(images.min()):.4g} to "
            f"{float(images.max()):.4g}."
        )
    found = images.clone()
    left = torch.nonzero(predictions(model, images) == labels).flatten()
    if not len(left):
        return found
    order = nearest_classes(model, images[left], labels[left])
    for rank in range(min(targets, order.shape[1])):
        target = order[:, rank]
        tried = _towards(model, images[left], labels[left], target, radius, steps)
        moved = predictions(model, tried) != labels[left]
        found[left[moved]] = tried[moved]
        left, order = left[~moved], order[~moved]
        if not len(left):
            break
    return found


@torch.no_grad()
def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """The class of each image in the eyes of the model."""
    return torch.cat([model(part).argmax(1) for part in images.split(500)])


def nearest_classes(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """For each image, the other classes, nearest first.

    The distance to class j is `(z_y - z_j) / ||grad (z_y - z_j)||`, which is exact where the
    scores z are affine.
    """
    x = images.detach().requires_grad_()
    scores = model(x)
    own = scores.gather(1, labels[:, None])
    distances = []
    for other in range(scores.shape[1]):
        gap = own[:, 0] - scores[:, other]
        (slope,) = torch.autograd.grad(gap.sum(), x, retain_graph=True)
        distances.append(gap.detach() / _lengths(slope).flatten().clamp_min(TINY))
    table = torch.stack(distances, 1).scatter(1, labels[:, None], torch.inf)
    return table.argsort(1)[:, :-1]


def _towards(
    model: nn.Module, images: Tensor, labels: Tensor, target: Tensor, radius: float, steps: int
) -> Tensor:
    """The images pushed towards their target; each stays where it first changes its class."""
    points = images.clone()
    active = torch.arange(len(images), device=images.device)
    for step in range(steps):
        x = points[active].requires_grad_()
        scores = model(x)
        standing = scores.argmax(1) == labels[active]
        rows = torch.arange(len(active), device=images.device)
        push = scores[rows, target[active]] - scores[rows, labels[active]]
        (slope,) = torch.autograd.grad(push.sum(), x)
        # Long strides first, to get anywhere in the ball; short ones last, to settle.
        stride = 2 * radius * (1 - step / steps) / steps**0.5
        moved = x.detach() + stride * (slope / _lengths(slope).clamp_min(TINY))
        active = active[standing]
        points[active] = _projected(moved[standing], images[active], radius)
        if not len(active):
            break
    return points


def _lengths(vectors: Tensor) -> Tensor:
    """The l2 norm of each image, in a shape that multiplies images."""
    lengths: Tensor = torch.linalg.vector_norm(vectors.flatten(1), dim=1)
    return lengths.reshape([-1] + [1] * (vectors.ndim - 1))


def _projected(points: Tensor, centres: Tensor, radius: float) -> Tensor:
    """Into the ball, then into [0, 1].

    The centre is within [0, 1], so that the second never leads out of the ball again.
    """
    change = points - centres
    change = change * (INSIDE * radius / _lengths(change).clamp_min(TINY)).clamp_max(1)
    return (centres + change).clamp(0, 1)
