"""The rule of the mirrored rounds."""

import pytest

from nccltune.records import DEFAULT, Candidate, Failure, Launch, Measurement
from nccltune.verdict import decision

FAST = Candidate(settings={"A": "1"})


def launch(candidate, median_us, round_number, purpose="confirm"):
    outcome = (
        Measurement(step_times_us=(median_us,), clock="host", warmup_steps=1)
        if median_us
        else Failure(name="workload_error", blame="workload", message="x")
    )
    return Launch(
        launch_id=f"{candidate.key}-{round_number}",
        purpose=purpose,
        candidate=candidate,
        round=round_number,
        started_at="2026-01-01T00:00:00Z",
        wall_s=1.0,
        outcome=outcome,
    )


def rounds(*times):
    return [
        entry
        for number, (default_us, fast_us) in enumerate(times, 1)
        for entry in (launch(DEFAULT, default_us, number), launch(FAST, fast_us, number))
    ]


def test_rounds_are_mirrored():
    assert decision.order(1, FAST) == (DEFAULT, FAST)
    assert decision.order(2, FAST) == (FAST, DEFAULT)


def test_all_rounds_faster_is_unconfirmed_and_never_ship():
    verdict = decision.decide(FAST, decision.pairs(rounds((110, 100), (105, 100), (120, 100)), FAST), 0.01)
    assert verdict.word == "unconfirmed"
    assert verdict.candidate == FAST
    assert verdict.gain == pytest.approx(0.10)


@pytest.mark.parametrize("third", [(100, 100), (100.9, 100), (90, 100)])
def test_one_round_without_the_gain_keeps_the_default(third):
    verdict = decision.decide(FAST, decision.pairs(rounds((110, 100), (110, 100), third), FAST), 0.01)
    assert verdict.word == "keep-default"
    assert verdict.candidate.is_default


def test_missing_rounds_give_no_verdict():
    verdict = decision.decide(FAST, decision.pairs(rounds((110, 100), (110, None), (110, 100)), FAST), 0.01)
    assert verdict.word == "no-verdict"
    assert len(verdict.pairs) == 2


def test_a_round_needs_both_sides_and_only_confirming_launches_count():
    found = decision.pairs([launch(FAST, 100, 1), launch(DEFAULT, 110, 1, purpose="search")], FAST)
    assert found == ()


def test_a_round_that_was_cut_off_is_paired_with_its_fresh_neighbour():
    found = decision.pairs([launch(DEFAULT, 999, 1), launch(DEFAULT, 110, 1), launch(FAST, 100, 1)], FAST)
    assert [pair.default_us for pair in found] == [110]


def test_a_default_of_another_finalists_round_is_no_neighbour():
    other = Candidate(settings={"B": "1"})
    found = decision.pairs([launch(DEFAULT, 110, 1), launch(other, 100, 1), launch(FAST, 100, 1)], FAST)
    assert found == ()
    assert decision.measured_rounds([launch(DEFAULT, 110, 1), launch(FAST, 100, 1)], FAST) == {1}


def test_hopeless_stops_before_all_rounds_are_paid_for():
    assert decision.hopeless(decision.pairs(rounds((100, 100)), FAST), 0.01)
    assert not decision.hopeless(decision.pairs(rounds((110, 100)), FAST), 0.01)
