"""Hold what ``nccltune explain`` says of profiler traces against HolisticTraceAnalysis (HTA), rank by rank.

    python benchmarks/hta_comparison.py tests/recordings/traces/*.json.gz

Files whose names differ in their rank only (``NAME.rank0.json``, ``NAME.rank1.json.gz``) are one job. HTA needs old and
new packages of its own, so it runs in a venv of its own, made on the first call (``--venv``; some minutes) with
``pip install HolisticTraceAnalysis``. The output is a table in Markdown.

The two answer different questions, so there are four columns.

* *HTA, as it comes* looks at the whole trace of a rank, from the first kernel to the last, all profiled steps in one
  (it leaves the last one out by itself; here it is kept). Its *overlap* is the share of the communication during which
  computation ran; its *idle* time is that without any GPU work; its *non-compute* time is the rest: communication and
  copies beside no computation. It cuts begin and length of every kernel to whole microseconds, which takes half a
  microsecond from each: of a step with 2000 short kernels, one millisecond.
* *HTA, exact stamps*: the same without that cut (``HTA_DISABLE_NS_ROUNDING=1``).
* *nccltune, whole trace*: our own code on the same stretch, all steps in one. A difference to the second column is one
  in telling kernels apart or in adding up intervals. HTA 0.5.0 takes GPU annotations (``nccl:all_reduce``, category
  ``gpu_user_annotation``) for computation where a trace has them; memory sets are work to HTA and idle time here.
* *nccltune, by step*: what the tool reports. Each step begins on the GPU with its own first kernel, and steps that lost
  records are left out.

Shares are of the column's own length. A trace without a GPU is no subject for HTA, which looks at kernels alone.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections import defaultdict
from pathlib import Path
from typing import Any, TypeAlias

VENV = Path(tempfile.gettempdir()) / "nccltune-hta"
Numbers: TypeAlias = dict[str, float] | None
"""What one column says of one rank; ``None`` where it gives no answer."""
ROWS = (
    ("length, ms", "length_us", 1e-3),
    ("computation, ms", "compute_us", 1e-3),
    ("computation, %", "compute_share", 100),
    ("idle, %", "idle_share", 100),
    ("non-compute, %", "non_compute_share", 100),
    ("overlap, % of the communication", "overlap_share", 100),
)


# ---- HTA's side; runs in the venv, where this project is not installed


def hta(files: list[str]) -> dict[str, Any]:
    """Ask HTA about the ranks of one job; the answers in the order of the files."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    analysis = TraceAnalysis(trace_files=dict(enumerate(files)), trace_dir="", include_last_profiler_step=True)
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    parts = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    return {
        "version": importlib.metadata.version("HolisticTraceAnalysis"),
        "ranks": [
            {
                "length_us": float(parts.loc[number, "kernel_time(us)"]),
                "compute_us": float(parts.loc[number, "compute_time(us)"]),
                "compute_share": float(parts.loc[number, "compute_time_pctg"]) / 100,
                "idle_share": float(parts.loc[number, "idle_time_pctg"]) / 100,
                "non_compute_share": float(parts.loc[number, "non_compute_time_pctg"]) / 100,
                "overlap_share": float(overlap.loc[number]) / 100,
            }
            for number in range(len(files))
        ],
    }


def ask_hta(python: Path, files: list[Path], exact: bool) -> dict[str, Any]:
    """Run ``hta`` in its venv.

    Args:
        python: The venv's interpreter.
        files: One a rank.
        exact: Whether time stamps are taken as they are.

    Raises:
        RuntimeError: HTA fails on these traces; the message is its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [str(python), __file__, "--inside", str(answer), *(str(file.resolve()) for file in files)]
        environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": str(int(exact))}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode or not answer.exists():
            raise RuntimeError((done.stderr.strip().splitlines() or ["no answer"])[-1])
        found: dict[str, Any] = json.loads(answer.read_text())
    return found


def python_of(folder: Path) -> Path:
    """The interpreter of HTA's venv; the venv is made where it is missing."""
    python = folder / "bin" / "python"
    installed = [str(python), "-c", "import hta"]
    if not python.exists() or subprocess.run(installed, capture_output=True, check=False).returncode:
        print(f"installing HolisticTraceAnalysis in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "HolisticTraceAnalysis"], check=True)
    return python


# ---- our side


def read(file: Path) -> dict[str, Any]:
    """Parse a trace; kernel names may hold control characters and broken UTF-8."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    found = json.loads(raw.decode("utf-8", errors="replace"), strict=False)
    return found if isinstance(found, dict) else {"traceEvents": found}


def ours(document: dict[str, Any], whole: bool) -> Numbers:
    """Sum up our numbers of one rank over its usable steps.

    Args:
        document: The trace.
        whole: Take the trace for one step from its first kernel to its last.
    """
    from nccltune.workloads import timeline

    if whole:
        events = [event for event in document["traceEvents"] if not _marks_step(event)]
        document = {**document, "traceEvents": events}
    steps = timeline.reduce(document).steps
    length = sum(step.step_us for step in steps)
    if not length:
        return None
    compute, idle = sum(step.compute_us for step in steps), sum(step.idle_us for step in steps)
    comm, overlap = sum(step.comm_us for step in steps), sum(step.overlap_us for step in steps)
    return {
        "length_us": length,
        "compute_us": compute,
        "compute_share": compute / length,
        "idle_share": idle / length,
        "non_compute_share": 1 - (compute + idle) / length,
        **({"overlap_share": overlap / comm} if comm else {}),
    }


def _marks_step(event: Any) -> bool:
    return isinstance(event, dict) and str(event.get("name", "")).startswith("ProfilerStep")


def jobs(files: list[Path]) -> dict[str, list[Path]]:
    """Files by job; the ranks in order."""
    found: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for file in files:
        name = file.name.removesuffix(".gz").removesuffix(".json")
        rank = re.search(r"[._-]?rank[_-]?(\d+)", name)
        found[name.replace(rank.group(), "") if rank else name].append((int(rank.group(1)) if rank else 0, file))
    return {name: [file for _, file in sorted(ranks)] for name, ranks in sorted(found.items())}


def _cell(column: Numbers, name: str, factor: float) -> str:
    known = column is not None and math.isfinite(column.get(name, math.nan))
    return f"{column[name] * factor:.2f}" if column is not None and known else "not measured"


def rows(job: str, rank: int, columns: tuple[Numbers, Numbers, Numbers, Numbers]) -> list[str]:
    """The table's lines of one rank; the difference is the third column less the second."""
    lines = []
    for words, name, factor in ROWS:
        cells = [_cell(column, name, factor) for column in columns]
        both = "not measured" not in cells[1:3]
        difference = f"{(columns[2][name] - columns[1][name]) * factor:+.2f}" if both else ""  # type: ignore[index]
        lines.append(f"| {' | '.join([job, str(rank), words, *cells[:3], difference, cells[3]])} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, help="Chrome traces of torch.profiler, one a rank")
    parser.add_argument("--venv", type=Path, default=VENV, help="where HTA is installed (default: %(default)s)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        arguments.inside.write_text(json.dumps(hta([str(file) for file in arguments.traces])))
        return
    python, version, lines, failed = python_of(arguments.venv), "?", [], []
    for job, files in jobs(arguments.traces).items():
        print(f"{job}: {len(files)} ranks", file=sys.stderr)
        theirs: list[list[Numbers]] = []
        for exact in (False, True):
            try:
                answer = ask_hta(python, files, exact)
                version = answer["version"]
                theirs.append(answer["ranks"])
            except RuntimeError as error:
                failed.append(f"HTA gives no answer for {job}: {error}")
                theirs.append([None] * len(files))
        for rank, file in enumerate(files):
            document = read(file)
            mine = ours(document, whole=True), ours(document, whole=False)
            lines += rows(job, rank, (theirs[0][rank], theirs[1][rank], *mine))
    print(f"HolisticTraceAnalysis {version}, nccltune {importlib.metadata.version('nccltune')}\n")
    heads = ["job", "rank", "", "HTA, as it comes", "HTA, exact stamps", "nccltune, whole trace", "difference"]
    print(f"| {' | '.join([*heads, 'nccltune, by step'])} |")
    print("|---" * 8 + "|")
    print("\n".join(lines))
    print("".join(f"\n{line}" for line in failed))


if __name__ == "__main__":
    main()
