"""Which batch size comes next, and which is taken."""

from __future__ import annotations

import pytest

from nccltune import records
from nccltune.workloads.ladder import Decision, Try, choice, choose, decide
from nccltune.workloads.request import Ladder

RULE = Ladder(first=32, idle_share=0.03, memory_share=0.8)
FITTING = Ladder(first=32, last=1000, idle_share=-1.0, memory_share=0.8)


def tries(*idle_and_memory: tuple[float | None, float | None], first: int = 32) -> list[Try]:
    return [
        Try(first << index, 1000.0 * (index + 1), idle, None, memory)
        for index, (idle, memory) in enumerate(idle_and_memory)
    ]


@pytest.mark.parametrize(
    ("measured", "rule", "expected"),
    [
        pytest.param([(0.4, 0.1)], RULE, Decision(64), id="goes on while the GPU idles"),
        pytest.param([(0.4, 0.1), (0.03, 0.15)], RULE, Decision(0, "busy"), id="at the share it is busy"),
        pytest.param([(0.4, 0.1), (0.031, 0.15)], RULE, Decision(128), id="a little above it is not"),
        pytest.param([(0.1, 0.1), (0.2, 0.15)], RULE, Decision(128), id="more idle than before is no end"),
        pytest.param([(0.4, 0.3), (0.3, 0.5)], RULE, Decision(0, "memory"), id="the next would take 90 percent"),
        pytest.param([(0.4, 0.3), (0.3, 0.46)], RULE, Decision(128), id="the next would take 78 percent"),
        pytest.param([(0.4, 0.5)], RULE, Decision(64), id="after the first the worst case just fits"),
        pytest.param([(0.4, 0.51)], RULE, Decision(0, "memory"), id="after the first the worst case does not fit"),
        pytest.param([(0.4, 0.45), (0.01, 0.82)], RULE, Decision(0, "memory"), id="busy but too large"),
        pytest.param([(0.4, 0.5), (0.3, 0.4)], RULE, Decision(128), id="memory that shrinks foretells no less"),
        pytest.param([(None, None)], RULE, Decision(0, "not measured"), id="a CPU tells nothing"),
        pytest.param([(None, 0.1)], RULE, Decision(64), id="one lost profile is no end"),
        pytest.param([(None, 0.1), (None, 0.15)], RULE, Decision(0, "not measured"), id="two in a row are"),
        pytest.param([(None, 0.1), (0.2, 0.15), (None, 0.2)], RULE, Decision(256), id="two apart are not"),
        pytest.param([(None, 0.1)] * 3, FITTING, Decision(256), id="idle shares are not asked for"),
        pytest.param([(0.0, 0.1)], FITTING, Decision(64), id="nothing is busy enough"),
        pytest.param([(None, 0.1)] * 5, FITTING, Decision(1000), id="the last step is shorter"),
        pytest.param([(None, 0.1)], Ladder(32, 32, -1.0), Decision(0, "largest"), id="the end of the ladder"),
    ],
)
def test_what_comes_next(measured: list[tuple[float, float]], rule: Ladder, expected: Decision) -> None:
    assert decide(tries(*measured), rule) == expected


@pytest.mark.parametrize(
    ("measured", "rule", "expected"),
    [
        pytest.param([(0.4, 0.1), (0.02, 0.2)], RULE, 64, id="the busy one"),
        pytest.param([(0.4, 0.1), (0.05, 0.2), (0.07, 0.3)], RULE, 64, id="the least idle, not the last"),
        pytest.param([(0.07, 0.1), (0.07, 0.2)], RULE, 64, id="the larger of equals"),
        pytest.param([(0.4, 0.45), (0.01, 0.82)], RULE, 32, id="none that takes too much"),
        pytest.param([(0.4, 0.9)], RULE, 32, id="but the first, where there is no other"),
        pytest.param([(None, None)], RULE, 32, id="the first of a CPU"),
        pytest.param([(0.3, 0.1), (None, 0.2)], RULE, 32, id="what is known before what is not"),
        pytest.param([(None, 0.1), (None, 0.5)], FITTING, 64, id="the largest that fits"),
        pytest.param([(None, 0.1), (None, 0.81)], FITTING, 32, id="the largest within the share"),
    ],
)
def test_which_is_taken(measured: list[tuple[float, float]], rule: Ladder, expected: int) -> None:
    assert choose(tries(*measured), rule) == expected


def test_a_size_that_did_not_fit_is_never_taken() -> None:
    assert choose([*tries((0.4, 0.1)), Try(64)], RULE) == 32


def test_the_memory_of_a_model_that_grows_in_a_straight_line_is_foretold_exactly() -> None:
    """Weights 10 %, each sample 0.1 %: 512 take 61.2 %, 1024 would take 112 %."""
    seen: list[Try] = []
    size = RULE.first
    while size:
        seen.append(Try(size, 1.0, 0.2, None, 0.1 + 0.001 * size))
        size = decide(seen, RULE).next
    assert [each.batch_size for each in seen] == [32, 64, 128, 256, 512]
    assert decide(seen, RULE) == Decision(0, "memory")


def test_a_choice_is_the_record_of_one() -> None:
    found = choice([*tries((0.4, 0.1), (0.06, 0.2)), Try(128)], RULE, "out of memory")

    record = records.BatchChoice.model_validate(found)
    assert (record.batch_size, record.chosen.idle_share, record.tries[-1].step_us) == (64, 0.06, None)
    assert set(found["tries"][0]) == set(records.BatchTry.model_fields)
