"""From the user's words and the machine to the plan of a study. Nothing is launched and nothing is written here."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from .errors import MachineError, UsageError, nearest
from .machine import facts as machine
from .records import DEFAULT, Backend, BatchChoice, Candidate, Ladder, Limits, Placement, Request, Space, Steps
from .space import catalogue as catalogues
from .space import enumeration, legality, narrowing, space_file
from .study import host_bound
from .trial import environment, launch
from .trial import workload as workloads
from .trial.paths import launch_paths
from .trial.placement import limits_here, place

PROFILED_STEPS = 4
_EVIDENCE_STEPS = Steps(warmup_min=2, warmup_max=2, warmup_s=0.0, timed_min=2, timed_max=2, block=2, timed_s=0.1)
_LADDER_STEPS = Steps(
    warmup_min=6, warmup_max=12, warmup_s=0.0, timed_min=10, timed_max=10, block=10, timed_s=2.0, profiled=3
)  # fmt: skip
"""Of each batch size: enough to tell an idle GPU from a busy one, and no more, since there are several."""
_MEMORY_SHARE = 0.8
"""Of the GPU's memory that a batch may take when it is chosen here: candidates with larger buffers need some, too."""
_PATIENCE = 5.0
_PATIENCE_LEAST_S = 120.0
_CPU_BUDGET_S = 120.0
_CPU_ROUNDS = 6
_MOST_FINALISTS = 3
_CPU_ROUNDS_S = 150.0
_LONGEST_NAME = 200
_LARGEST_SEED = 2**62


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for, checked as far as words go.

    Attributes:
        arguments: Of the user's script, or ``None`` where there was no ``--``.
        trials: Candidates to measure, or ``None`` for what suits the machine.
        budget_s: Wall time of all launches of the study, or ``None``.
        out: Holds ``runs/`` and ``profiles/``.
        rounds: Most fresh mirrored rounds of the finalists against the default, or ``None`` for what suits the machine.
        finalists: Most candidates that meet the default in fresh rounds, or ``None`` for what suits the machine.
        collective_only: Whether settings that were measured on a collective alone are written into the env file.
        force: Whether a step in which the GPU waits for the host is tuned all the same.
        allow: Documentation classes that may be searched; empty for all.
    """

    workload: str
    arguments: tuple[str, ...] | None = None
    given: Mapping[str, str | None] = field(default_factory=dict)
    space: str = "auto"
    trials: int | None = None
    budget_s: float | None = None
    nproc: int | None = None
    nnodes: int | None = None
    emulate_nodes: int = 0
    launch_prefix: str = ""
    rendezvous_host: str | None = None
    cluster: str | None = None
    study: str | None = None
    out: Path = Path()
    min_gain: float = 0.01
    rounds: int | None = None
    finalists: int | None = None
    collective_only: bool = False
    force: bool = False
    seed: int = 0
    allow: tuple[catalogues.DocsClass, ...] = ()
    storage: str | None = None
    mlflow_uri: str | None = None
    mlflow: bool = True


@dataclass(frozen=True, kw_only=True)
class Preview:
    """One launch as it would be made.

    Attributes:
        argv: The argument list.
        env_text: The env file of the launch.
        per_rank_env: Rank (as text) to what only this rank gets.
    """

    candidate: Candidate
    argv: tuple[str, ...]
    env_text: str
    per_rank_env: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is settled before the first launch.

    Attributes:
        declared: The space as its file has it.
        space: The same, narrowed by the facts of this machine.
        trials: Candidates to measure.
        budget_s: Wall time of all launches before the fresh rounds; ``None`` for no limit.
        environ: The caller's environment; kept out of every file but for ``NCCL_*`` and listed names.
        asked: The workload's options as asked for; the batch size may be ``auto``.
        batch: The batch size that the study's first launch chose, once it has.
    """

    options: Options
    facts: machine.Facts
    catalogue: catalogues.Catalogue
    workload: workloads.Workload
    asked: Mapping[str, Any]
    placement: Placement
    declared: Space
    space: Space
    trials: int
    budget_s: float | None
    environ: Mapping[str, str] = field(repr=False)
    batch: BatchChoice | None = None

    @property
    def auto_batch(self) -> bool:
        """Whether the study chooses the batch size itself."""
        return self.asked.get("batch_size") == workloads.AUTO

    @property
    def workload_options(self) -> Mapping[str, Any]:
        """The workload's options as launches get them, once the batch size is chosen."""
        if self.auto_batch and self.batch is not None:
            return {**self.asked, "batch_size": self.batch.batch_size}
        return self.asked

    def settled(self, batch: BatchChoice | None) -> Plan:
        """The plan with the batch size that was chosen, if it is to be chosen and was."""
        return replace(self, batch=batch) if self.auto_batch else self

    @property
    def backend(self) -> Backend:
        """Of the process group."""
        return self.facts.backend

    @property
    def rounds(self) -> int:
        """Most fresh rounds. On a CPU machine few: its noise seldom lets more decide, and a whole run takes minutes."""
        return self.options.rounds or (20 if self.backend == "nccl" else _CPU_ROUNDS)

    @property
    def rounds_s(self) -> float | None:
        """Wall time of the fresh rounds: limited on a CPU machine, where a run without further words takes minutes."""
        limited = self.backend == "gloo" and self.options.rounds is None and self.options.trials is None
        return _CPU_ROUNDS_S if limited else None

    @property
    def finalists(self) -> int:
        """Most candidates that meet the default in fresh rounds; one on a CPU machine, for the same reason."""
        return self.options.finalists or (_MOST_FINALISTS if self.backend == "nccl" else 1)

    @property
    def steps(self) -> Steps:
        """How a launch is measured."""
        return self.workload.steps[self.backend]

    @property
    def limits(self) -> Limits:
        """How long a launch may take."""
        return limits_here(self.workload.limits, self.placement, self.facts.cpu.cores_usable)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What makes two studies the same; stored in the ledger and compared on resume."""
        return {
            "workload": {"name": self.workload.name, "options": dict(self.asked)},
            "space": self.declared.model_dump(mode="json", include={"name", "dimensions", "backend", "conditions"}),
            "allow": list(self.options.allow),
            "machine": machine.fingerprint(self.facts),
            "placement": self.placement.model_dump(mode="json", exclude={"rendezvous_host"}),
            "inherited": dict(sorted(self.facts.inherited.settings.items())),
            "steps": self.steps.model_dump(mode="json"),
            "seed": self.options.seed,
        }

    @cached_property
    def study(self) -> str:
        """Name of the study: the user's, or one that differs whenever the plan does."""
        if self.options.study:
            return self.options.study
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()
        return f"{self.workload.label}-{self.declared.name}-{digest[:8]}"

    @property
    def folder(self) -> Path:
        """Of the study."""
        return self.options.out / "runs" / self.study

    @property
    def cluster(self) -> str:
        """Name of the profile's folder: the user's, or one made from the hardware."""
        return self.options.cluster or machine.cluster_name(self.facts, self.placement)

    @property
    def profile_folder(self) -> Path:
        """Where the profile goes."""
        return self.options.out / "profiles" / self.cluster

    def circumstances(self, space: Space) -> legality.Circumstances:
        """What legality depends on here."""
        return narrowing.circumstances(space, self.facts, self.catalogue, self.placement)

    def count(self, space: Space) -> enumeration.Count:
        """Count the distinct legal candidates of a space."""
        about = self.circumstances(space)
        groups = legality.coupled([dimension.name for dimension in space.dimensions], about)
        return enumeration.distinct(
            space, lambda candidate: legality.why_illegal(candidate.settings, about) is None, groups=groups
        )

    def example(self) -> Candidate:
        """One candidate that could be launched: the first the space recommends, else the first that is legal."""
        about = self.circumstances(self.space)

        def is_legal(candidate: Candidate) -> bool:
            return legality.why_illegal(candidate.settings, about) is None

        others = enumeration.candidates(self.space, is_legal)
        found = [*filter(is_legal, self.space.start), *islice((one for one in others if not one.is_default), 1)]
        return found[0] if found else DEFAULT

    def request(
        self, candidate: Candidate, launch_id: str, token: str, *, profiled: bool = False, usual_s: float | None = None
    ) -> Request:
        """Write down one launch; the runner completes what depends on its folder.

        Args:
            candidate: The settings under test.
            launch_id: Unique within the study.
            token: Random, to tell this launch's processes and files from others'.
            profiled: Whether it pays for the profiled window, which costs seconds.
            usual_s: What a launch of the default takes; a candidate that takes many times that has lost.
        """
        limits = self.limits
        if usual_s is not None:
            total_s = min(limits.total_s, max(_PATIENCE_LEAST_S, _PATIENCE * usual_s))
            limits = limits.model_copy(update={"total_s": total_s})
        request = Request(
            study=self.study,
            launch_id=launch_id,
            token=token,
            workload=self.workload.module,
            options=dict(self.workload_options),
            backend=self.backend,
            candidate=candidate,
            placement=self.placement,
            steps=self.steps.model_copy(update={"profiled": PROFILED_STEPS if profiled else 0}),
            limits=limits,
            seed=self.options.seed,
        )
        return environment.complete(request, self.facts.inherited, self.environ)

    def evidence_request(self, candidate: Candidate, launch_id: str, token: str) -> Request:
        """Write down a short launch in which NCCL also logs what it chooses for each message size."""
        request = self.request(candidate, launch_id, token)
        return request.model_copy(update={"steps": _EVIDENCE_STEPS, "log_choices": True})

    def batch_request(self, launch_id: str, token: str) -> Request:
        """Write down the launch that searches for a batch size.

        It is the one with which the GPU does not wait for the host, or, below a batch size that does not fit, the
        largest that does.
        """
        request = self.request(DEFAULT, launch_id, token)
        steps, given = _LADDER_STEPS, self.workload_options["batch_size"]
        ladder = Ladder(first=self.workload.first_batch, idle_share=host_bound.BUSY_SHARE, memory_share=_MEMORY_SHARE)
        if not self.auto_batch:
            first = max(1, min(self.workload.first_batch, given // 2))
            ladder = ladder.model_copy(update={"first": first, "last": max(1, given - 1), "idle_share": -1.0})
            steps = steps.model_copy(update={"profiled": 0})
        return request.model_copy(update={"steps": steps, "ladder": ladder})

    def preview(self) -> Preview:
        """What one launch would be, without starting it."""
        candidate = self.example()
        request = self.request(candidate, "0000-search", token="0" * 16)
        paths = launch_paths(self.folder, request.launch_id)
        request = environment.in_folder(request, paths, self.environ)
        return Preview(
            candidate=candidate,
            argv=launch.arguments(request, paths, port=launch.free_port(), python=sys.executable),
            env_text=environment.render(environment.settings(request, paths, self.environ)),
            per_rank_env=request.per_rank_env,
        )

    @property
    def launch_seconds(self) -> float:
        """What a launch takes, as a guess before one was made."""
        return 16.0 if self.backend == "nccl" else 8.0

    @property
    def storage_url(self) -> str:
        """Of the Optuna study."""
        return self.options.storage or f"sqlite:///{(self.folder / 'optuna.db').resolve()}"

    def command(self, trials: int | None = None, rounds: int | None = None) -> str:
        """The command that goes on with this study, as a person would type it.

        Args:
            trials: Instead of the trials of this run.
            rounds: Instead of the most rounds of this run.
        """
        options, words = self.options, ["nccltune", "--workload", self.workload.name]
        pairs = {
            **{"--" + name.replace("_", "-"): text for name, text in options.given.items()},
            "--space": options.space if options.space != "auto" else None,
            "--trials": trials or options.trials,
            "--budget": f"{options.budget_s:g}s" if options.budget_s else None,
            "--min-gain": options.min_gain if options.min_gain != Options.min_gain else None,
            "--rounds": rounds or options.rounds,
            "--finalists": options.finalists,
            "--seed": options.seed or None,
            "--allow": ",".join(options.allow) or None,
            "--nproc": options.nproc,
            "--nnodes": options.nnodes,
            "--emulate-nodes": options.emulate_nodes or None,
            "--launch-prefix": options.launch_prefix or None,
            "--rendezvous": options.rendezvous_host,
            "--out": options.out if options.out != Path() else None,
            "--study": options.study,
            "--cluster": options.cluster,
            "--storage": options.storage,
            "--mlflow-uri": options.mlflow_uri,
        }
        for name, value in pairs.items():
            words += [] if value is None else [name, str(value)]
        flags = {
            "--collective-only": options.collective_only,
            "--force": options.force,
            "--no-mlflow": not options.mlflow,
        }
        own = ["--", *self.workload.arguments] if self.workload.arguments else []
        return shlex.join([*words, *(name for name, given in flags.items() if given), *own])


def prepare(options: Options, environ: Mapping[str, str]) -> Plan:
    """Look at the machine and settle what would be run.

    Args:
        options: The user's words.
        environ: The caller's environment.

    Raises:
        UsageError: If the words do not fit the machine or each other.
        MachineError: If nothing can be run here.
    """
    _check(options)
    workload = workloads.find(options.workload, options.arguments)
    catalogue = catalogues.load_catalogue()
    facts = machine.gather(environ)
    if facts.torch is None:
        raise MachineError("no torch can be imported by this Python", "install torch 2.6 or newer, or run 'make tune'")
    placement = place(
        backend=facts.backend,
        gpus=len(facts.gpus),
        cores=facts.cpu.cores_usable,
        nproc=options.nproc,
        nnodes=options.nnodes,
        emulate_nodes=options.emulate_nodes,
        launch_prefix=options.launch_prefix,
        rendezvous_host=options.rendezvous_host,
        environ=environ,
    )
    name = space_file.choose(facts, placement) if options.space == "auto" else options.space
    declared = space_file.load_space(name, catalogue)
    space = narrowing.narrow(declared, facts, catalogue, placement, options.allow, environ)
    return Plan(
        options=options,
        facts=facts,
        catalogue=catalogue,
        workload=workload,
        asked=workloads.options(workload, facts.backend, options.given),
        placement=placement,
        declared=declared,
        space=space,
        trials=options.trials or (50 if facts.backend == "nccl" else 8),
        budget_s=options.budget_s or (None if options.trials or facts.backend == "nccl" else _CPU_BUDGET_S),
        environ=environ,
    )


def read_allow(text: str | None) -> tuple[catalogues.DocsClass, ...]:
    """Read the documentation classes of ``--allow``.

    Args:
        text: With commas, or ``None`` for all classes.

    Raises:
        UsageError: If one is none.
    """
    classes = get_args(catalogues.DocsClass)
    words = [word.strip() for word in text.split(",")] if text is not None else []
    for word in words:
        if word not in classes:
            raise UsageError(f"'{word}' is no documentation class", nearest(word, classes))
    return tuple(known for known in classes if known in words)


def _check(options: Options) -> None:
    if options.trials is not None and options.trials < 1:
        raise UsageError(f"--trials {options.trials} measures nothing", "give at least 1; trial 0 is the default")
    if options.rounds is not None and options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds} confirms nothing", "give at least 1")
    if options.finalists is not None and not 1 <= options.finalists <= _MOST_FINALISTS:
        raise UsageError(f"--finalists {options.finalists} is no number of finalists", f"give 1 to {_MOST_FINALISTS}")
    if abs(options.seed) > _LARGEST_SEED:
        raise UsageError(f"--seed {options.seed} is beyond what torch takes", f"give at most {_LARGEST_SEED}")
    for flag, name in (("--study", options.study), ("--cluster", options.cluster)):
        if name is None:
            continue
        if not name.strip() or name.startswith((".", "-")) or "/" in name or not name.isprintable():
            raise UsageError(f"{flag} {name!r} is no name for a folder", "use letters, digits, '-', '_' and '.'")
        if len(os.fsencode(name)) > _LONGEST_NAME:
            raise UsageError(f"{flag} is longer than {_LONGEST_NAME} bytes", "give a shorter name")
