"""What a person sees: lines on stderr while the job runs, the conclusion on stdout."""

from __future__ import annotations

import re
import shlex
import shutil
import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from .machine.describe import describe
from .plan import Plan
from .quantities import format_percent, format_seconds, format_share, format_us
from .records import DEFAULT, Candidate, Failure, Finalist, Launch, Measurement, Space, Verdict
from .space import enumeration
from .study import disturbed
from .study.entries import Intent, NoiseFloor, TrialEntry
from .study.ranking import Ranked
from .tune import NOISE_LAUNCHES, Conclusion
from .verdict import reach
from .verdict.profile import Numbers

_PLAIN_WIDTH = 240
_FAILED = ("infeasible", "invalid", "lost")


class Screen:
    """Shows a plan, its course and its conclusion; a ``tune.Watcher``.

    Args:
        plan: What is shown.
        stdout: For results.
        stderr: For everything on the way; a progress bar where it is a terminal, plain lines elsewhere.
    """

    def __init__(self, plan: Plan, stdout: Console | None = None, stderr: Console | None = None) -> None:
        self._plan = plan
        self._out = stdout or Console(highlight=False, soft_wrap=True)
        if not self._out.is_terminal:
            self._out.width = _PLAIN_WIDTH  # a file or a pipe has no width to fold a table to
        self._err = stderr or Console(stderr=True, highlight=False, soft_wrap=True)
        # Only the last column gives way in a narrow window: without the others the bar says nothing.
        kept, rest = Column(no_wrap=True, min_width=12), Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            TextColumn("{task.description}", table_column=kept),
            BarColumn(bar_width=16, table_column=Column(min_width=16)),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=5)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[now]}", markup=False, table_column=rest),
            console=self._err,
            expand=True,
            transient=True,
            disable=not self._err.is_terminal,
        )
        self._task: TaskID | None = None
        self._default_us: float | None = None
        self._best = ""
        self._launched = False
        self._disturbances: set[str] = set()

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    # ---- before

    def machine(self) -> None:
        """Say what was found: torch, NCCL and its library first."""
        plan = self._plan
        for line in describe(plan.facts):
            self._say(line)
        placement = plan.placement
        where = f"{placement.world_size} ranks on {placement.nnodes} node{'s' * (placement.nnodes != 1)}"
        if placement.emulated_nodes:
            where += (
                f", {placement.emulated_nodes} NCCL nodes emulated over loopback: for study, not for production"
                if plan.backend == "nccl"
                else f"; --emulate-nodes {placement.emulated_nodes} changes nothing here, where there is no NCCL"
            )
        options = " ".join(f"{name}={_option(value)}" for name, value in plan.workload_options.items())
        about = "; ".join(part for part in (plan.workload.summary, options) if part)
        self._say(f"workload {plan.workload.name} ({about}), {where}")
        self._space(plan.space, plan.count(plan.space))

    def dry_run(self, *, with_launch: bool) -> None:
        """Say what would be launched: candidates, minutes, and one argument list with its environment."""
        plan = self._plan
        finals = plan.rounds * (1 + plan.finalists)
        first = int(plan.auto_batch)
        launches = first + NOISE_LAUNCHES + plan.trials + finals
        if plan.auto_batch:
            self._say("batch size: auto, chosen by the first launch")
        self._say(
            f"would make at most {launches} launches: {'1 for the batch size, ' * first}"
            f"{NOISE_LAUNCHES} for the noise floor, {plan.trials} trials, "
            f"{plan.rounds} fresh rounds of {1 + plan.finalists}, fewer where they decide sooner; "
            f"about {format_seconds(launches * plan.launch_seconds)} "
            f"at {format_seconds(plan.launch_seconds)} a launch, a guess until one is measured"
        )
        if not with_launch:
            self._err.print(f"nothing was started; to start, run: {as_typed(plan.command())}", markup=False)
            return
        shown = plan.preview()
        self._out.print(f"candidate: {shown.candidate}", markup=False)
        self._out.print("argument list:", markup=False)
        for word in shown.argv:
            self._out.print(f"  {word}", markup=False)
        self._out.print("environment, on top of the caller's:", markup=False)
        for line in shown.env_text.splitlines():
            self._out.print(f"  {line}", markup=False)
        for rank, settings in shown.per_rank_env.items():
            extra = " ".join(f"{name}={value}" for name, value in settings.items())
            self._out.print(f"  rank {rank} only: {extra}", markup=False)

    # ---- on the way

    def on_stage(self, name: str, launches: int) -> None:
        """A stage begins."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(name, total=launches, now=self._best)
        if not self._err.is_terminal:
            self._say(f"{name}: up to {launches} launches")

    def on_noise_floor(self, floor: NoiseFloor, seconds: float) -> None:
        """Say what the study can show, before it spends."""
        self._default_us = statistics.median(floor.medians)
        self._say(
            f"default: {format_us(self._default_us)} a step, noise floor {format_percent(floor.relative)} "
            f"({floor.n} launches of {format_seconds(seconds)}, "
            f"{format_us(min(floor.medians))} to {format_us(max(floor.medians))})"
        )
        if floor.reach is not None:
            for sentence in floor.reach.sentences:
                self._say(sentence)
            if warned := reach.warning(floor.reach):
                self._say(f"warning: {warned}")
        left = self._plan.trials + self._plan.rounds * (1 + self._plan.finalists)
        budget = self._plan.budget_s
        limit = f", or until the budget of {format_seconds(budget)} is spent" if budget else ""
        if not self._launched:
            self._say(f"goes on with what earlier runs measured; {left} launches at most after the noise floor, in all")
            return
        self._say(f"about {format_seconds(left * seconds)} for {left} more launches at most{limit}")

    def on_space(self, space: Space, count: enumeration.Count) -> None:
        """Say what NCCL's own log took out of the space."""
        if space != self._plan.space:
            self._space(space, count, known=set(self._plan.space.removed))

    def on_launch_start(self, intent: Intent) -> None:
        """Show what is running."""
        if self._task is not None:
            self._progress.update(self._task, now=f"now {intent.candidate}" + (self._best and f"; {self._best}"))

    def on_launch_end(self, launch: Launch) -> None:
        """Move on; say why a launch failed."""
        self._launched = True
        if self._task is not None and launch.purpose not in ("drift", "evidence"):
            self._progress.advance(self._task)
        outcome = launch.outcome
        if isinstance(outcome, Failure):
            self._say(f"{launch.launch_id} {launch.candidate}: {outcome.name} ({outcome.blame}): {outcome.message}")
            if outcome.advice:
                self._say(f"  {outcome.advice}")
        elif launch.purpose in ("evidence", "batch"):
            return  # a short launch that is timed for nobody; what a batch size came to is said by who asked for it
        elif launch.purpose == "confirm":  # held against the default beside it, not against that of the noise floor
            self._say(f"{launch.launch_id} {launch.candidate}: {format_us(outcome.median_us)}")
        elif launch.purpose != "search":
            self._say(f"{launch.launch_id} {launch.candidate}: {self._with_gain(launch.candidate, outcome.median_us)}")
        if isinstance(outcome, Measurement):
            for warning in outcome.warnings:
                self._say(f"  {launch.launch_id}: {warning}")
        self._say_disturbances(launch)

    def _say_disturbances(self, launch: Launch) -> None:
        """Say each kind once, when it is first seen; the conclusion counts them."""
        for each in disturbed.seen(launch):
            if each.kind not in self._disturbances:
                self._disturbances.add(each.kind)
                self._say(f"  {launch.launch_id} was disturbed: {each.text}")

    def on_trial(self, trial: TrialEntry, best: Ranked | None) -> None:
        """Say what a trial came to, and keep the best in sight."""
        if best is not None:
            self._best = f"best {format_us(best.value_us)} {best.candidate}"
        if trial.number == 0 and self._task is not None:
            self._progress.advance(self._task)  # measured with the noise floor
        if trial.value_us is not None:
            self._say(f"trial {trial.number} {trial.candidate}: {self._with_gain(trial.candidate, trial.value_us)}")
        elif trial.state in _FAILED:
            self._say(f"trial {trial.number} {trial.candidate}: {trial.state}: {trial.reason}")

    def on_note(self, text: str) -> None:
        """Say it."""
        self._say(text)

    # ---- after

    def conclusion(self, conclusion: Conclusion) -> None:
        """Print the closing table, where the files are, and the next command to type."""
        if not conclusion.added:
            self._say("the budget is spent and the verdict stands: nothing was launched")
        table = Table(box=None, pad_edge=False)
        for heading in ("", "step", "against the default", "settings"):
            table.add_column(heading, overflow="fold")
        for label, step_us, gain, settings in _rows(conclusion):
            table.add_row(label, format_us(step_us), gain, Text(settings))
        self._out.print(table, soft_wrap=False)
        if conclusion.failures:
            self._out.print(f"{len(conclusion.failures)} candidates gave no number:", markup=False)
            for key, reason in conclusion.failures[:10]:
                self._out.print(f"  {key}: {reason}", markup=False)
        _folded(self._out, f"{conclusion.verdict.sentence}.")
        for line in _account(conclusion.verdict, conclusion.profile.numbers):
            _folded(self._out, line, set_in=10)
        self._out.print(f"profile   {conclusion.env_file}\n          {conclusion.profile_file}", markup=False)
        self._out.print(f"study     {conclusion.study}", markup=False)
        self._out.print(f"trials    {conclusion.table}", markup=False)
        if conclusion.page is not None:
            self._out.print(f"report    {conclusion.page}", markup=False)
        self._out.print(f"next      {self._next(conclusion)}", markup=False)

    def _next(self, conclusion: Conclusion) -> str:
        profile = conclusion.profile
        if profile.settings and not profile.shipped and not profile.emulated:
            return f"nccltune validate {conclusion.profile_file} --workload resnet   (does it help a model?)"
        if profile.settings and not profile.emulated:
            return f"docker run --env-file {conclusion.env_file} IMAGE"
        more_rounds = re.search(r"--rounds (\d+)", conclusion.verdict.needed)
        if more_rounds:
            return f"{as_typed(self._plan.command(rounds=int(more_rounds[1])))}   (goes on with more rounds)"
        return f"{as_typed(self._plan.command(trials=2 * self._plan.trials))}   (goes on with more trials)"

    # ---- pieces

    def _space(self, space: Space, count: enumeration.Count, known: set[str] | None = None) -> None:
        names = ", ".join(f"{dimension.name} ({len(dimension.values)})" for dimension in space.dimensions)
        self._say(
            f"space {space.name}: {count} distinct candidate{'s' * (count.legal != 1)}; searched: {names or 'nothing'}"
        )
        for name, reason in _by_reason({n: r for n, r in space.removed.items() if n not in (known or ())}):
            self._say(f"  not searched: {name}: {reason}")

    def _with_gain(self, candidate: Candidate, value_us: float) -> str:
        if not self._default_us or candidate.is_default:
            return format_us(value_us)
        return f"{format_us(value_us)} ({format_share(self._default_us / value_us - 1)})"

    def _say(self, text: str) -> None:
        _folded(self._err, text, set_in=len(text) - len(text.lstrip()) + 2)


def _folded(console: Console, text: str, set_in: int = 0) -> None:
    """Write a sentence folded between words, later lines set in: a terminal would cut words where its window ends."""
    lines = [text]
    if console.is_terminal:
        # A number keeps its unit: a no-break space is none to textwrap.
        kept = re.sub(r"(?<=\d) (?=(?:%|µs|ms|s|min|h|GB/s)(?!\w))", "\xa0", text)
        lines = textwrap.wrap(
            kept, max(40, console.width), subsequent_indent=" " * set_in, break_long_words=False, break_on_hyphens=False
        )
        lines = [line.replace("\xa0", " ") for line in lines]
    for line in lines:
        console.print(line, markup=False)


def _rows(conclusion: Conclusion) -> Sequence[tuple[str, float, str, str]]:
    """Label, step time, gain in words, settings: of the default, then of each finalist or of the best of the search."""
    numbers, verdict = conclusion.profile.numbers, conclusion.verdict
    rows = []
    default_us = numbers.default_step_us
    if default_us is not None:
        rows.append(("default", default_us, "", ""))
    for finalist in verdict.finalists:
        if finalist.pairs:
            label = "ship" if finalist.fate == "ship" else f"finalist, {finalist.fate}"
            candidate_us = statistics.median(pair.candidate_us for pair in finalist.pairs)
            rows.append((label, candidate_us, _gain(finalist), str(finalist.candidate)))
    best = next((entry for entry in conclusion.ranking if entry.candidate != DEFAULT), None)
    if not verdict.finalists and best is not None:
        gain = f"{format_share(default_us / best.value_us - 1)} in the search alone" if default_us else ""
        rows.append(("best of the search", best.value_us, gain, str(best.candidate)))
    return rows


def _gain(finalist: Finalist) -> str:
    rounds = f"{len(finalist.pairs)} fresh round{'s' * (len(finalist.pairs) != 1)}"
    if finalist.gain is None or finalist.interval is None:
        return f"{format_share(statistics.median(pair.gain for pair in finalist.pairs))} in {rounds}"
    low, high = finalist.interval
    return f"{format_share(finalist.gain)} (95 %: {format_share(low)} to {format_share(high)}, {rounds})"


def _account(verdict: Verdict, numbers: Numbers) -> Sequence[str]:
    """What the answer cost, what limits it, and what would change it."""
    floor = "" if verdict.noise_floor is None else f"; noise floor {format_percent(verdict.noise_floor)}"
    spent = format_seconds(verdict.gpu_s)
    lines = [
        f"spent     {verdict.launches} launches ({verdict.round_launches} in fresh rounds), {spent} of ranks{floor}"
    ]
    if verdict.pays_after_steps is not None:
        lines.append(f"pays back after {verdict.pays_after_steps} steps of the same job")
    if numbers.disturbed is not None and numbers.disturbed.sentence:
        lines.append(f"disturbed {numbers.disturbed.sentence}")
    if verdict.word == "no-verdict" and numbers.reach is not None:
        lines.append(f"foreseen  {numbers.reach.sentences[0]}")
    if verdict.needed:
        lines.append(f"needed    {verdict.needed}")
    return lines


def as_typed(command: str) -> str:
    """The command with the program as it was called: the ``bin`` of a virtual environment is seldom on ``PATH``."""
    called = sys.argv[0]
    if Path(called).name != "nccltune" or shutil.which("nccltune"):
        return command
    return shlex.quote(called) + command.removeprefix("nccltune")


def _option(value: object) -> str:
    """An option of a workload as it is typed: sizes are pairs of bytes and calls a step, arguments are words."""
    if not isinstance(value, list):
        return str(value)
    if not all(isinstance(each, list) for each in value):
        return shlex.quote(shlex.join(value))
    return ",".join(f"{_bytes(size)}{f':{calls}' if calls != 1 else ''}" for size, calls in value)


def _bytes(count: int) -> str:
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def _by_reason(removed: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Values of one knob that are left out for one reason, on one line."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry, reason in removed.items():
        name, equals, value = entry.partition("=")
        found.setdefault((name + equals, reason), []).append(value)
    return [(name + ", ".join(values), reason) for (name, reason), values in found.items()]
