"""Data sets by name, subsets of them, and augmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.stats import chisquare

from experiments import data
from experiments.data import synthetic
from spectralclip.demo import load_digits

# Data sets without files -----------------------------------------------------------------------


def test_the_digits_are_those_of_the_library_and_the_default() -> None:
    found = data.load()
    images, labels = load_digits("test")
    assert found.name == "digits"
    assert found.test_images.dtype == torch.uint8
    assert torch.equal(found.test_images.float() / 255, images)
    assert torch.equal(found.test_labels, labels)
    assert found.in_shape == (1, 28, 28)


def test_synthetic_images_can_be_learned_and_repeat() -> None:
    state = torch.random.get_rng_state()
    found, again = data.load("synthetic"), data.load("synthetic")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(found.train_images, again.train_images)
    assert not torch.equal(found.train_images, synthetic.load(seed=1).train_images)
    assert found.in_shape == (3, 32, 32)
    assert found.train_labels.bincount().tolist() == [400] * 10

    def flat(images: torch.Tensor) -> torch.Tensor:
        coarse = torch.nn.functional.avg_pool2d(images.double() / 255 - 0.5, 4)
        return coarse.flatten(1)

    train, test = flat(found.train_images), flat(found.test_images)
    gram = train.T @ train + 10 * torch.eye(192, dtype=torch.float64)
    wanted = torch.nn.functional.one_hot(found.train_labels).double() - 0.1
    weights = torch.linalg.solve(gram, train.T @ wanted)
    accuracy = ((test @ weights).argmax(1) == found.test_labels).double().mean()
    assert accuracy > 0.95
    # An attack has something to do: noise is as large as the patterns.
    assert 0.15 < float(found.train_images.double().std() / 255) < 0.3


def test_names_that_are_none() -> None:
    with pytest.raises(ValueError, match="mnist, cifar10, digits, synthetic, got 'imagenet'"):
        data.load("imagenet")


def test_the_folder_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data.data_folder(None) == Path("data")
    monkeypatch.setenv("SPECTRALCLIP_DATA", str(tmp_path))
    assert data.data_folder(None) == tmp_path
    assert data.data_folder(Path("given")) == Path("given")
    with pytest.raises(data.DataMissing, match=str(tmp_path)):
        data.load("cifar10")


# Parts of data sets ----------------------------------------------------------------------------


def numbered(labels: torch.Tensor) -> data.Dataset:
    """A data set whose images tell their place in it."""
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None]
    return data.Dataset("numbered", images, labels, images, labels, (0.0,), (1.0,))


def test_a_subset_takes_the_first_of_each_class(generator: torch.Generator) -> None:
    labels = torch.randint(10, (250,), generator=generator)
    whole = numbered(labels)
    part = data.subset(whole, 50, 20)
    for images, chosen, each in (
        (part.train_images, part.train_labels, 5),
        (part.test_images, part.test_labels, 2),
    ):
        for label in range(10):
            first = (labels == label).nonzero().flatten()[:each]
            assert images.flatten()[chosen == label].tolist() == first.tolist()
    # Every beginning is balanced as well.
    assert part.train_labels[:30].bincount().tolist() == [3] * 10


def test_a_subset_by_seed(generator: torch.Generator) -> None:
    whole = numbered(torch.randint(10, (250,), generator=generator))
    state = torch.random.get_rng_state()
    one, same, other = (data.subset(whole, 50, 20, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.train_images, same.train_images)
    assert not torch.equal(one.train_images, other.train_images)
    for part in (one, other):
        assert part.train_labels.bincount().tolist() == [5] * 10
        assert len(part.train_images.unique()) == 50
        assert torch.equal(
            whole.train_labels[part.train_images.flatten().long()], part.train_labels
        )


def test_a_subset_of_classes_with_few_images() -> None:
    whole = numbered(torch.tensor([0] * 20 + [1] * 3))
    assert data.subset(whole, 5, 10).train_labels.bincount().tolist() == [3, 2]
    assert data.subset(whole, 5, 10).test_labels.bincount().tolist() == [7, 3]
    assert data.subset(whole, None, None).train_images is not None
    assert torch.equal(data.subset(whole, None, 23).train_images, whole.train_images)
    for count in (0, 24):
        with pytest.raises(ValueError, match=f"from 1 to 23 training images.*got {count}"):
            data.subset(whole, count, None)


# Augmentation ----------------------------------------------------------------------------------


def test_crops_are_those_of_pillow_and_all_are_drawn(generator: torch.Generator) -> None:
    image = torch.randint(1, 256, (3, 12, 10), generator=generator, dtype=torch.uint8)
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    known = {}
    for flipped in (False, True):
        padded = ImageOps.expand(picture, border=2, fill=0)
        for top in range(5):
            for left in range(5):
                crop = padded.crop((left, top, left + 10, top + 12))
                crop = ImageOps.mirror(crop) if flipped else crop
                known[np.asarray(crop).tobytes()] = 0
    batch = image.repeat(10_000, 1, 1, 1)
    out = data.crop_and_flip(batch, generator, padding=2)
    assert out.shape == batch.shape
    assert out.dtype == torch.uint8
    for pixels in out.permute(0, 2, 3, 1).contiguous().numpy():
        known[pixels.tobytes()] += 1  # a KeyError is a crop that there is not
    assert chisquare(list(known.values())).pvalue > 1e-4


def test_augmentation_repeats_and_leaves_its_input(generator: torch.Generator) -> None:
    images = torch.rand(16, 3, 32, 32, generator=generator)
    before, state = images.clone(), torch.random.get_rng_state()
    first = data.crop_and_flip(images, torch.Generator().manual_seed(3))
    again = data.crop_and_flip(images, torch.Generator().manual_seed(3))
    other = data.crop_and_flip(images, torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    same = data.crop_and_flip((images * 255).to(torch.uint8), torch.Generator().manual_seed(3))
    assert torch.equal((first * 255).to(torch.uint8), same)


def test_images_that_are_held_out_are_tested_with() -> None:
    whole = data.load("digits")
    part = data.held_out(whole, 30)
    assert torch.equal(torch.cat((part.train_images, part.test_images)), whole.train_images)
    assert torch.equal(torch.cat((part.train_labels, part.test_labels)), whole.train_labels)
    assert len(part.test_labels) == 30 and data.held_out(whole, 0) is whole
    with pytest.raises(ValueError, match="fewer than"):
        data.held_out(whole, len(whole.train_labels))
