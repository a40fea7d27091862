"""The accuracy that an attack leaves."""

from __future__ import annotations

from torch import Tensor, nn

from experiments.attacks._inputs import check, is_right


def robust_accuracy(
    model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor, *, batch: int = 256
) -> float:
    """The share of images that the model gets right, and still gets right after the attack.

    An image that the model had wrong does not count even if the attack put it right by chance.

    Args:
        model: From pixels in [0, 1] to scores, in evaluation mode.
        images: As they were.
        adversarial: What the attack made of each.
        labels: Their classes.
        batch: Images that go through the model together.

    Returns:
        A number from 0 to 1.

    Raises:
        ValueError: There are no images, shapes differ, a pixel of `adversarial` is not finite, or
            the model is in training mode.

    Example:
        >>> import torch
        >>> from experiments.attacks import robust_accuracy
        >>> model = torch.nn.Identity().eval()
        >>> images = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8]])
        >>> moved = torch.tensor([[0.4, 0.6], [0.8, 0.2], [0.6, 0.4]])
        >>> robust_accuracy(model, images, moved, torch.zeros(3, dtype=torch.int64))
        0.3333333333333333
    """
    if adversarial.shape != images.shape:
        raise ValueError(
            f"adversarial must be one image for each of shape {tuple(images.shape)}, got shape "
            f"{tuple(adversarial.shape)}."
        )
    if not adversarial.isfinite().all():
        raise ValueError(
            "adversarial must be finite pixels, and some are not: look at the attack they are from."
        )
    check(model, images, labels)
    if not len(images):
        raise ValueError("the accuracy on no images is not defined: give at least one.")
    right = is_right(model, images, labels, batch)
    kept = is_right(model, adversarial[right], labels[right], batch)
    return int(kept.sum()) / len(images)
