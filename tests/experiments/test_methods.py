"""The methods of the study by name."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy", reason="the study measures norms by SciPy")

from experiments import methods
from spectralclip import methods as library


def test_every_name_stands_for_the_papers_settings() -> None:
    found = {name: methods.get(name, batch_norm=True) for name in methods.available()}
    assert found.pop("none") == ()
    assert all(len(made) == 1 for made in found.values())
    delattre, senderovich = found["delattre"][0], found["senderovich"][0]
    assert (delattre.use, delattre.weight, delattre.iterations) == ("penalty", 0.1, 6)
    assert senderovich.every == 100 and found["gouk"][0].power_iterations == 5
    assert found["miyato"][0].power_iterations == 1
    for batch_norm, expected in ((True, (0.35, 5, 50)), (False, (0.35, 1, 100))):
        (clip,) = methods.get("fast_clip", batch_norm=batch_norm)
        assert (clip.lr, clip.inner_steps, clip.every) == expected
    concat = found["fast_clip_concat"][0]
    assert (concat.concat, concat.concat_lr, concat.concat_every) == (True, 0.01, 500)
    assert [name for name in methods.available() if methods.is_ours(name)] == [
        "spectral_clip",
        "spectral_clip_conv_bn",
    ]


def test_batch_norms_are_clamped_beside_any_method() -> None:
    made = methods.get("gouk+bn", batch_norm=True)
    assert [type(each).__name__ for each in made] == ["Gouk", "ClipBatchNorm"]
    assert made[0].batch_norm is False
    assert methods.get("none+bn", batch_norm=True) == (library.ClipBatchNorm(),)
    assert methods.is_ours("spectral_clip:headroom=0.02+bn")
    with pytest.raises(ValueError, match="the network has none"):
        methods.get("gouk+bn", batch_norm=False)


def test_settings_behind_a_name_replace_the_papers() -> None:
    (made,) = methods.get("fast_clip:every=10,averaged=false", batch_norm=True)
    assert (made.every, made.averaged, made.inner_steps) == (10, False, 5)
    for name, message in (
        ("fast_clip:evry=10", "no setting 'evry'"),
        ("fast_clip:every=ten", "as JSON writes it"),
        ("none:every=10", "takes none"),
    ):
        with pytest.raises(ValueError, match=message):
            methods.get(name, batch_norm=True)
