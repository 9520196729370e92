"""From fresh rounds to a verdict: who is launched when, what is looked at, and what is said."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.records import DEFAULT, Candidate, Checks, Evidence, Failure, Launch, Measurement, Pair, RankReport
from nccltune.space.catalogue import load_catalogue
from nccltune.verdict import bounds, decision, proof, rounds
from nccltune.verdict.sequence import Ask, Ended, Entry, Rule, judge

FAST = Candidate(settings={"A": "1"})
OTHER = Candidate(settings={"A": "1", "B": "1"})
THIRD = Candidate(settings={"C": "1"})
RULE = Rule(min_gain=0.01, rounds=20)


def rank(number, **echo):
    return RankReport(rank=number, local_rank=0, host="h", pid=1, device="cpu", torch_version="2.6.0", echo=echo)


def measured(candidate, median_us=100.0, **fields):
    values = {
        "step_times_us": (median_us,) * 20,
        "clock": "host",
        "warmup_steps": 1,
        "checks": Checks(cases=4),
        "ranks": (rank(0, **candidate.settings), rank(1, **candidate.settings)),
    }
    return Measurement(**{**values, **fields})


def launch(candidate, outcome, round_number, purpose="confirm"):
    if isinstance(outcome, int | float):
        outcome = measured(candidate, outcome)
    return Launch(
        launch_id=f"{candidate.key}-{round_number}",
        purpose=purpose,
        candidate=candidate,
        round=round_number,
        started_at="2026-01-01T00:00:00Z",
        wall_s=1.0,
        outcome=outcome,
    )


def entry(candidate, gains, **fields):
    """A finalist whose rounds gained these shares, over a default of 100 µs."""
    extra = {name: fields.pop(name) for name in ("tails", "sizes") if name in fields}
    found = {
        number: Pair(
            round=number,
            default_us=100,
            candidate_us=100 / (1 + gain),
            gain=gain,
            tail_gain=extra["tails"][number - 1] if "tails" in extra else None,
            size_gains=extra["sizes"][number - 1] if "sizes" in extra else {},
        )
        for number, gain in enumerate(gains, 1)
    }
    return Entry(candidate, found, **fields)


def verdict(*entries, rule=RULE, **account):
    ended = judge(entries, Rule(min_gain=rule.min_gain, rounds=rule.rounds, finalists=len(entries)))
    assert isinstance(ended, Ended)
    return decision.conclude(ended, rule, decision.Account(**account))


def around(gain, noise=0.002, n=20):
    """Rounds about a gain, the same every time, balanced in both orders."""
    return [gain + noise * (1, -1, -1, 1)[number % 4] for number in range(n)]


# ---- the order of a round, and which launches belong together


def test_rounds_are_mirrored_and_the_default_stands_in_the_middle():
    assert rounds.order(1, [FAST]) == (DEFAULT, FAST)
    assert rounds.order(2, [FAST]) == (FAST, DEFAULT)
    assert rounds.order(1, [FAST, OTHER, THIRD]) == (FAST, DEFAULT, OTHER, THIRD)
    assert rounds.order(2, [FAST, OTHER, THIRD]) == (THIRD, OTHER, DEFAULT, FAST)


def test_one_default_a_round_serves_all_finalists():
    launches = [launch(FAST, 80, 1), launch(DEFAULT, 100, 1), launch(OTHER, 50, 1)]
    assert rounds.pairs(launches, FAST)[1].gain == pytest.approx(0.25)
    assert rounds.pairs(launches, OTHER)[1].gain == pytest.approx(1.0)


def test_only_launches_of_the_rounds_count_and_both_sides_are_needed():
    assert rounds.pairs([launch(FAST, 100, 1), launch(DEFAULT, 110, 1, purpose="search")], FAST) == {}


def test_a_round_that_was_cut_off_counts_as_it_was_launched_again():
    found = rounds.pairs([launch(DEFAULT, 999, 1), launch(DEFAULT, 110, 1), launch(FAST, 100, 1)], FAST)
    assert [pair.default_us for pair in found.values()] == [110]


def test_a_default_of_another_finalists_round_is_no_neighbour():
    launches = [
        *(launch(DEFAULT, 110, 1), launch(OTHER, 100, 1), launch(OTHER, 100, 2), launch(DEFAULT, 110, 2)),
        launch(FAST, 100, 1),
    ]
    assert rounds.pairs(launches, FAST) == {}


def test_a_failed_try_in_between_does_not_part_a_round():
    lost = Failure(name="port_taken", blame="infrastructure", message="x")
    found = rounds.pairs([launch(DEFAULT, 110, 1), launch(FAST, lost, 1), launch(FAST, 100, 1)], FAST)
    assert found[1].default_us == 110


@pytest.mark.parametrize("number", [3, 4])
def test_a_candidate_that_a_cut_off_round_had_not_reached_is_held_against_the_default_launched_next_to_it(number):
    """Not against the default from before the pause, which may have lasted days and moved to another machine."""

    def at(candidate, outcome, minute):
        made = launch(candidate, outcome, number)
        return made.model_copy(update={"started_at": f"2026-01-{1 + minute // 60:02d}T00:{minute % 60:02d}:00Z"})

    first = {3: [(FAST, 100), (DEFAULT, 110)], 4: [(THIRD, 100), (DEFAULT, 110)]}[number]
    left = tuple(each for each in (FAST, OTHER, THIRD) if each != first[0][0])
    again = [(candidate, 400 if candidate.is_default else 200) for candidate in rounds.order(number, left)]
    launches = [at(*each, minute) for minute, each in enumerate(first)]
    launches += [at(*each, 60 + minute) for minute, each in enumerate(again)]

    assert rounds.pairs(launches, first[0][0])[number].default_us == 110
    assert [rounds.pairs(launches, candidate)[number].default_us for candidate in left] == [400, 400]


def test_tail_and_sizes_come_from_the_same_launches():
    slow_tail = measured(FAST, step_times_us=(50.0,) * 18 + (200.0,) * 2, size_times_us={"8": 1.0, "1024": 4.0})
    launches = [
        launch(DEFAULT, measured(DEFAULT, size_times_us={"8": 2.0, "1024": 3.0}), 1),
        launch(FAST, slow_tail, 1),
    ]
    pair = rounds.pairs(launches, FAST)[1]
    assert pair.gain == pytest.approx(1.0)
    assert pair.tail_gain == pytest.approx(-0.5)
    assert pair.size_gains == pytest.approx({"8": 1.0, "1024": -0.25})


# ---- bounds


def test_the_bounds_are_students_within_the_two_orders():
    # Within each order the values are 1, 3 and 2, 4: means 2 and 3, spread √((1+1+1+1)/2) = √2, error √2·√(1/2+1/2)/2.
    found = bounds.estimate({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    assert (found.mean, found.freedom) == (2.5, 2)
    assert found.spread == pytest.approx(math.sqrt(2))
    assert found.error == pytest.approx(math.sqrt(2) / 2)
    assert found.lower(0.025) == pytest.approx(2.5 - 4.302653 * math.sqrt(2) / 2)  # the table's t(2, 97.5 %)


@given(st.lists(st.floats(-0.5, 0.5), min_size=4, max_size=12), st.floats(-1, 1))
def test_what_the_place_in_a_round_does_is_neither_gain_nor_noise(values, effect):
    plain = bounds.estimate(dict(enumerate(values[: len(values) // 2 * 2])))
    moved = bounds.estimate({n: v + effect * (-1) ** n for n, v in enumerate(values[: len(values) // 2 * 2])})
    assert moved.mean == pytest.approx(plain.mean, abs=1e-9)
    assert moved.spread == pytest.approx(plain.spread, abs=1e-7)


@pytest.mark.parametrize("logs", [{}, {1: 0.1}, {1: 0.1, 2: 0.1}, {1: 0.1, 3: 0.1, 5: 0.1}])
def test_too_few_rounds_or_one_order_alone_give_no_bound(logs):
    assert bounds.estimate(logs) is None


def test_the_error_rate_is_shared_over_looks_and_finalists():
    rule = Rule(min_gain=0.01, rounds=20, finalists=3)
    assert rule.looks == (6, 8, 12, 20)
    assert rule.ship_error * len(rule.looks) * 3 == pytest.approx(0.005)
    assert rule.keep_error * len(rule.all_looks) * 3 == pytest.approx(0.05)
    assert Rule(min_gain=0.01, rounds=6).looks == (6,)
    assert Rule(min_gain=0.01, rounds=1).all_looks == (1,)


# ---- the sequence


@pytest.mark.parametrize(("measured_rounds", "next_round"), [(0, 1), (3, 4), (4, 5), (5, 6)])
def test_rounds_are_asked_for_one_by_one(measured_rounds, next_round):
    assert judge([entry(FAST, around(0.03, 0.01)[:measured_rounds])], RULE) == Ask(next_round, (FAST,))


def test_a_clear_gain_ships_at_the_first_look_that_may():
    ended = judge([entry(FAST, around(0.1))], RULE)
    assert (ended.looked, ended.finalists[0].fate) == (6, "ship")


def test_no_gain_is_dropped_and_the_others_go_on_without_it():
    few = [entry(FAST, around(0.013, 0.002)[:4]), entry(OTHER, around(-0.2)[:4])]
    assert judge(few, Rule(min_gain=0.01, rounds=20, finalists=2)) == Ask(5, (FAST,))


def test_a_gain_that_is_not_larger_than_the_wish_is_never_shipped():
    assert verdict(entry(FAST, around(0.01))).word != "ship"


def test_noise_that_cannot_decide_ends_early():
    wild = [0.02 + 0.2 * sign for sign in (1, -1, -1, 1) * 5]
    ended = judge([entry(FAST, wild)], RULE)
    assert ended.early
    assert ended.looked < 20


def test_a_shown_loss_in_the_tail_forbids_to_ship():
    bad = verdict(entry(FAST, around(0.1), tails=around(-0.2)))
    assert bad.word == "keep-default"
    assert "95th percentile" in bad.sentence
    assert verdict(entry(FAST, around(0.1), tails=around(0.0, 0.005))).word == "ship"


def test_a_tail_that_is_worse_by_noise_alone_does_not():
    assert verdict(entry(FAST, around(0.1), tails=around(-0.02, 0.3))).word == "ship"


def test_a_shown_loss_at_one_size_of_a_mix_forbids_to_ship():
    sizes = [{"8": gain, "1024": 0.2} for gain in around(-0.05)]
    bad = verdict(entry(FAST, around(0.1), sizes=sizes))
    assert bad.word == "keep-default"
    assert "messages of 8 bytes" in bad.sentence


def test_a_finalist_that_failed_is_out_and_another_can_still_ship():
    found = verdict(entry(FAST, around(0.5)[:2], fault="it failed"), entry(OTHER, around(0.1)))
    assert (found.word, found.candidate) == ("ship", OTHER)
    assert found.finalists[1].fate == "out"


def test_without_evidence_there_is_no_ship_and_no_keep():
    found = verdict(entry(FAST, around(0.1), unproven="NCCL's log says nothing"))
    assert found.word == "no-verdict"
    assert "NCCL's log says nothing" in found.sentence
    assert found.needed


def test_the_faster_of_two_that_pass_is_taken():
    found = verdict(entry(FAST, around(0.1)), entry(OTHER, around(0.2)))
    assert (found.word, found.candidate) == ("ship", OTHER)


def test_a_tie_goes_to_the_one_nearest_the_default():
    found = verdict(entry(OTHER, around(0.1, 0.004)), entry(FAST, around(0.0995, 0.003)))
    assert found.candidate == FAST


# ---- words


def test_ship_says_gain_interval_rounds_and_when_it_has_paid():
    found = verdict(entry(FAST, around(0.1)), wall_s=60.0, ranks=2, launches=30, round_launches=12, noise_floor=0.002)
    assert found.word == "ship"
    assert found.interval[0] < found.gain < found.interval[1]
    assert found.bounds[0] > 0.01
    assert (found.rounds, found.gpu_s, found.launches, found.noise_floor) == (6, 120.0, 30, 0.002)
    saved_us = 100 * (1 - 1 / (1 + found.gain))
    assert found.pays_after_steps == math.ceil(60e6 / saved_us)
    assert "95 % interval" in found.sentence
    assert "6 fresh" in found.sentence


def test_a_collective_alone_ships_as_such():
    found = verdict(entry(FAST, around(0.1)), collective_only=True)
    assert found.label == "ship (collective only)"
    assert "model" in found.needed
    assert verdict(entry(FAST, around(0.0)), collective_only=True).label == "keep-default"


def test_keep_default_names_no_candidate_and_the_bound_that_showed_it():
    found = verdict(entry(FAST, around(0.0)), entry(OTHER, around(-0.1)))
    assert found.word == "keep-default"
    assert found.candidate.is_default
    assert found.bounds[1] < 0.01
    assert [finalist.fate for finalist in found.finalists] == ["out", "out"]


def test_no_verdict_says_what_would_be_needed():
    found = verdict(entry(FAST, around(0.02, 0.012)), rule=Rule(min_gain=0.01, rounds=8))
    assert found.word == "no-verdict"
    assert "--rounds" in found.needed
    assert "%" in found.needed
    assert found.pays_after_steps is None


def test_one_round_gives_no_verdict():
    found = verdict(entry(FAST, [0.5]), rule=Rule(min_gain=0.01, rounds=1))
    assert found.word == "no-verdict"
    assert "--rounds" in found.needed


# ---- proof


def test_wrong_settings_and_own_failures_are_faults():
    hung = Failure(name="hang_timeout", blame="candidate", message="it hung")
    assert "it hung" in proof.fault([launch(FAST, hung, 1)], FAST)
    other = measured(FAST, ranks=(rank(0, A="2"),))
    assert "A" in proof.fault([launch(FAST, other, 1)], FAST)
    assert proof.fault([launch(FAST, 100, 1), launch(OTHER, hung, 1)], FAST) == ""


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"checks": Checks()}, "sum"),
        ({"ranks": ()}, "rank"),
        ({"ranks": (rank(0, A="1"), rank(1))}, "rank"),
        ({"evidence": None}, "log"),
        ({"evidence": Evidence()}, "log"),
        ({"evidence": Evidence(nccl_version="2.28.9", inert=("A",))}, "never looked at A"),
        ({"evidence": Evidence(nccl_version="2.28.9")}, ""),
    ],
)
def test_every_launch_has_to_prove_itself(fields, missing):
    good = measured(FAST, evidence=Evidence(nccl_version="2.28.9"))
    launches = [launch(FAST, good, 1), launch(FAST, measured(FAST, **fields), 2)]
    found = proof.unproven(launches, FAST, "nccl")
    assert missing in found
    assert bool(found) == bool(missing)
    if "log" in missing or "never" in missing:
        assert proof.unproven(launches, FAST, "gloo") == ""


def test_two_ways_to_the_same_choice_are_one_and_the_simpler_stays():
    knobs = load_catalogue().knobs
    shown = [name for name, knob in knobs.items() if knob.values.kind in ("algorithms", "protocols")][:2]
    hidden = next(name for name, knob in knobs.items() if knob.role is None and knob.values.kind == "integer")
    simple, both = Candidate(settings={shown[0]: "x"}), Candidate(settings={shown[0]: "x", shown[1]: "y"})
    more = Candidate(settings={shown[0]: "x", hidden: "7"})
    same = Evidence(choices={"AllReduce 1024": "Ring Simple 8"}, channels=8)
    seen = [(candidate, proof.likeness(candidate, same, knobs)) for candidate in (both, more, simple)]
    assert proof.distinct(seen) == [simple, more]
    differing = Evidence(choices={"AllReduce 1024": "Tree Simple 8"}, channels=8)
    assert proof.likeness(both, differing, knobs) != proof.likeness(simple, same, knobs)
    assert proof.likeness(both, None, knobs) != proof.likeness(simple, None, knobs)
