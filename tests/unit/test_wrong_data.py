"""One wrong sum is enough: the candidate does not come back."""

from __future__ import annotations

import pytest

from nccltune.records import Candidate, Failure, Launch
from nccltune.study.entries import MAY_RETURN, NEVER_AGAIN
from nccltune.study.judgement import Judgement, judge

SETTING = Candidate(settings={"OMP_NUM_THREADS": "2"})


@pytest.mark.parametrize(("name", "constraint"), [("wrong_data", NEVER_AGAIN), ("hang_timeout", MAY_RETURN)])
def test_a_first_failure_bars_a_candidate_where_it_was_a_wrong_sum(name: str, constraint: float) -> None:
    failed = Launch(
        launch_id="0004-search",
        purpose="search",
        candidate=SETTING,
        trial=1,
        started_at="2026-01-01T00:00:00.000+00:00",
        wall_s=1.0,
        folder="launches/0004-search",
        outcome=Failure(name=name, blame="candidate", message="element 777 is 3, not 2"),
    )

    judged = judge([failed], SETTING, 1)

    assert isinstance(judged, Judgement)
    assert (judged.state, judged.constraint) == ("infeasible", constraint)
