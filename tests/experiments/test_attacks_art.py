"""Our attacks beside those of the Adversarial Robustness Toolbox, on the same trained network."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from attack_models import Digits, Normalize, distances, seeded_pgd, trained, wrong
from torch import Tensor, nn

from experiments.attacks import carlini_wagner_l2, pgd_linf, robust_accuracy

if importlib.util.find_spec("art") is None:  # to import it takes long
    reason = "the Adversarial Robustness Toolbox is not installed"
    pytest.skip(reason, allow_module_level=True)

CONFIDENCE = 0.1


def toolbox(name: str) -> Any:
    """A part of the toolbox."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of at import is about other frameworks
        return importlib.import_module(f"art.{name}")


@pytest.fixture(scope="module")
def digits() -> Digits:
    return trained(200)


def classifier(model: nn.Module) -> Any:
    """The same model for the toolbox; a copy, since the toolbox wraps and switches it."""
    return toolbox("estimators.classification").PyTorchClassifier(
        copy.deepcopy(model),
        loss=nn.CrossEntropyLoss(),
        input_shape=(1, 28, 28),
        nb_classes=10,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )


def art_pgd(model: nn.Module, images: Tensor, labels: Tensor, eps: float, starts: int) -> Tensor:
    attack = toolbox("attacks.evasion").ProjectedGradientDescentPyTorch(
        classifier(model),
        norm=np.inf,
        eps=eps,
        eps_step=eps / 10,
        max_iter=50,
        num_random_init=starts,
        batch_size=len(images),
        verbose=False,
    )
    return torch.from_numpy(attack.generate(images.numpy(), labels.numpy()))


def art_cw(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Tensor:
    attack = toolbox("attacks.evasion").CarliniL2Method(
        classifier(model), confidence=CONFIDENCE, batch_size=len(images), verbose=False, **options
    )
    return torch.from_numpy(attack.generate(images.numpy(), labels.numpy()))


def test_pgd_goes_the_same_way(digits: Digits) -> None:
    """Without a random start the points are the same, but for pixels of vanishing slope."""
    model, images, labels = digits
    right = ~wrong(model, images, labels)
    options: dict[str, Any] = {"eps": 0.1, "random_start": False, "stop_early": False}
    ours = pgd_linf(model, images, labels, **options)[right]
    theirs = art_pgd(model, images, labels, 0.1, starts=0)[right]
    same = (ours - theirs).abs() < 1e-5
    assert same.double().mean() > 0.99
    assert torch.equal(wrong(model, ours, labels[right]), wrong(model, theirs, labels[right]))


@pytest.mark.parametrize("eps", [0.05, 0.1])
def test_pgd_leaves_the_same_accuracy(eps: float, digits: Digits) -> None:
    """Within 1 in 100 images, each with random starts of its own."""
    model, images, labels = digits
    ours = robust_accuracy(model, images, seeded_pgd(model, images, labels, eps=eps), labels)
    # The toolbox draws from the global generator of NumPy.
    before = np.random.get_state()
    np.random.seed(0)
    moved = art_pgd(model, images, labels, eps, starts=1)
    np.random.set_state(before)
    theirs = robust_accuracy(model, images, moved, labels)
    assert 0.1 < theirs < 0.9
    assert ours == pytest.approx(theirs, abs=0.01)


@pytest.mark.parametrize("const", [0.3, pytest.param(1.0, marks=pytest.mark.slow)])
def test_cw_breaks_the_same_images_and_goes_no_farther(const: float, digits: Digits) -> None:
    """But for 1 image; at most 1 in 100 farther, and half of them at most 1 in 4 nearer.

    The toolbox descends by a line search, and stays behind Adam near the edge of a class. The
    digits are grey here: from black, where tanh is flat, the two would be differently slow.
    """
    model, images, labels = digits
    grey = copy.deepcopy(model)
    grey.normalize = Normalize(0.2 + 0.6 * 0.1307, 0.6 * 0.3081).float()
    right = ~wrong(model, images, labels)
    images, labels = 0.2 + 0.6 * images[right][:24], labels[right][:24]
    options: dict[str, Any] = {"confidence": CONFIDENCE, "initial_const": const}
    ours = carlini_wagner_l2(grey, images, labels, iterations=200, **options)
    theirs = art_cw(grey, images, labels, initial_const=const, max_iter=40, binary_search_steps=1)
    broken = torch.from_numpy(classifier(grey).predict(ours.numpy())).argmax(1) != labels
    both = broken & wrong(grey, theirs, labels)
    assert both.sum() >= max(broken.sum(), wrong(grey, theirs, labels).sum()) - 1
    assert both.sum() >= 8
    ratio = distances(ours, images)[both] / distances(theirs, images)[both]
    assert ratio.max() <= 1.01
    assert ratio.median() >= 0.75
