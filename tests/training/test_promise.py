"""What methods promise, read from their classes."""

from __future__ import annotations

from spectralclip._training import Promise, promises_of


def test_promises_are_read_from_the_class() -> None:
    class Stated:
        promises = (Promise(margin=0.1),)

    assert promises_of(Stated) == promises_of(Stated()) == Stated.promises  # type: ignore[arg-type]
    assert promises_of(object) == ()  # type: ignore[arg-type]
