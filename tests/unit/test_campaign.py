"""Campaigns over a fake runner: what is launched, what is charged to whom, and that nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nccltune.errors import EnvironmentFault, Interrupted, StudyError
from nccltune.records import (
    DEFAULT,
    Blame,
    Candidate,
    Dimension,
    Evidence,
    Failure,
    Launch,
    Measurement,
    Outcome,
    Purpose,
    RankReport,
    Request,
    ResultFile,
    Space,
)
from nccltune.study.campaign import Budget, Campaign, Observers, ranked
from nccltune.study.entries import Intent, TrialEntry
from nccltune.study.ledger import Ledger
from nccltune.study.ranking import Ranked
from nccltune.study.search import Search
from nccltune.trial.paths import launch_paths

SPACE = Space(
    name="toy",
    dimensions=(
        Dimension(name="A", values=(None, "1", "2", "3")),
        Dimension(name="B", values=(None, "x", "y", "z")),
        Dimension(name="C", values=(None, "p", "q")),
    ),
    backend="gloo",
)


def measurement(value: float) -> Measurement:
    return Measurement(step_times_us=(value,), clock="host", warmup_steps=1)


def speed(candidate: Candidate) -> float:
    gains = {"A=2": 20.0, "B=y": 10.0, "C=q": 5.0}
    return 100.0 - sum(gains.get(f"{name}={value}", 0.0) for name, value in candidate.settings.items())


class Fake:
    def __init__(self, answer: Callable[[Candidate, int], Outcome] | None = None) -> None:
        self.answer = answer or (lambda candidate, _: measurement(speed(candidate)))
        self.requests: list[Request] = []

    def run(self, request: Request) -> Outcome:
        self.requests.append(request)
        earlier = sum(one.candidate == request.candidate for one in self.requests) - 1
        return self.answer(request.candidate, earlier)


def request_for(candidate: Candidate, launch_id: str, purpose: Purpose) -> Request:
    return Request(study="s", launch_id=launch_id, token="t", workload="allreduce", backend="gloo", candidate=candidate)


def failure(blame: Blame = "candidate", *, retry: bool = False, stop: bool = False) -> Failure:
    return Failure(name=f"{blame}_fault", blame=blame, message="it broke", advice="mend it", retry=retry, stop=stop)


def setting(**settings: str) -> Candidate:
    return Candidate(settings=settings)


class Eyes:
    """An observer that remembers, and checks that the ledger was written first."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.seen: list[object] = []

    def on_launch_start(self, intent: Intent) -> None:
        assert Ledger.open(self.ledger.folder).entries[-1] == intent
        self.seen.append(intent)

    def on_launch_end(self, launch: Launch) -> None:
        assert Ledger.open(self.ledger.folder).entries[-1] == launch
        self.seen.append(launch)

    def on_trial(self, trial: TrialEntry, best: Ranked | None) -> None:
        assert Ledger.open(self.ledger.folder).entries[-1] == trial
        self.seen.append((trial, best))

    def on_note(self, text: str) -> None:
        self.seen.append(text)


ONE = Space(name="one", dimensions=(Dimension(name="A", values=(None, "1")),), backend="gloo")


def study(
    tmp_path: Path,
    answer: Callable[[Candidate, int], Outcome] | None = None,
    *,
    trials: int = 2,
    space: Space = ONE,
    seconds: float | None = None,
    clock: Callable[[], float] | None = None,
    noise: int = 2,
) -> tuple[Ledger, Fake]:
    """Run a study, or go on with it, as the main job would."""
    folder = tmp_path / "s"
    ledger = Ledger.open(folder) if Ledger.exists(folder) else Ledger.create(folder, {})
    with ledger:
        ledger.adopt()
        fake = Fake(answer)
        options = {"clock": clock} if clock else {}
        campaign = Campaign(ledger, fake, request_for, Eyes(ledger), **options)
        campaign.noise_floor(noise)
        search = Search(space, lambda candidate: None, trials, 0, None, "s", ledger.trials)
        campaign.search(search, Budget(trials, seconds))
    return ledger, fake


def only(ledger: Ledger, candidate: Candidate) -> TrialEntry:
    (trial,) = [trial for trial in ledger.trials if trial.candidate == candidate]
    return trial


# ---- the whole


def test_search_finds_the_fastest_and_keeps_the_budget(tmp_path: Path) -> None:
    ledger, _ = study(tmp_path, trials=30, space=SPACE)
    assert ledger.trials[0].candidate.is_default
    assert sum(trial.launched for trial in ledger.trials) == 30
    assert ranked(ledger)[0].candidate == setting(A="2", B="y", C="q")
    assert Ledger.open(ledger.folder).entries == ledger.entries


def test_same_command_again_adds_nothing_once_the_budget_is_spent(tmp_path: Path) -> None:
    ledger, _ = study(tmp_path, trials=12, space=SPACE)
    again, fake = study(tmp_path, trials=12, space=SPACE)
    assert fake.requests == []
    assert again.entries == ledger.entries
    more, fake = study(tmp_path, trials=14, space=SPACE)
    assert len([request for request in fake.requests if not request.candidate.is_default]) == 2
    assert more.entries[: len(ledger.entries)] == ledger.entries


def test_noise_floor_launches_are_the_samples_of_trial_0(tmp_path: Path) -> None:
    values = iter([100.0, 102.0, 101.0])
    ledger, _ = study(tmp_path, lambda candidate, _: measurement(next(values)), trials=1, noise=3)
    assert [launch.purpose for launch in ledger.launches] == ["noise-floor"] * 3
    assert only(ledger, DEFAULT).value_us == 101.0
    assert ledger.noise is not None
    assert ledger.noise.medians == (100.0, 102.0, 101.0)
    assert ledger.noise.relative == pytest.approx(2.0 / 1.693 / 101.0, rel=1e-3)


def test_noise_floor_of_a_resumed_study_launches_only_what_is_missing(tmp_path: Path) -> None:
    study(tmp_path, trials=1, noise=2)
    ledger, fake = study(tmp_path, trials=1, noise=4)
    assert len(fake.requests) == 2
    assert ledger.noise is not None
    assert ledger.noise.n == 4


def test_default_is_measured_again_at_intervals(tmp_path: Path) -> None:
    ledger, _ = study(tmp_path, trials=26, space=SPACE)
    trials = 0
    gaps = []
    for entry in ledger.entries:
        if isinstance(entry, TrialEntry) and entry.launched and entry.number:
            trials += 1
        elif isinstance(entry, Launch) and entry.purpose == "drift":
            gaps.append(trials)
            trials = 0
    assert gaps == [8, 8, 8]


def test_time_budget_counts_launches_of_earlier_runs(tmp_path: Path) -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()

    def ten_seconds(candidate: Candidate, _: int) -> Outcome:
        clock.now += 10
        return measurement(speed(candidate))

    ledger, _ = study(tmp_path, ten_seconds, trials=50, space=SPACE, seconds=65, clock=clock)
    assert len(ledger.launches) == 7
    assert sum(launch.wall_s for launch in ledger.launches) == 70
    _, fake = study(tmp_path, ten_seconds, trials=50, space=SPACE, seconds=65, clock=clock)
    assert fake.requests == []
    _, fake = study(tmp_path, ten_seconds, trials=50, space=SPACE, seconds=85, clock=clock)
    assert len(fake.requests) == 2


# ---- blame


def test_fault_of_the_infrastructure_is_tried_again_and_charged_to_nobody(tmp_path: Path) -> None:
    def flaky(candidate: Candidate, earlier: int) -> Outcome:
        bad = not candidate.is_default and earlier < 2
        return failure("infrastructure") if bad else measurement(speed(candidate))

    ledger, _ = study(tmp_path, flaky)
    trial = only(ledger, setting(A="1"))
    assert (trial.state, trial.constraint) == ("measured", 0.0)
    assert [launch.attempt for launch in ledger.launches if launch.candidate == setting(A="1")] == [1, 2, 3]
    assert ranked(ledger)[-1].samples >= 1


def test_infrastructure_that_stays_broken_loses_the_trial_and_then_ends_the_study(tmp_path: Path) -> None:
    def broken(candidate: Candidate, _: int) -> Outcome:
        return measurement(100.0) if candidate.is_default else failure("infrastructure")

    ledger, fake = study(tmp_path, broken)
    trial = only(ledger, setting(A="1"))
    assert (trial.state, trial.constraint) == ("lost", 0.0)
    assert sum(not request.candidate.is_default for request in fake.requests) == 3
    with pytest.raises(StudyError, match="3 trials in a row were lost"):
        study(tmp_path / "more", broken, trials=20, space=SPACE)


@pytest.mark.parametrize(
    ("fault", "launches", "constraint"),
    [
        (failure("candidate"), 1, 1.0),
        (failure("candidate", retry=True), 2, 2.0),
        (failure("unknown"), 2, 2.0),
        (failure("workload"), 1, 1.0),
    ],
)
def test_failed_candidate_is_tried_again_only_where_that_may_help(
    tmp_path: Path, fault: Failure, launches: int, constraint: float
) -> None:
    ledger, fake = study(tmp_path, lambda candidate, _: measurement(100.0) if candidate.is_default else fault)
    trial = only(ledger, setting(A="1"))
    assert (trial.state, trial.constraint) == ("infeasible", constraint)
    assert trial.reason == f"{fault.name}: it broke"
    assert sum(request.candidate == setting(A="1") for request in fake.requests) == launches


def test_one_failure_of_unknown_blame_and_then_a_number_is_a_measurement(tmp_path: Path) -> None:
    def once(candidate: Candidate, earlier: int) -> Outcome:
        bad = not candidate.is_default and earlier == 0
        return failure("unknown") if bad else measurement(speed(candidate))

    ledger, _ = study(tmp_path, once)
    assert only(ledger, setting(A="1")).state == "measured"
    assert setting(A="1") in [entry.candidate for entry in ranked(ledger)]


def test_candidate_that_failed_twice_by_its_own_fault_is_never_launched_again(tmp_path: Path) -> None:
    crash = {"1", "3"}

    def half(candidate: Candidate, _: int) -> Outcome:
        return failure() if candidate.settings.get("A") in crash else measurement(speed(candidate))

    ledger, fake = study(tmp_path, half, trials=45, space=SPACE)
    failed = Counter(r.candidate for r in fake.requests if r.candidate.settings.get("A") in crash)
    assert failed
    assert max(failed.values()) <= 2
    assert not any(entry.candidate.settings.get("A") in crash for entry in ranked(ledger))


def test_candidate_that_failed_by_its_own_fault_is_never_the_best(tmp_path: Path) -> None:
    def sometimes(candidate: Candidate, earlier: int) -> Outcome:
        if candidate.is_default:
            return measurement(100.0)
        return failure("candidate", retry=True) if earlier == 0 else measurement(1.0)

    ledger, _ = study(tmp_path, sometimes)
    assert [entry.candidate for entry in ranked(ledger)] == [DEFAULT]


def test_environment_fault_that_the_default_shows_too_stops_the_study_with_advice(tmp_path: Path) -> None:
    sick = [False]

    def machine(candidate: Candidate, _: int) -> Outcome:
        if not candidate.is_default:
            sick[0] = True
        return failure("environment", stop=True) if sick[0] else measurement(100.0)

    with pytest.raises(EnvironmentFault, match=r"it broke; mend it"):
        study(tmp_path, machine, trials=10, space=SPACE)
    ledger = Ledger.open(tmp_path / "s")
    assert [isinstance(launch.outcome, Failure) for launch in ledger.launches] == [False, False, True, True]
    assert len(ledger.trials) == 1, "nobody was charged"

    # The machine is mended: the same command goes on with the trial in which it stopped.
    accused = ledger.launches[2].candidate
    resumed, fake = study(tmp_path, lambda candidate, _: measurement(speed(candidate)), trials=10, space=SPACE)
    assert [request.candidate for request in fake.requests[:2]] == [DEFAULT, accused]
    assert resumed.trials[1].candidate == accused
    assert resumed.trials[1].state == "measured"


def test_environment_fault_under_one_candidate_only_is_its_own(tmp_path: Path) -> None:
    def touchy(candidate: Candidate, _: int) -> Outcome:
        return measurement(100.0) if candidate.is_default else failure("environment", stop=True)

    ledger, _ = study(tmp_path, touchy)
    assert only(ledger, setting(A="1")).state == "infeasible"
    assert [launch.purpose for launch in ledger.launches[-2:]] == ["search", "drift"]


def test_default_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    ledger, _ = study(
        tmp_path, lambda candidate, earlier: failure("unknown") if earlier == 0 else measurement(100.0), trials=1
    )
    assert only(ledger, DEFAULT).state == "measured"
    assert ledger.noise is not None
    assert ledger.noise.n == 2


@pytest.mark.parametrize(
    ("fault", "error", "launches"),
    [
        (failure("environment", stop=True), EnvironmentFault, 1),
        (failure("workload"), StudyError, 2),
        (failure("candidate"), StudyError, 2),
        (failure("infrastructure"), StudyError, 6),
    ],
)
def test_default_that_fails_ends_the_study(
    tmp_path: Path, fault: Failure, error: type[Exception], launches: int
) -> None:
    with pytest.raises(error, match=r"the default settings fail here .*it broke; mend it"):
        study(tmp_path, lambda candidate, _: fault)
    assert len(Ledger.open(tmp_path / "s").launches) == launches


def test_default_is_asked_when_nothing_else_works_any_more(tmp_path: Path) -> None:
    ledger, _ = study(
        tmp_path,
        lambda candidate, _: measurement(100.0) if candidate.is_default else failure(),
        trials=10,
        space=SPACE,
    )
    assert sum(launch.purpose == "drift" for launch in ledger.launches) == 2


# ---- evidence


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Evidence(refused={"A": "out of range"}), "A=1 was refused: out of range"),
        (Evidence(echoed={"A": "7"}), "A=1 was read as 7"),
    ],
)
def test_setting_that_did_not_take_effect_is_invalid_and_never_scored(
    tmp_path: Path, outcome: Evidence, reason: str
) -> None:
    def answer(candidate: Candidate, _: int) -> Outcome:
        fast = measurement(1.0).model_copy(update={"evidence": outcome})
        return measurement(100.0) if candidate.is_default else fast

    ledger, fake = study(tmp_path, answer, trials=6)
    trial = only(ledger, setting(A="1"))
    assert (trial.state, trial.value_us, trial.reason) == ("invalid", None, reason)
    assert [entry.candidate for entry in ranked(ledger)] == [DEFAULT]
    assert sum(not request.candidate.is_default for request in fake.requests) == 1


@pytest.mark.parametrize(
    ("echo", "state"), [({"A": "1"}, "measured"), ({"A": "2"}, "invalid"), ({"B": "1"}, "invalid")]
)
def test_what_a_rank_saw_must_be_the_candidate(tmp_path: Path, echo: dict[str, str], state: str) -> None:
    rank = RankReport(rank=0, local_rank=0, host="h", pid=1, device="cpu", torch_version="2", echo=echo)

    def answer(candidate: Candidate, _: int) -> Outcome:
        return measurement(100.0) if candidate.is_default else measurement(1.0).model_copy(update={"ranks": (rank,)})

    ledger, _ = study(tmp_path, answer)
    assert only(ledger, setting(A="1")).state == state


def test_value_that_is_printed_in_another_form_is_the_same_value(tmp_path: Path) -> None:
    evidence = Evidence(echoed={"A": "1 ", "B": "TREE", "C": "4096"})
    space = Space(name="x", dimensions=(), start=(setting(A="1", B="tree", C="0x1000"),), backend="gloo")
    ledger, _ = study(
        tmp_path, lambda candidate, _: measurement(1.0).model_copy(update={"evidence": evidence}), space=space
    )
    assert [trial.state for trial in ledger.trials] == ["measured", "measured"]


def test_inert_settings_are_merged_with_the_candidate_without_them(tmp_path: Path) -> None:
    space = Space(
        name="two",
        dimensions=(Dimension(name="A", values=(None, "1")), Dimension(name="B", values=(None, "1"))),
        backend="gloo",
    )
    values = {"default": 100.0, "A=1": 80.0, "B=1": 104.0, "A=1 B=1": 82.0}

    def answer(candidate: Candidate, _: int) -> Outcome:
        evidence = Evidence(inert=("B",) if "B" in candidate.settings else ())
        return measurement(values[candidate.key]).model_copy(update={"evidence": evidence})

    ledger, _ = study(tmp_path, answer, trials=4, space=space)
    best = ranked(ledger)
    assert [entry.candidate.key for entry in best] == ["A=1", "default"]
    assert sorted(best[0].medians_us) == [80.0, 82.0]
    assert best[0].value_us == 81.0
    assert sorted(best[1].medians_us) == [100.0, 100.0, 104.0]
    assert {note.text for note in ledger.notes} == {
        "B was never consulted: B=1 counts as default",
        "B was never consulted: A=1 B=1 counts as A=1",
    }


@pytest.mark.parametrize(
    ("only_b", "order"),
    [
        (100.5, ["A=1", "A=1 B=1", "default", "B=1"]),
        # Within the noise of 10 %, and yet worth a fresh look.
        (97.0, ["A=1", "A=1 B=1", "B=1", "default"]),
    ],
)
def test_ties_go_to_the_candidate_nearest_the_default(tmp_path: Path, only_b: float, order: list[str]) -> None:
    values = {"A=1": 90.5, "A=1 B=1": 90.0, "B=1": only_b}
    noise = iter([100.0, 108.0, 101.0])
    space = Space(
        name="two",
        dimensions=(Dimension(name="A", values=(None, "1")), Dimension(name="B", values=(None, "1"))),
        backend="gloo",
    )
    ledger, _ = study(
        tmp_path,
        lambda candidate, _: measurement(next(noise) if candidate.is_default else values[candidate.key]),
        trials=4,
        space=space,
        noise=3,
    )
    assert [entry.candidate.key for entry in ranked(ledger)] == order


def test_confirming_launches_are_no_samples_of_the_search(tmp_path: Path) -> None:
    ledger, _ = study(tmp_path)
    Campaign(ledger, Fake(lambda *_: measurement(1.0)), request_for).launch(setting(A="1"), "confirm", round=1)
    assert ledger.launches[-1].round == 1
    assert {entry.value_us for entry in ranked(ledger)} == {100.0}


# ---- nothing is lost


class Stopped(Fake):
    """Stops like Ctrl-C in the launch with a given number; may leave the result of that launch behind."""

    def __init__(self, at: int, folder: Path, leave_result: bool) -> None:
        super().__init__()
        self.at, self.folder, self.leave_result = at, folder, leave_result

    def run(self, request: Request) -> Outcome:
        outcome = super().run(request)
        if len(self.requests) != self.at:
            return outcome
        if self.leave_result and isinstance(outcome, Measurement):
            paths = launch_paths(self.folder, request.launch_id)
            paths.folder.mkdir(parents=True)
            paths.request.write_text(request.model_dump_json())
            result = ResultFile(token=request.token, status="ok", measurement=outcome)
            paths.result.write_text(result.model_dump_json())
        raise Interrupted("stopped by Ctrl-C")


def essence(ledger: Ledger) -> list[object]:
    """What a study found, less times of day."""
    return [
        (entry.candidate, entry.purpose, entry.trial, entry.outcome) if isinstance(entry, Launch) else entry
        for entry in ledger.entries
        if isinstance(entry, Launch | TrialEntry)
    ]


@pytest.mark.parametrize("leave_result", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 7, 12, 13])
def test_interrupted_anywhere_the_study_ends_as_if_it_had_not_been(tmp_path: Path, at: int, leave_result: bool) -> None:
    straight, fake = study(tmp_path / "straight", trials=12, space=SPACE)
    folder = tmp_path / "s"
    stopped = Stopped(at, folder, leave_result)
    with Ledger.create(folder, {}) as ledger:
        campaign = Campaign(ledger, stopped, request_for)
        with suppress(Interrupted):
            campaign.noise_floor(2)
            campaign.search(Search(SPACE, lambda _: None, 12, 0, None, "s"), Budget(12))
        assert len(stopped.requests) == at
    resumed, again = study(tmp_path, trials=12, space=SPACE)
    assert essence(resumed) == essence(straight)
    assert len(again.requests) == len(fake.requests) - at + (0 if leave_result else 1)


def test_cut_after_any_whole_line_the_study_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    straight, _ = study(tmp_path / "straight", trials=10, space=SPACE)
    lines = straight.path.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines), 3):
        folder = tmp_path / str(kept) / "s"
        folder.mkdir(parents=True)
        (folder / "ledger.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:11])
        resumed, _ = study(folder.parent, trials=10, space=SPACE)
        assert essence(resumed) == essence(straight)


def test_launch_ids_are_never_used_twice(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with Ledger.create(folder, {}) as ledger, pytest.raises(Interrupted):
        Campaign(ledger, Stopped(2, folder, False), request_for).noise_floor(3)
    ledger, _ = study(tmp_path, trials=6, space=SPACE)
    ids = [intent.launch_id for intent in ledger.intents]
    assert len(set(ids)) == len(ids)


def test_observers_are_told_in_order_after_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "s", {})
    first, second = Eyes(ledger), Eyes(ledger)
    campaign = Campaign(ledger, Fake(), request_for, Observers(first, second))
    campaign.noise_floor(2)
    campaign.search(Search(ONE, lambda _: None, 2, 0, None, "s"), Budget(2))
    campaign.note("done")
    assert first.seen == second.seen
    kinds = [type(thing).__name__ for thing in first.seen]
    assert kinds == ["Intent", "Launch"] * 2 + ["tuple", "Intent", "Launch", "tuple", "str"]
