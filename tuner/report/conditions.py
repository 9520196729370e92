"""What the numbers hold for, and the commands that go on from them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..quantities import format_bytes
from ..records import Measurement, RankReport
from ..study import host_bound
from ..study.ledger import Ledger
from . import table
from .source import Source

_OPTUNA = "optuna.db"
_MLFLOW = "mlflow.db"


def conditions_table(source: Source) -> table.Table:
    """Workload, machine, versions, placement and inherited settings, as the ledger has them."""
    plan, reports = source.ledger.plan, _ranks(source.ledger)
    workload, placement = plan.get("workload", {}), plan.get("placement", {})
    space = source.ledger.space
    searched = ", ".join(dimension.name for dimension in space.dimensions) if space else ""
    entries = {
        "workload": " ".join([str(workload.get("name", "")), *_options(workload.get("options", {}))]),
        "batch size": host_bound.chosen(source.ledger.batch) if source.ledger.batch else "",
        "space": f"{space.name}: {searched}" if space else str(plan.get("space", {}).get("name", "")),
        **{str(name): str(value) for name, value in plan.get("machine", {}).items()},
        "host": _all(report.host for report in reports),
        "device": _all(report.device for report in reports),
        "NCCL library": _all(report.nccl_library or "" for report in reports),
        **{str(name).replace("_", " "): _placed(value) for name, value in placement.items()},
        "inherited settings": table.settings(plan.get("inherited", {})).text if plan.get("inherited") else "none",
        "seed": str(plan.get("seed", "")),
        "profile": str(source.profile_file or ""),
    }
    if source.profile:
        entries["nccltune"] = source.profile.conditions.get("nccltune", "")
    return table.Table(
        caption="Conditions",
        columns=(table.Column("What"), table.Column("Value")),
        rows=tuple((table.text(name), table.text(value)) for name, value in entries.items() if value),
    )


def removed_table(ledger: Ledger) -> table.Table:
    """What was not searched on this machine, each with the reason."""
    removed = ledger.space.removed if ledger.space else {}
    return table.Table(
        caption="Not searched here",
        columns=(table.Column("Setting"), table.Column("Why")),
        rows=tuple((table.text(name), table.text(why)) for name, why in removed.items()),
    )


def notes_table(ledger: Ledger) -> table.Table:
    """What the study noted on its way."""
    return table.Table(
        caption="Notes of the study",
        columns=(table.Column("When"), table.Column("What")),
        rows=tuple((table.text(note.at), table.text(note.text)) for note in ledger.notes),
    )


def commands(source: Source) -> tuple[tuple[str, str], ...]:
    """What to do, and the command that does it."""
    repeat = source.profile.commands if source.profile else ()
    found = [("repeat the study, or go on with it", line) for line in repeat]
    if source.profile and source.profile_file:
        file = shlex.quote(str(source.profile_file))
        if source.profile.verdict != "no-verdict":
            found.append(("write the settings for an image", f"nccltune export {file} --format dockerfile"))
        if source.profile.verdict == "ship":
            found.append(("hold the settings against the default again, now", f"nccltune validate {file}"))
    folder = source.folder
    found.append(("write this page again", f"nccltune report {shlex.quote(str(folder))}"))
    if (folder / _MLFLOW).exists():
        store = _sqlite(folder / _MLFLOW)
        found.append(("see the launches in MLflow", f"mlflow ui --workers 1 --backend-store-uri {store}"))
    if (folder / _OPTUNA).exists():
        found.append(("see the search in Optuna's dashboard", f"optuna-dashboard {_sqlite(folder / _OPTUNA)}"))
    return tuple(found)


def _sqlite(path: Path) -> str:
    return shlex.quote(f"sqlite:///{path}")


def _ranks(ledger: Ledger) -> list[RankReport]:
    measured = [launch.outcome for launch in ledger.launches if isinstance(launch.outcome, Measurement)]
    return [report for outcome in measured for report in outcome.ranks]


def _all(values: Any) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _placed(value: Any) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else str(value)


def _options(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_option(value)}" for name, value in options.items()]


def _option(value: Any) -> str:
    """As it is typed: sizes are pairs of bytes and calls a step, arguments are words."""
    if not isinstance(value, list):
        return str(value)
    if all(isinstance(each, list) and len(each) == 2 for each in value):
        return ",".join(format_bytes(size) + (f":{calls}" if calls != 1 else "") for size, calls in value)
    return shlex.join(map(str, value))
