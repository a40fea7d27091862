"""Intervals and verdicts of the study, against SciPy's tests."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from experiments.experiment import Record
from experiments.judging.power import seeds_to_tell
from experiments.judging.statistics import (
    Spread,
    differences,
    interval,
    log_ratios,
    slope,
    spread_of_differences,
    summary,
)
from experiments.judging.verdicts import Question, against, by_seed, judge, select


@pytest.mark.parametrize("count", [2, 3, 5, 12])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.999])
def test_the_interval_is_student_s(count, level):
    values = np.random.default_rng(count).normal(0.3, 1.7, count)
    found = interval(values.tolist(), level=level)
    expected = stats.ttest_1samp(values, 0).confidence_interval(level)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert (found.count, found.level) == (count, level)


def test_pairs_are_compared_as_scipy_compares_related_samples():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0, 1, 6), rng.normal(1, 1, 6)
    pairs = differences(dict(enumerate(first)), dict(enumerate(second)))
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    found = interval(pairs)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_only_common_seeds_are_paired():
    assert differences({0: 1.0, 1: 5.0, 2: 3.0}, {2: 1.0, 0: 0.5, 7: 9.0}) == [0.5, 2.0]
    ratios = log_ratios({0: 2.0, 1: 0.0, 2: 1.0}, {0: 1.0, 1: 1.0})
    assert ratios == [pytest.approx(math.log(2))]


def test_means_and_standard_deviations_are_numpy_s():
    values = [0.1, 0.4, 0.35, 0.8]
    found = summary(values)
    assert (found.mean, found.std) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert summary([2.0]).std is None
    assert summary([]).count == 0 and math.isnan(summary([]).mean)


def test_slopes_are_numpy_s():
    points = np.random.default_rng(2).normal(size=(7, 2))
    found = slope([(float(x), float(y)) for x, y in points])
    assert found == pytest.approx(np.polyfit(points[:, 0], points[:, 1], 1)[0], rel=1e-12)
    assert slope([(1.0, 2.0), (1.0, 3.0)]) is None and slope([]) is None


def test_no_interval_from_one_run():
    found = interval([0.7])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert not found.is_above_zero and not found.is_below_zero


def test_a_spread_is_never_smaller_than_one_image():
    agreeing = [0.02, 0.02, 0.02]
    assert interval(agreeing).is_above_zero
    found = interval(agreeing, step=0.02)
    half = stats.t.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    assert found.high - found.mean == pytest.approx(half, rel=1e-12)
    assert not found.is_above_zero
    spread = [0.0, 0.5, 1.0]
    assert interval(spread, step=0.02) == interval(spread)


def blocks(seed, methods, seeds, noise=1.0):
    """A number by seed of each method: effects of both, and noise."""
    rng = np.random.default_rng(seed)
    found = rng.normal(0, 5, (methods, 1)) + rng.normal(0, 5, (1, seeds))
    return found + noise * rng.normal(0, 1, (methods, seeds))


def by_seeds(numbers):
    return [dict(enumerate(row.tolist())) for row in numbers]


@pytest.mark.parametrize(("methods", "seeds"), [(2, 3), (6, 3), (3, 5)])
def test_the_spread_in_blocks_is_what_least_squares_leaves(methods, seeds):
    numbers = blocks(3, methods, seeds)
    rows = [(m, methods + s) for m in range(methods) for s in range(seeds)]
    design = np.zeros((len(rows), methods + seeds))
    for place, row in enumerate(rows):
        design[place, row] = 1
    fitted = design @ np.linalg.lstsq(design, numbers.ravel(), rcond=None)[0]
    freedom = len(rows) - np.linalg.matrix_rank(design)
    found = spread_of_differences(by_seeds(numbers))
    expected = math.sqrt(2 * np.sum((numbers.ravel() - fitted) ** 2) / freedom)
    assert (found.std, found.freedom) == (pytest.approx(expected, rel=1e-9), freedom)


def test_two_methods_in_blocks_are_related_samples():
    first, second = by_seeds(blocks(4, 2, 6))
    pairs = differences(first, second)
    shared = spread_of_differences([first, second])
    expected = stats.ttest_rel([*first.values()], [*second.values()]).confidence_interval(0.95)
    found = interval(pairs, shared=shared)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_intervals_by_a_shared_spread_hold_the_truth_as_often_as_they_say():
    held, lengths, alone = 0, [], []
    for seed in range(400):
        numbers = by_seeds(blocks(seed, 6, 3) - blocks(seed, 6, 3, noise=0.0))
        pairs = differences(numbers[0], numbers[1])
        found = interval(pairs, shared=spread_of_differences(numbers))
        held += found.low < 0 < found.high
        lengths.append(found.high - found.low)
        alone.append(interval(pairs).high - interval(pairs).low)
    assert 0.92 < held / 400 < 0.98
    assert np.mean(lengths) < 0.7 * np.mean(alone)


def test_a_method_that_varies_far_more_than_the_others_answers_for_itself():
    shared = Spread(0.1, 10)
    wild, calm = [-10.0, 0.0, 12.0], [0.4, 0.5, 0.55]
    assert interval(wild, shared=shared) == interval(wild)
    half = stats.t.ppf(0.975, 10) * 0.1 / math.sqrt(3)
    found = interval(calm, shared=shared)
    assert found.high - found.mean == pytest.approx(half, rel=1e-12)
    assert interval(wild, shared=Spread(0.0, 4)) == interval(wild)


def test_no_spread_without_two_methods_of_two_common_seeds():
    assert spread_of_differences([{0: 1.0, 1: 2.0}]) is None
    assert spread_of_differences([{0: 1.0, 1: 2.0}, {0: 1.0}]) is None
    assert spread_of_differences([{0: 1.0, 1: 2.0}, {2: 1.0, 3: 2.0}]) is None


@pytest.mark.parametrize("level", [0, 1, 1.5])
def test_a_level_outside_is_refused(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        interval([1.0, 2.0], level=level)


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        interval([1.0, math.nan])


def test_intervals_hold_the_mean_as_often_as_they_say():
    samples = np.random.default_rng(0).normal(0.4, 2.0, (2000, 3))
    found = [interval(sample.tolist()) for sample in samples]
    held = np.mean([one.low <= 0.4 <= one.high for one in found])
    assert held == pytest.approx(0.95, abs=0.02)


def verdict_by_scipy(samples: list[np.ndarray]) -> str:
    tests = [stats.ttest_1samp(sample, 0) for sample in samples]
    means = [sample.mean() for sample in samples]
    corrected = 0.05 / len(samples)
    if any(t.pvalue < corrected and m < 0 for t, m in zip(tests, means, strict=True)):
        return "contradicted"
    if all(t.pvalue < 0.05 and m > 0 for t, m in zip(tests, means, strict=True)):
        return "reproduced"
    return "not at this scale"


def test_verdicts_follow_from_scipy_s_p_values():
    rng = np.random.default_rng(3)
    kinds = []
    for _ in range(150):
        shift, count = rng.choice([-2.0, 0.0, 3.0]), int(rng.integers(1, 5))
        samples = [rng.normal(shift, 1.0, 5) for _ in range(count)]
        found = judge([Question("q", sample.tolist()) for sample in samples])
        assert found.kind == verdict_by_scipy(samples)
        kinds.append(found.kind)
    assert min(map(kinds.count, ("reproduced", "contradicted", "not at this scale"))) > 15


def test_chance_alone_seldom_contradicts():
    samples = np.random.default_rng(4).normal(0, 1, (200, 10, 4))
    kinds = [judge([Question("q", row.tolist()) for row in claim]).kind for claim in samples]
    assert kinds.count("contradicted") / len(kinds) < 0.06
    assert "reproduced" not in kinds


def test_one_seed_or_none_cannot_judge():
    assert judge([]).kind == "not run"
    alone = judge([Question("gouk", [0.4])])
    assert alone.kind == "not at this scale" and "no interval" in alone.reason
    good = Question("miyato", [0.4, 0.41, 0.4])
    partly = judge([good, Question("gouk", [])])
    assert partly.kind == "not run" and "gouk" in partly.reason


def p_value(mean, std, count):
    """By scipy, of a sample with just this mean and standard deviation."""
    sample = stats.norm.ppf((np.arange(count) + 0.5) / count)
    sample = (sample - sample.mean()) / sample.std(ddof=1)
    return stats.ttest_1samp(mean + std * sample, 0.0).pvalue


@pytest.mark.parametrize("level", [0.95, 0.99])
@pytest.mark.parametrize("mean", [0.3, -0.8, 2.0])
def test_the_seeds_that_it_takes_are_the_fewest_with_a_small_p_value(mean, level):
    values = mean + np.array([-1.0, 0.0, 1.0])  # of standard deviation 1
    count = int(seeds_to_tell(values.tolist(), level=level))
    assert p_value(mean, 1.0, count) < 1 - level <= p_value(mean, 1.0, count - 1)


def test_a_shared_spread_needs_fewer_seeds_and_one_seed_tells_nothing():
    values = [0.0, 1.0, 2.0]
    assert seeds_to_tell(values, shared=Spread(1.0, 10)) < seeds_to_tell(values)
    assert math.isinf(seeds_to_tell([1.0])) and math.isinf(seeds_to_tell([-1.0, 0.0, 1.0]))


def test_an_undecided_verdict_says_how_many_seeds_it_would_take():
    weak, strong = Question("weak", [0.0, 1.0, 2.0]), Question("strong", [5.0, 5.1, 5.2])
    assert (
        f"about {weak.seeds_to_tell():.0f} seeds would reproduce it" in judge([weak, strong]).reason
    )
    below = Question("below", [-2.0, 0.5, -1.0])
    seeds = below.seeds_to_tell(1 - 0.05 / 2)
    assert f"about {seeds:.0f} seeds would contradict it" in judge([weak, below]).reason
    level = Question("level", [-1.0, 0.001, 1.0])
    assert "more than 100 seeds would be needed to reproduce it" in judge([level]).reason


def test_a_verdict_names_the_number_that_it_hangs_on():
    strong, weak = Question("strong", [0.5, 0.51, 0.52]), Question("weak", [0.1, 0.12, 0.17])
    found = judge([strong, weak])
    assert found.kind == "reproduced" and found.evidence is not None
    assert (found.evidence.name, found.evidence.effect, found.evidence.seeds) == (
        "weak",
        "+13.0",
        3,
    )
    assert found.evidence.spread == f"{100 * statistics.stdev(weak.values):.1f}"
    assert found.evidence.needed == weak.seeds_to_tell()
    low, lower = Question("low", [-0.1, -0.12, -0.17]), Question("lower", [-0.5, -0.51, -0.52])
    assert judge([strong, low, lower]).evidence == lower.evidence(lower.seeds_to_tell(1 - 0.05 / 3))
    single = judge([Question("one", [0.3]), Question("other", [0.2])]).evidence
    assert single is not None and (single.name, single.spread) == ("other", "")
    assert math.isinf(single.needed)
    assert judge([Question("none", [])]).evidence is None


def test_a_contradiction_stands_even_where_runs_are_missing():
    bad = Question("miyato", [-0.4, -0.41, -0.4])
    assert judge([bad, Question("gouk", [])]).kind == "contradicted"


def test_reasons_show_means_and_intervals_in_their_unit():
    points = judge([Question("q", [0.10, 0.11, 0.12])]).reason
    assert "+11.0 [+8.5, +13.5]" in points
    factor = judge([Question("q", [math.log(2)] * 3, unit="factor")]).reason
    assert "× 2 [× 2, × 2]" in factor


def test_runs_are_chosen_by_their_configuration():
    def record(method, seed, value):
        config = {"method": method, "seed": seed}
        return Record("e", f"{method}{seed}", "laptop", config, {"x": value}, {})

    records = [record("a", 0, 1.0), record("a", 1, None), record("b", 0, 3.0)]
    assert by_seed(records, lambda one: one.result["x"], method="a") == {0: 1.0}
    with pytest.raises(ValueError, match="a0 and b0 are of one method and one seed"):
        by_seed(records, lambda one: one.result["x"])
    assert [one.id for one in select(records, seed=0)] == ["a0", "b0"]
    asked = against("q", {0: 1.0, 1: 2.0}, {0: 1.5, 1: 2.0}, margin=1.0, step=0.1)
    assert (asked.values, asked.step) == ([0.5, 1.0], 0.1)
