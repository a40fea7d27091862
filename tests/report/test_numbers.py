"""Numbers in the report: few digits, and bounds never rounded to the wrong side."""

from __future__ import annotations

import math

import pytest

from spectralclip.report import _numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.00"),
        (0.99999, "1.00"),
        (12.34, "12.3"),
        (0.0123, "0.0123"),
        (999.96, "1000"),
        (1234.4, "1234"),
        (9999.9, "1.0e+04"),
        (41234567.0, "4.1e+07"),
        (0.00012, "1.2e-04"),
        (0.0, "0"),
        (1e308, "1.0e+308"),
        (5e-324, "4.9e-324"),
        (math.inf, "–"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert _numbers.number(value) == text


@pytest.mark.parametrize("exponent", range(-30, 31, 3))
def test_bounds_are_rounded_outwards(exponent: int) -> None:
    for index in range(1, 200):
        value = 1.0137 * index * 10.0**exponent
        assert float(_numbers.at_most(value)) >= value * (1 - 1.01e-6)
        assert float(_numbers.at_least(value)) <= value * (1 + 1.01e-6)
        assert float(_numbers.at_most(value)) == pytest.approx(value, rel=0.11)


def test_intervals() -> None:
    assert _numbers.interval(1.0, 1.0) == "1.00"
    assert _numbers.interval(1.2083, 1.2157) == "1.20 – 1.22"
    assert _numbers.interval(2.5, None) == "2.50 – not bounded"


def test_counts() -> None:
    assert [_numbers.count(n) for n in (0, 9999, 36864, 11_173_962, None)] == [
        "0",
        "9999",
        "36.9 k",
        "11.2 M",
        "–",
    ]
