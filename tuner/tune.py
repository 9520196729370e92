"""The main job, stage by stage. Read this first.

::

    plan.prepare   machine facts → workload → placement → space, narrowed by the facts → plan → study name
    run            lock → ledger → what a killed run left → batch size, where it is to be chosen
                   → one launch of the default: is the step host-bound? → noise floor (default against default)
                   → space, narrowed by what NCCL said → search → mirrored rounds of the finalists against the default
                   → verdict → profile, tables and report
"""

from __future__ import annotations

import json
import logging
import secrets
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from . import __version__
from . import batch as batches
from .errors import HostBound, Interrupted, ProfileError, StorageError, StudyError, StudyMismatch, UsageError
from .plan import Plan
from .records import DEFAULT, Candidate, Evidence, Measurement, Purpose, Reach, Request, Space, Verdict
from .report import page
from .report.source import Source
from .space import enumeration, legality, narrowing
from .study import campaign as campaigns
from .study import disturbed, host_bound, lock, precision, table, tracking
from .study.entries import NoiseFloor
from .study.ledger import Ledger, plan_differences
from .study.ranking import Ranked
from .study.search import Search
from .trial import process, runner
from .verdict import finals, reach
from .verdict import profile as profiles
from .verdict.reading import read_profile
from .verdict.sequence import Rule

_log = logging.getLogger(__name__)

NOISE_LAUNCHES = 3


class Watcher(campaigns.Observer, Protocol):
    """Who is told how the job goes."""

    def on_stage(self, name: str, launches: int) -> None:
        """A stage begins that is expected to take this many launches."""

    def on_noise_floor(self, floor: NoiseFloor, seconds: float) -> None:
        """The noise floor is known; ``seconds`` is what one launch takes."""

    def on_space(self, space: Space, count: enumeration.Count) -> None:
        """The space is as narrow as it gets."""


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """What the job came to.

    Attributes:
        ranking: Candidates of the search, best first.
        added: Launches of this run; 0 when the study was already finished.
        page: The report; ``None`` where it could not be written.
    """

    verdict: Verdict
    profile: profiles.Profile
    env_file: Path
    profile_file: Path
    table: Path
    study: Path
    ranking: tuple[Ranked, ...]
    failures: tuple[tuple[str, str], ...]
    added: int
    page: Path | None = None

    def as_json(self) -> str:
        """One JSON object for programs."""
        return json.dumps(
            {
                "verdict": self.verdict.model_dump(mode="json"),
                "settings": self.profile.settings,
                "numbers": self.profile.numbers.model_dump(mode="json"),
                "env_file": str(self.env_file),
                "profile": str(self.profile_file),
                "study": str(self.study),
                "report": str(self.page) if self.page else None,
                "launches_added": self.added,
            }
        )


def run(plan: Plan, watcher: Watcher, stop: Callable[[], bool], launcher: campaigns.Runner | None = None) -> Conclusion:
    """Run a study to its verdict, or go on with it.

    Args:
        plan: From ``plan.prepare``.
        watcher: Told how it goes.
        stop: Asked often; true ends the running launch and raises.
        launcher: What runs a launch; real processes where ``None``.

    Raises:
        Interrupted: ``stop`` said so; everything measured is kept.
        NccltuneError: See ``errors``.
    """
    _refuse_empty_space(plan)
    with ExitStack() as stack:
        stack.enter_context(lock.hold(plan.folder, _gpu_uuids(plan), plan.environ))
        ledger = stack.enter_context(_open(plan))
        _clean_up(plan, ledger)
        before = len(ledger.launches)
        tracker = tracking.Tracker(ledger, plan.study, plan.options.mlflow_uri) if plan.options.mlflow else None
        observer = campaigns.Observers(watcher, tracker) if tracker else watcher
        launcher = launcher or runner.LaunchRunner(plan.folder, stop=stop, environ=plan.environ)
        campaign = campaigns.Campaign(ledger, launcher, _requests(plan, ledger), observer)
        with _tracked(tracker):
            try:
                verdict = _stages(plan, ledger, campaign, watcher, tracker)
            except BaseException:
                _write_tables_if_possible(ledger)
                raise
            csv, _ = table.write_tables(ledger)
            if tracker:
                tracker.verdict(verdict, disturbed.count(ledger.launches))
        profile = _after_the_last(_profile(plan.settled(ledger.batch), ledger, verdict), plan.profile_folder)
        env_file, profile_file = profiles.write(profile, plan.profile_folder)
        return Conclusion(
            verdict=verdict,
            profile=profile,
            env_file=env_file,
            profile_file=profile_file,
            table=csv,
            study=plan.folder,
            ranking=tuple(campaigns.ranked(ledger)),
            failures=_failures(ledger),
            added=len(ledger.launches) - before,
            page=page.write_if_possible(Source(ledger=ledger, profile=profile, profile_file=profile_file)),
        )


def _stages(
    plan: Plan, ledger: Ledger, campaign: campaigns.Campaign, watcher: Watcher, tracker: tracking.Tracker | None
) -> Verdict:
    _first_launches(plan, ledger, campaign, watcher)
    floor = campaign.noise_floor(NOISE_LAUNCHES, lambda floor: _foresee(plan, ledger, floor))
    # Once more: the first launch's profile may have been lost, and the next one made it again.
    _refuse_host_bound(plan.settled(ledger.batch), host_bound.idle_share(ledger.launches))
    if tracker:
        tracker.noise_floor(floor)
    watcher.on_noise_floor(floor, _launch_seconds(ledger))

    if ledger.space is None:
        _ask_nccl(plan, ledger, campaign, DEFAULT)
    space = ledger.space or _narrow(plan, ledger)
    count = plan.count(space)
    watcher.on_space(space, count)

    watcher.on_stage("search", plan.trials)
    about = plan.circumstances(space)
    search = Search(
        space,
        lambda candidate: legality.why_illegal(candidate.settings, about),
        budget=plan.trials,
        seed=plan.options.seed,
        storage_url=plan.storage_url,
        study_name=plan.study,
        history=ledger.trials,
    )
    # Of a limit that nobody asked for the noise floor must not take everything: on a slow machine it takes minutes.
    least = 2 if plan.options.budget_s is None else 0
    campaign.search(search, campaigns.Budget(trials=plan.trials, seconds=plan.budget_s, least=least))

    verdict = finals.run(
        ledger,
        campaign,
        replace(_terms(plan), alone=count.legal <= 1),
        ask_nccl=lambda candidate: _ask_nccl(plan, ledger, campaign, candidate),
        on_rounds=lambda launches: watcher.on_stage("fresh rounds", launches),
    )
    if verdict != ledger.verdict:
        ledger.append(verdict)
    return verdict


def _first_launches(plan: Plan, ledger: Ledger, campaign: campaigns.Campaign, watcher: Watcher) -> None:
    """Settle the batch size, launch the default once, and refuse a step that no setting can help.

    Raises:
        HostBound: The GPU waits for the host.
        StudyError: The default fails.
    """
    if plan.auto_batch and ledger.batch is None:
        watcher.on_stage("batch size", 1)
    plan = batches.settle(plan, ledger, campaign, watcher.on_note)
    if plan.batch is not None:
        _refuse_host_bound(plan, plan.batch.chosen.idle_share)
    watcher.on_stage("noise floor", NOISE_LAUNCHES)
    try:
        campaign.noise_launches(1)
    except StudyError as error:
        raise (batches.too_large(plan, ledger, campaign) or error) from error
    share = host_bound.idle_share(ledger.launches)
    _refuse_host_bound(plan, share)
    text = host_bound.what(share, plan.batch)
    if text in {note.text for note in ledger.notes}:
        watcher.on_note(text)
    elif text:
        campaign.note(text)


def _refuse_host_bound(plan: Plan, share: float | None) -> None:
    if host_bound.is_host_bound(share) and not plan.options.force:
        raise HostBound(
            host_bound.what(share, plan.batch), host_bound.advice(has_batch="batch_size" in plan.workload.accepts)
        )


def _write_tables_if_possible(ledger: Ledger) -> None:
    """Write the tables of a study that was cut off; why it was cut off is what matters, not a table."""
    try:
        table.write_tables(ledger)
    except StorageError as error:
        _log.info("%s", error)


@contextmanager
def _tracked(tracker: tracking.Tracker | None) -> Iterator[None]:
    """Copy to MLflow meanwhile, and say there how the run ended."""
    if tracker is None:
        yield
        return
    tracker.start()
    ending: tracking.Ending = "FAILED"
    try:
        yield
        ending = "FINISHED"
    except Interrupted:
        ending = "KILLED"
        raise
    finally:
        tracker.close(ending)


# ---- before the first launch


def _refuse_empty_space(plan: Plan) -> None:
    """Refuse a space that the user named and that has nothing for this machine; of ``auto`` that is an answer."""
    if plan.options.space == "auto" or any(len(dimension.values) > 1 for dimension in plan.space.dimensions):
        return
    raise UsageError(
        f"the space {plan.space.name} leaves nothing but the default on this machine, so there is nothing to tune",
        f"'nccltune knobs --space {plan.options.space}' says why; --space auto takes one that fits",
    )


def _open(plan: Plan) -> Ledger:
    if not Ledger.exists(plan.folder):
        return Ledger.create(plan.folder, plan.identity)
    ledger = Ledger.open(plan.folder)
    differing = plan_differences(ledger.plan, plan.identity)
    if differing:
        ledger.close()
        shown = "; ".join(differing[:5]) + ("; …" if len(differing) > 5 else "")
        raise StudyMismatch(
            f"the study {plan.study} was made for something else: {shown}",
            "give another --study, or leave --study out to get a name that fits",
        )
    return ledger


def _clean_up(plan: Plan, ledger: Ledger) -> None:
    """End what a killed run left behind, then take its complete results over."""
    ended = process.sweep_study(plan.folder)
    if ended:
        _log.warning("ended %d processes that a killed run had left behind", len(ended))
    adopted = campaigns.take_over(ledger)
    if adopted:
        _log.info("took over %d results that a killed run had left", len(adopted))


def _requests(plan: Plan, ledger: Ledger) -> Callable[[Candidate, str, Purpose], Request]:
    """Make requests; the communication share is profiled once a candidate, outside the rounds that decide.

    A collective alone is all communication: there the default's share stands for all, and the seconds of every other
    profiled window buy launches instead.
    """

    def request(candidate: Candidate, launch_id: str, purpose: Purpose) -> Request:
        settled = plan.settled(ledger.batch)
        if purpose == "batch":
            return settled.batch_request(launch_id, secrets.token_hex(8))
        if purpose == "evidence":
            return settled.evidence_request(candidate, launch_id, secrets.token_hex(8))
        wanted = purpose in ("noise-floor", "search") and (candidate.is_default or not plan.workload.collective_only)
        profiled = wanted and not any(
            isinstance(launch.outcome, Measurement) and launch.outcome.communication is not None
            for launch in ledger.launches
            if launch.candidate == candidate
        )
        usual = [launch.wall_s for launch in ledger.launches if launch.purpose == "noise-floor"]
        usual_s = None if candidate.is_default or not usual else max(usual)
        made = settled.request(candidate, launch_id, secrets.token_hex(8), profiled=profiled, usual_s=usual_s)
        noise = ledger.noise if purpose != "noise-floor" else None
        return made.model_copy(update={"steps": precision.steps(made.steps, noise)})

    return request


def _gpu_uuids(plan: Plan) -> list[str]:
    return [gpu.uuid for gpu in plan.facts.gpus if gpu.uuid] if plan.backend == "nccl" else []


def _ask_nccl(plan: Plan, ledger: Ledger, campaign: campaigns.Campaign, candidate: Candidate) -> None:
    """Let NCCL log what it chooses for each message size, in a short launch of its own, once a candidate."""
    asked = any(launch.purpose == "evidence" and launch.candidate == candidate for launch in ledger.launches)
    if plan.backend == "nccl" and not asked:
        campaign.launch(candidate, "evidence")


def _evidence(ledger: Ledger, candidate: Candidate) -> Evidence:
    """What NCCL said under a candidate, most of all in its launch for evidence; empty where it said nothing (gloo)."""
    found = [
        (launch.purpose == "evidence", launch.outcome.evidence)
        for launch in ledger.launches
        if launch.candidate == candidate and isinstance(launch.outcome, Measurement) and launch.outcome.evidence
    ]
    return max(found, key=lambda entry: entry[0])[1] if found else Evidence()


def _narrow(plan: Plan, ledger: Ledger) -> Space:
    """Narrow the space by what NCCL said under the default, and store it: a resumed study reads it."""
    space = narrowing.narrow_by_evidence(plan.space, _evidence(ledger, DEFAULT), plan.catalogue)
    ledger.append(space)
    return space


def _launch_seconds(ledger: Ledger) -> float:
    return statistics.median(launch.wall_s for launch in ledger.launches if launch.purpose != "batch")


def _foresee(plan: Plan, ledger: Ledger, floor: NoiseFloor) -> Reach:
    """Foresee what the fresh rounds can show, with the most finalists and as many rounds as there is time for."""
    terms = _terms(plan)
    rounds = finals.affordable_rounds(ledger, terms, terms.finalists)
    rule = Rule(min_gain=terms.min_gain, rounds=rounds, finalists=terms.finalists)
    took = [launch.wall_s for launch in ledger.launches if launch.purpose == "noise-floor"]
    return reach.foresee(floor, rule, statistics.median(took))


# ---- after the search


def _terms(plan: Plan) -> finals.Terms:
    return finals.Terms(
        min_gain=plan.options.min_gain,
        rounds=plan.rounds,
        seconds=plan.rounds_s,
        finalists=plan.finalists,
        backend=plan.backend,
        ranks=plan.placement.world_size,
        collective_only=plan.workload.collective_only,
        knobs=plan.catalogue.knobs,
    )


def _failures(ledger: Ledger) -> tuple[tuple[str, str], ...]:
    """Candidates that could not be measured, and why."""
    bad = ("infeasible", "invalid", "lost")
    return tuple((trial.candidate.key, trial.reason) for trial in ledger.trials if trial.state in bad)


def _profile(plan: Plan, ledger: Ledger, verdict: Verdict) -> profiles.Profile:
    pairs = verdict.pairs
    default = next((entry for entry in campaigns.ranked(ledger) if entry.candidate == DEFAULT), None)
    numbers = profiles.Numbers(
        default_step_us=_median([pair.default_us for pair in pairs]) or (default.value_us if default else None),
        candidate_step_us=_median([pair.candidate_us for pair in pairs]),
        gain=verdict.gain,
        interval=verdict.interval,
        bounds=verdict.bounds,
        pairs=pairs,
        finalists=verdict.finalists,
        pays_after_steps=verdict.pays_after_steps,
        needed=verdict.needed,
        noise_floor=ledger.noise.relative if ledger.noise else None,
        reach=ledger.noise.reach if ledger.noise else None,
        disturbed=disturbed.count(ledger.launches),
        trials=sum(trial.launched for trial in ledger.trials),
        launches=len(ledger.launches),
        gpu_s=round(plan.placement.world_size * sum(launch.wall_s for launch in ledger.launches), 1),
    )
    settings = verdict.candidate.settings if verdict.word == "ship" else {}
    return profiles.Profile(
        cluster=plan.cluster,
        study=plan.study,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict.word,
        sentence=verdict.sentence,
        settings=settings,
        classes={name: plan.catalogue.knobs[name].docs for name in settings},
        workload=plan.workload.name,
        workload_options=dict(plan.workload_options),
        backend=plan.backend,
        emulated=plan.placement.emulated_nodes,
        collective_only=plan.workload.collective_only,
        withheld=_withheld(plan, verdict),
        min_gain=verdict.min_gain,
        numbers=numbers,
        proof=None if verdict.candidate.is_default else _evidence(ledger, verdict.candidate),
        conditions={
            **plan.identity["machine"],
            "world size": str(plan.placement.world_size),
            **host_bound.conditions(host_bound.idle_share(ledger.launches), plan.batch),
            "nccltune": __version__,
        },
        inherited=plan.identity["inherited"],
        commands=(plan.command(),),
    )


def _after_the_last(profile: profiles.Profile, folder: Path) -> profiles.Profile:
    """Keep what a validation found out about the same settings; say so where another study's answer is replaced."""
    try:
        last = read_profile(folder, thoroughly=False)
    except ProfileError:
        return profile
    if last.study != profile.study:
        _log.warning(
            "%s held the answer of the study %s, which is replaced; --cluster NAME keeps several apart",
            folder,
            last.study,
        )
        return profile
    return profile.model_copy(update={"confirmed": last.confirmed}) if last.settings == profile.settings else profile


def _withheld(plan: Plan, verdict: Verdict) -> str:
    """The command that writes the settings, where this run keeps them back; empty where it does not."""
    if verdict.word != "ship" or not verdict.collective_only or plan.options.collective_only:
        return ""
    return f"{plan.command()} --collective-only"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
