"""The search: what is proposed, what costs no launch, and that a mirror can fail."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from nccltune.records import DEFAULT, Candidate, Dimension, Space
from nccltune.study.entries import MAY_RETURN, NEVER_AGAIN, TrialEntry, TrialState
from nccltune.study.search import SAMPLE_CAP, Proposal, Search

A = Dimension(name="A", values=(None, "1", "2", "3", "4", "5"))
B = Dimension(name="B", values=(None, "u", "v", "w", "x", "y"))
WIDE = Space(name="wide", dimensions=(A, B), backend="gloo")
SMALL = Space(
    name="small", dimensions=(Dimension(name="A", values=(None, "1", "2")), Dimension(name="B", values=(None, "x")))
)


def everything(candidate: Candidate) -> str | None:
    return None


def no_b(candidate: Candidate) -> str | None:
    return "B is never set here" if "B" in candidate.settings else None


def new(
    space: Space,
    budget: int,
    history: tuple[TrialEntry, ...] = (),
    *,
    illegal: Callable[[Candidate], str | None] = everything,
    url: str | None = None,
    seed: int = 0,
) -> Search:
    return Search(space, illegal, budget, seed, url, "s", history)


def speed(candidate: Candidate) -> float:
    return 100.0 - 3 * int(candidate.settings.get("A", "0")) - 2 * len(candidate.settings.get("B", ""))


def answer(proposal: Proposal, value: Callable[[Candidate], float] = speed) -> TrialEntry:
    state: TrialState = "measured" if proposal.repeat_of is None else "repeat"
    return TrialEntry(
        number=proposal.number, candidate=proposal.candidate, state=state, value_us=value(proposal.candidate)
    )


def failed(proposal: Proposal, constraint: float = NEVER_AGAIN) -> TrialEntry:
    return TrialEntry(
        number=proposal.number,
        candidate=proposal.candidate,
        state="infeasible",
        constraint=constraint,
        reason="hang: it hangs",
    )


def drive(
    search: Search, judge: Callable[[Proposal], TrialEntry] = answer, stop_after: int | None = None
) -> list[TrialEntry]:
    launched = []
    while (proposal := search.propose()) is not None:
        assert [entry.number for entry in proposal.skipped] == list(
            range(proposal.number - len(proposal.skipped), proposal.number)
        )
        entry = judge(proposal)
        search.tell(entry)
        launched.append(entry)
        if len(launched) == stop_after:
            break
    return launched


def test_trial_0_is_the_default_and_starts_come_next() -> None:
    starts = (Candidate(settings={"A": "5"}), Candidate(settings={"B": "u", "A": "1"}))
    search = new(WIDE.model_copy(update={"start": starts}), 10)
    launched = drive(search)
    assert [trial.candidate for trial in launched[:3]] == [DEFAULT, *starts]
    assert len(launched) == search.spent == 10


def test_illegal_start_is_left_out() -> None:
    space = WIDE.model_copy(update={"start": (Candidate(settings={"B": "u"}), Candidate(settings={"A": "2"}))})
    launched = drive(new(space, 3, illegal=no_b))
    assert [trial.candidate.key for trial in launched[:2]] == ["default", "A=2"]


def test_search_learns() -> None:
    launched = drive(new(WIDE, 30))
    early = sum(trial.value_us or 0 for trial in launched[1:9]) / 8
    late = sum(trial.value_us or 0 for trial in launched[-8:]) / 8
    assert late < early
    assert min(trial.value_us or 0 for trial in launched) <= speed(Candidate(settings={"A": "5"})) + 2


def test_resumed_search_proposes_what_the_uninterrupted_one_would() -> None:
    straight = new(WIDE, 25)
    drive(straight)
    for cut in (1, 7, 13, 24):
        history = list(straight.trials)
        stop = next(i for i, trial in enumerate(history) if sum(t.launched for t in history[: i + 1]) == cut) + 1
        resumed = new(WIDE, 25, tuple(history[:stop]))
        drive(resumed)
        assert resumed.trials == straight.trials
    other = new(WIDE, 25, seed=1)
    drive(other)
    assert other.trials != straight.trials


def test_illegal_proposals_cost_no_launch_and_are_told_infeasible() -> None:
    search = new(WIDE, 5, illegal=no_b)
    launched = drive(search)
    assert len(launched) == 5
    assert all("B" not in trial.candidate.settings for trial in launched)
    illegal = [trial for trial in search.trials if trial.state == "illegal"]
    assert illegal
    assert {trial.reason for trial in illegal} == {"B is never set here"}
    study = search._study
    assert all(study.trials[trial.number].constraints == {"feasible": NEVER_AGAIN} for trial in illegal)
    assert all(study.trials[trial.number].state == optuna.trial.TrialState.COMPLETE for trial in illegal)


def test_needle_in_a_haystack_of_illegal_ones_is_found_by_looking_at_all() -> None:
    many = tuple(str(number) for number in range(40))
    space = Space(name="hay", dimensions=(Dimension(name="A", values=many), Dimension(name="B", values=many)))
    needles = {DEFAULT, *(Candidate(settings={"A": str(n), "B": str(n)}) for n in range(10))}
    search = new(space, 4, illegal=lambda candidate: None if candidate in needles else "hay")
    launched = drive(search)
    assert len(launched) == 4
    assert len({trial.candidate for trial in launched}) > 1
    assert {trial.candidate for trial in launched} <= needles
    assert len(search.trials) < 200


def test_crashing_half_is_drawn_less_often_than_by_chance() -> None:
    def half(proposal: Proposal) -> TrialEntry:
        crash = proposal.candidate.settings.get("A") in ("1", "2", "3")
        return failed(proposal, MAY_RETURN) if crash else answer(proposal)

    crashes = [sum(trial.state == "infeasible" for trial in drive(new(WIDE, 30, seed=seed), half)) for seed in range(6)]
    assert sum(crashes) / len(crashes) < 12, "uniform drawing would give 15"


def test_failed_for_good_is_never_proposed_again_and_failed_once_may_be() -> None:
    def crash(constraint: float) -> Counter[Candidate]:
        def judge(proposal: Proposal) -> TrialEntry:
            return answer(proposal) if proposal.candidate.is_default else failed(proposal, constraint)

        return Counter(trial.candidate for trial in drive(new(WIDE, 30), judge) if not trial.candidate.is_default)

    assert set(crash(NEVER_AGAIN).values()) == {1}
    assert max(crash(MAY_RETURN).values()) > 1


def test_repeats_are_capped_and_then_told_with_the_known_value() -> None:
    # One candidate is so much better that the sampler goes back to it again and again.
    def peak(candidate: Candidate) -> float:
        return 1.0 if candidate.key == "A=5 B=y" else 1000.0

    space = WIDE.model_copy(update={"start": (Candidate(settings={"A": "5", "B": "y"}),)})
    search = new(space, 34)
    launched = drive(search, lambda proposal: answer(proposal, peak))
    counts = Counter(trial.candidate for trial in launched)
    assert 1 < counts[space.start[0]] <= SAMPLE_CAP
    assert max(counts.values()) <= SAMPLE_CAP
    known = [trial for trial in search.trials if trial.state == "known" and trial.candidate == space.start[0]]
    assert all(trial.value_us == 1.0 for trial in known)


def test_repeat_names_the_first_trial_of_the_candidate() -> None:
    search = new(WIDE, 30)
    seen: dict[Candidate, int] = {}

    def judge(proposal: Proposal) -> TrialEntry:
        assert proposal.repeat_of == seen.get(proposal.candidate)
        seen.setdefault(proposal.candidate, proposal.number)
        return answer(proposal)

    assert any(trial.state == "repeat" for trial in drive(search, judge))


# ---- small spaces


def test_small_space_is_measured_whole_and_the_rest_repeats_the_best() -> None:
    search = new(SMALL, 12)
    assert search.exhaustive
    launched = drive(search)
    assert len({trial.candidate for trial in launched[:6]}) == 6
    assert launched[0].candidate == DEFAULT
    best = sorted({trial.candidate for trial in launched if not trial.candidate.is_default}, key=speed)[:3]
    assert Counter(trial.candidate for trial in launched[6:]) == dict.fromkeys(best, 2)
    assert all(trial.state == "repeat" for trial in launched[6:])


def test_order_of_a_small_space_depends_on_the_seed_alone() -> None:
    def order(seed: int) -> list[Candidate]:
        return [trial.candidate for trial in drive(new(SMALL, 6, seed=seed))]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


def test_budget_one_below_the_number_of_candidates_uses_the_sampler() -> None:
    assert not new(SMALL, 5).exhaustive
    assert new(SMALL, 6).exhaustive
    assert new(SMALL, 3, illegal=no_b).exhaustive


def test_failed_ones_of_a_small_space_are_not_repeated() -> None:
    def judge(proposal: Proposal) -> TrialEntry:
        return failed(proposal) if proposal.candidate.settings.get("A") == "2" else answer(proposal)

    launched = drive(new(SMALL, 20), judge)
    counts = Counter(trial.candidate for trial in launched)
    assert all(counts[candidate] == 1 for candidate in counts if candidate.settings.get("A") == "2")


@pytest.mark.parametrize("space", [Space(name="empty", dimensions=()), SMALL])
def test_nothing_left_to_learn_ends_the_search(space: Space) -> None:
    def judge(proposal: Proposal) -> TrialEntry:
        return answer(proposal) if proposal.candidate.is_default else failed(proposal)

    launched = drive(new(space, 50), judge)
    assert len(launched) == (1 if not space.dimensions else 6)


def test_space_without_unset_values_still_has_the_default_and_proposes_nothing_half_set() -> None:
    values = ("1", "2", "3", "4", "5", "6")
    space = Space(name="set", dimensions=(Dimension(name="A", values=values), Dimension(name="B", values=values)))
    launched = drive(new(space, 15), lambda proposal: answer(proposal, lambda candidate: 1.0 * len(candidate.key)))
    assert launched[0].candidate == DEFAULT
    assert all(set(trial.candidate.settings) == {"A", "B"} for trial in launched[1:])


def test_trials_out_of_order_are_refused() -> None:
    search = new(WIDE, 5)
    with pytest.raises(ValueError, match="where 0 is next"):
        search.tell(TrialEntry(number=3, candidate=DEFAULT, state="measured", value_us=1.0))


def test_history_from_a_wider_space_keeps_the_numbers_and_does_not_stop_the_sampler() -> None:
    history = (
        TrialEntry(number=0, candidate=DEFAULT, state="measured", value_us=100.0),
        TrialEntry(number=1, candidate=Candidate(settings={"Z": "1"}), state="measured", value_us=50.0),
        TrialEntry(number=2, candidate=Candidate(settings={"A": "9"}), state="measured", value_us=50.0),
        TrialEntry(number=3, candidate=Candidate(settings={"A": "1"}), state="lost"),
    )
    search = new(WIDE, 20, history)
    assert len(drive(search)) == 16


# ---- the mirror


def stored(url: str) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="s", storage=url).trials


def test_storage_holds_every_trial_and_is_carried_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    first = new(WIDE, 6, url=url, illegal=no_b)
    drive(first)
    assert [trial.user_attrs["state"] for trial in stored(url)] == [trial.state for trial in first.trials]
    second = new(WIDE, 7, first.trials, url=url, illegal=no_b)
    drive(second)
    assert len(second.trials) > len(first.trials)
    assert [trial.params for trial in stored(url)] == [trial.params for trial in second._study.trials]
    assert not any(trial.state == optuna.trial.TrialState.RUNNING for trial in stored(url))


def test_lost_storage_is_rebuilt_from_the_history(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    search = new(WIDE, 6)
    drive(search)
    new(WIDE, 6, search.trials, url=url)
    assert [trial.value for trial in stored(url)] == [trial.value for trial in search._study.trials]


def test_storage_of_another_study_under_the_same_name_is_written_anew(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    drive(new(WIDE, 9, url=url, seed=1))
    mine = new(WIDE, 6, url=url, seed=2)
    drive(mine)
    assert [trial.params for trial in stored(url)] == [trial.params for trial in mine._study.trials]


def test_locked_storage_costs_one_warning_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    search = new(WIDE, 14, url=url)
    drive(search, stop_after=4)
    before = len(search.trials)
    lock = sqlite3.connect(tmp_path / "optuna.db")
    lock.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING):
        drive(search, stop_after=7)
        assert len(stored(url)) == before
        lock.close()
        drive(search)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "the search goes on without it" in warnings[0]
    assert "\n" not in warnings[0]
    assert search.spent == 14
    assert [trial.params for trial in stored(url)] == [trial.params for trial in search._study.trials]


@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/optuna.db", "nonsense", "postgresql://127.0.0.1:1/x"])
def test_broken_storage_costs_one_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        drive(new(WIDE, 5, url=url))
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_file_that_is_no_database_costs_one_warning_and_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "optuna.db").write_text("precious notes, no database at all" * 100)
    with caplog.at_level(logging.WARNING):
        drive(new(WIDE, 5, url=f"sqlite:///{tmp_path}/optuna.db"))
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert (tmp_path / "optuna.db").read_text().startswith("precious notes")


def test_optuna_says_nothing_on_stderr(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    drive(new(WIDE, 12, illegal=no_b))
    assert capfd.readouterr().err == ""
    assert [warning for warning in recwarn if issubclass(warning.category, optuna.exceptions.ExperimentalWarning)] == []
