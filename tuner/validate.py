"""``nccltune validate``: a profile's settings against the default, again and now.

::

    prepare   profile → plan of the same workload, ranks and nodes → what changed since → study
    run       lock → ledger → what a killed run left → fresh mirrored rounds → verdict
              → ``validation.json`` beside the profile, and in the profile whether it passed
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from . import batch as batches
from .errors import MachineError, ProfileError
from .machine import facts as machine
from .plan import Options as PlanOptions
from .plan import Plan
from .plan import prepare as prepare_plan
from .records import Candidate, Purpose, Request, Verdict
from .space import legality
from .study import campaign as campaigns
from .study import lock
from .study.ledger import Ledger
from .trial import process, runner
from .verdict import finals, guard, proof
from .verdict import profile as profiles
from .verdict.reading import profile_file, read_profile
from .verdict.validation import WORDS, Result, earlier, keep, sentence

_log = logging.getLogger(__name__)

_STALE = timedelta(hours=6)
"""After so long the machine is another one: a validation that was cut off begins anew instead of going on."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for.

    Attributes:
        profile: Folder or file of the profile.
        workload: Another workload than the profile's, or ``None``.
        arguments: Of the user's script, or ``None`` where there was no ``--``; then the profile's.
        given: Options of the workload, as text; those of the profile hold otherwise.
        min_gain: Smallest gain that is worth a change; the profile's where ``None``.
        rounds: Most fresh rounds, or ``None`` for what suits the machine.
        out: Holds ``runs/``.
    """

    profile: Path
    workload: str | None = None
    arguments: tuple[str, ...] | None = None
    given: Mapping[str, str | None] = field(default_factory=dict)
    nproc: int | None = None
    nnodes: int | None = None
    launch_prefix: str = ""
    rendezvous_host: str | None = None
    min_gain: float | None = None
    rounds: int | None = None
    out: Path = Path()


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that is settled before the first launch.

    Attributes:
        file: Of the profile.
        plan: Of the launches; its environment lacks the profile's settings.
        changed: What is not as it was when the profile was measured, one line each.
        refused: Why the settings cannot even be launched here; empty where they can.
    """

    file: Path
    profile: profiles.Profile
    plan: Plan
    changed: tuple[str, ...]
    refused: str = ""

    @property
    def candidate(self) -> Candidate:
        """The profile's settings."""
        return Candidate(settings=self.profile.settings)

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two validations the same, so that one can go on where the other was cut off."""
        kept = ("workload", "machine", "placement", "inherited", "steps", "seed")
        return {
            "validate": self.profile.settings,
            "min_gain": self.plan.options.min_gain,
            "rounds": self.plan.rounds,
            **{name: self.plan.identity[name] for name in kept},
        }


# ---- before the first launch


def prepare(options: Options, environ: Mapping[str, str]) -> Job:
    """Read the profile, look at the machine, and settle what would be launched.

    Args:
        options: The user's words.
        environ: The caller's environment. What it sets of the profile (an image with the exported settings) is taken
            out, since the default is to be measured without.

    Raises:
        ProfileError: It cannot be used, or has no setting to be tested.
        MachineError: Its settings cannot be taken out of the default here.
        UsageError: The words do not fit the machine.
    """
    file = profile_file(options.profile)
    profile = read_profile(file)
    if not profile.settings:
        raise ProfileError(
            f"the profile {file} has no setting ({profiles.one_line(profile.verdict)}), so there is nothing to test",
            "run the study's command again to search anew",
        )
    without = {name: value for name, value in environ.items() if name not in profile.settings}
    plan = _plan(options, profile, without)
    if plan.backend != profile.backend:
        raise ProfileError(
            f"the profile was measured on {profile.backend}, and this machine runs {plan.backend}",
            "run it on a machine of the profile's kind",
        )
    about = replace(plan.circumstances(plan.space), ll128=True)  # its own study has proven it
    return Job(
        file=file,
        profile=profile,
        plan=plan,
        changed=_changed(profile, plan),
        refused=legality.why_illegal(profile.settings, about) or "",
    )


def _plan(options: Options, profile: profiles.Profile, environ: Mapping[str, str]) -> Plan:
    """The plan of the profile's own workload and placement, as far as this machine allows it."""
    nproc = options.nproc
    world = profile.conditions.get("world size", "")
    if nproc is None and not options.launch_prefix and world.isdecimal():
        found = machine.gather(environ)
        nproc = min(int(world), len(found.gpus)) if found.backend == "nccl" else int(world)
    words = PlanOptions(
        workload=options.workload or profile.workload,
        arguments=_arguments(options, profile),
        given=options.given,
        trials=1,
        nproc=nproc or None,
        nnodes=options.nnodes,
        emulate_nodes=profile.emulated,
        launch_prefix=options.launch_prefix,
        rendezvous_host=options.rendezvous_host,
        cluster=profile.cluster,
        out=options.out,
        min_gain=profile.min_gain if options.min_gain is None else options.min_gain,
        rounds=options.rounds,
        mlflow=False,
    )
    plan = prepare_plan(words, environ)
    changes: dict[str, Any] = {"facts": _without_files(plan.facts, profile)}
    if plan.workload.name == profile.workload and not plan.workload.own_module:
        asked = {name: plan.asked[name] for name, text in options.given.items() if text is not None}
        changes["asked"] = {**profile.workload_options, **asked}
    return replace(plan, **changes)


def _arguments(options: Options, profile: profiles.Profile) -> tuple[str, ...] | None:
    """What the user's script is started with: as given now, or as it was measured."""
    measured = profile.workload_options.get("arguments")
    if options.arguments is not None or options.workload is not None or not isinstance(measured, list):
        return options.arguments
    return tuple(map(str, measured))


def _without_files(facts: machine.Facts, profile: profiles.Profile) -> machine.Facts:
    """The facts without the profile's settings in NCCL's own files.

    The launches mask ``~/.nccl.conf``; ``/etc/nccl.conf`` is always read (NCCL ``src/misc/param.cc``).
    """
    inherited = facts.inherited
    mine = {name: source for name, source in inherited.sources.items() if name in profile.settings}
    for name, source in mine.items():
        if source.startswith("/etc/"):
            raise MachineError(
                f"{source} sets {name}, so the default cannot be measured here", f"take {name} out of it for this run"
            )
    kept = {name: value for name, value in inherited.settings.items() if name not in mine}
    return facts.model_copy(update={"inherited": inherited.model_copy(update={"settings": kept})})


def _changed(profile: profiles.Profile, plan: Plan) -> tuple[str, ...]:
    before = {"workload": profile.workload, "world size": profile.conditions.get("world size", "unknown")}
    now = {"workload": plan.workload.name, "world size": str(plan.placement.world_size)}
    if plan.workload.own_module and plan.workload.name == profile.workload:
        digest = "its file (SHA-256)"
        before[digest] = str(profile.workload_options.get("sha256", "unknown"))
        now[digest] = str(plan.workload_options.get("sha256", "unknown"))
    return (*guard.differing(profile, plan.facts, {}), *machine.differences(before, now))


def study_folder(job: Job, now: datetime | None = None) -> Path:
    """Where the launches go: a validation that was cut off lately goes on, any other gets a folder of its own."""
    now = now or datetime.now(UTC)
    digest = sha256(json.dumps(job.identity, sort_keys=True).encode()).hexdigest()[:8]
    number = 1
    while True:
        folder = job.plan.options.out / "runs" / f"validate-{job.profile.cluster}-{digest}-{number}"
        if not Ledger.exists(folder) or _goes_on(folder, now):
            return folder
        number += 1


def _goes_on(folder: Path, now: datetime) -> bool:
    with Ledger.open(folder) as ledger:
        if ledger.verdict is not None:
            return False
        begun = [datetime.fromisoformat(intent.started_at) for intent in ledger.intents]
    return not begun or now - begun[-1] < _STALE


# ---- the launches


def run(
    job: Job, observer: campaigns.Observer, stop: Callable[[], bool], launcher: campaigns.Runner | None = None
) -> Result:
    """Measure, decide, and write down what came out.

    Args:
        job: From ``prepare``.
        observer: Told how it goes.
        stop: Asked often; true ends the running launch and raises.
        launcher: What runs a launch; real processes where ``None``.

    Raises:
        Interrupted: ``stop`` said so; the same command goes on.
        NccltuneError: See ``errors``.
    """
    earlier(job.file.with_name(profiles.VALIDATION_FILE))  # a broken one is found before time is spent
    folder = study_folder(job)
    if job.refused:
        why = f"Keep the defaults: the settings cannot be launched here: {job.refused}"
        verdict = Verdict(word="keep-default", sentence=why, min_gain=job.plan.options.min_gain)
    else:
        plan = replace(job.plan, options=replace(job.plan.options, study=folder.name))
        plan, verdict = _launches(plan, job, folder, observer, stop, launcher)
        job = replace(job, plan=replace(job.plan, batch=plan.batch))
    result = _result(job, verdict, folder)
    keep(job.file, job.profile, result)
    return result


def _launches(
    plan: Plan,
    job: Job,
    folder: Path,
    observer: campaigns.Observer,
    stop: Callable[[], bool],
    launcher: campaigns.Runner | None,
) -> tuple[Plan, Verdict]:
    """Make them; the plan comes back with the batch size, where that was to be chosen."""
    with ExitStack() as stack:
        uuids = [gpu.uuid for gpu in plan.facts.gpus if gpu.uuid] if plan.backend == "nccl" else []
        stack.enter_context(lock.hold(folder, uuids, plan.environ))
        exists = Ledger.exists(folder)
        ledger = stack.enter_context(Ledger.open(folder) if exists else Ledger.create(folder, job.identity))
        process.sweep_study(folder)
        campaigns.take_over(ledger)
        launcher = launcher or runner.LaunchRunner(folder, stop=stop, environ=plan.environ)
        campaign = campaigns.Campaign(ledger, launcher, _requests(plan, ledger), observer)
        plan = batches.settle(plan, ledger, campaign, observer.on_note)
        verdict = _rounds(plan, ledger, campaign, job.candidate)
        ledger.append(verdict)
        return plan, verdict


def _requests(plan: Plan, ledger: Ledger) -> Callable[[Candidate, str, Purpose], Request]:
    def request(candidate: Candidate, launch_id: str, purpose: Purpose) -> Request:
        settled, token = plan.settled(ledger.batch), secrets.token_hex(8)
        if purpose == "batch":
            return settled.batch_request(launch_id, token)
        usual = [launch.wall_s for launch in ledger.launches if launch.candidate.is_default]
        usual_s = None if candidate.is_default or not usual else max(usual)
        return settled.request(candidate, launch_id, token, usual_s=usual_s)

    return request


def _rounds(plan: Plan, ledger: Ledger, campaign: campaigns.Campaign, candidate: Candidate) -> Verdict:
    """The fresh rounds of one finalist, as at the end of a study."""
    min_gain = plan.options.min_gain
    terms = finals.Terms(
        min_gain=min_gain,
        rounds=plan.rounds,
        finalists=1,
        backend=plan.backend,
        ranks=plan.placement.world_size,
        collective_only=plan.workload.collective_only,
        knobs=plan.catalogue.knobs,
    )
    verdict = finals.hold(ledger, campaign, terms, [candidate])
    if verdict is None:
        why = proof.fault(ledger.launches, candidate)
        verdict = Verdict(word="keep-default", sentence=f"Keep the defaults: {why}", min_gain=min_gain)
    return verdict


# ---- after them


def _result(job: Job, verdict: Verdict, folder: Path) -> Result:
    plan, word = job.plan, WORDS[verdict.word]
    return Result(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        word=word,
        sentence=sentence(word, verdict),
        settings=job.profile.settings,
        workload=plan.workload.name,
        workload_options=dict(plan.workload_options),
        collective_only=plan.workload.collective_only,
        emulated=plan.placement.emulated_nodes,
        min_gain=plan.options.min_gain,
        gain=verdict.gain,
        interval=verdict.interval,
        pairs=verdict.pairs,
        changed=job.changed,
        conditions={**machine.fingerprint(plan.facts), "world size": str(plan.placement.world_size)},
        runs="" if job.refused else str(folder),
    )
