"""The arithmetic of the score, with expected values computed here by hand."""

import pytest

from loadmaster.calibrate import Outcome, scoring
from loadmaster.records import Interval

GIB = 2**30


def outcome(
    name, group, predicted, measured, *, confidence="high", convention="allocated", wrong=None, wide=0
):
    return Outcome(
        id=name, group=group, confidence=confidence, model="m", gpus=1, what="max_allocated", convention=convention,
        measured_bytes=measured,
        predicted=Interval(low=predicted - wide, likely=predicted, high=predicted + wide),
        error=scoring.error_of(predicted, measured), hit=abs(predicted - measured) <= wide, wrong=wrong,
    )  # fmt: skip


def unpredicted(name, group):
    return Outcome(
        id=name, group=group, confidence="high", model=None, gpus=None, what="x", convention=None,
        measured_bytes=1, reason="because",
    )  # fmt: skip


def test_error_is_signed_and_relative_to_what_was_measured():
    assert scoring.error_of(150, 100) == 0.5
    assert scoring.error_of(50, 100) == -0.5
    assert scoring.error_of(100, 200) == -0.5


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.9, 3.0),
        ([4.0, 1.0], 0.5, 2.5),
        ([5.0, 1.0, 2.0], 0.5, 2.0),
        ([0.0, 10.0], 0.9, 9.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.9, 4.6),  # place 0.9 × 4 = 3.6: 4 + 0.6 × (5 - 4)
    ],
)
def test_percentiles_are_interpolated(values, share, expected):
    found = scoring.percentile(values, share)
    assert found == expected or found == pytest.approx(expected)


def test_the_score_is_a_mean_over_groups_so_that_a_big_table_does_not_dominate():
    rows = [
        # errors of group a: +10 %, -20 %, +30 %: median 20 %, p90 = 20 + 0.8 × (30 - 20) = 28 %
        outcome("a1", "a", 110, 100),
        outcome("a2", "a", 80, 100, wrong="false fit"),
        outcome("a3", "a", 130, 100, wrong="false refusal", wide=30),
        # group b: -4 %: median 4 %, p90 4 %
        outcome("b1", "b", 96, 100, wide=4),
        unpredicted("c1", "c"),
    ]
    score = scoring.score(rows)
    assert (score.rows, score.predicted, score.groups) == (5, 4, 2)
    assert score.mean_of_group_medians == pytest.approx((0.20 + 0.04) / 2)
    assert score.p90 == pytest.approx((0.28 + 0.04) / 2)
    # pooled: 4, 10, 20, 30 %: median 15 %, p90 at place 2.7: 20 + 0.7 × 10 = 27 %
    assert score.median_over_rows == pytest.approx(0.15)
    assert score.p90_over_rows == pytest.approx(0.27)
    assert (score.false_fits, score.false_refusals) == (1, 1)
    assert score.interval_hit_rate == pytest.approx(2 / 4)


def test_nothing_predicted_is_unknown_and_not_perfect():
    score = scoring.score([unpredicted("c1", "c")])
    assert (score.rows, score.predicted) == (1, 0)
    assert score.mean_of_group_medians is score.p90 is score.interval_hit_rate is None


def test_groups_are_split_by_confidence_and_convention_and_keep_their_order():
    rows = [
        outcome("b1", "b", 90, 100),
        outcome("a1", "a", 104, 100),
        outcome("b2", "b", 120, 100),
        outcome("b3", "b", 150, 100, convention="reserved"),
        unpredicted("b4", "b"),
    ]
    lines = scoring.group_scores(rows)
    assert [(g.group, g.convention, g.rows, g.predicted) for g in lines] == [
        ("b", "allocated", 2, 2), ("a", "allocated", 1, 1), ("b", "reserved", 1, 1), ("b", None, 1, 0),
    ]  # fmt: skip
    assert lines[0].median == pytest.approx(0.15)  # of 10 % and 20 %
    assert lines[0].bias == pytest.approx(0.05)  # of -10 % and +20 %
    assert lines[3].median is None


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        (9, 11, ("false fit", "ten")),
        (11, 9, ("false refusal", "ten")),
        (9, 21, ("false fit", "ten")),  # two cards lie between: the smaller one is named
        (10, 11, ("false fit", "ten")),  # a figure of exactly the card's size fits
        (9, 10, None),
        (11, 19, None),
        (21, 30, None),
        (5, 5, None),
    ],
)
def test_a_false_fit_is_a_card_between_the_two_figures(predicted, measured, expected):
    cards = [(10, "ten"), (20, "twenty")]
    assert scoring.wrong_verdict(Interval.exact(predicted), measured, cards) == expected


def test_tight_promises_nothing():
    # likely 9, high 12: on ten the verdict is tight, so a measured 11 is no false fit; on twenty both fit
    cards = [(10, "ten"), (20, "twenty")]
    assert scoring.wrong_verdict(Interval(low=8, likely=9, high=12), 11, cards) is None
    assert scoring.wrong_verdict(Interval(low=8, likely=9, high=10), 11, cards) == ("false fit", "ten")
    assert scoring.wrong_verdict(Interval(low=8, likely=12, high=14), 9, cards) == ("false refusal", "ten")
