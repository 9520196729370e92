"""The page: one file that needs no network, and is not allowed to use any.

The content security policy names each script by its hash and forbids every other one, and every connection. What comes
from files is escaped by the template engine, so the policy is the second lock.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import StorageError
from ..verdict.profile import replace_file
from . import charts
from .content import Report, gather
from .source import Source

_log = logging.getLogger(__name__)

FILE = "report.html"

_ALT = {
    "rounds": "Gain of every fresh round, with estimate and 95 % interval, for each finalist. "
    "The table below holds the same numbers.",
    "course": "Step time of every trial over its number, the best so far, the default with its noise band, and "
    "failed trials. The table below holds the same numbers.",
    "time": "Bars that cut a step into computation, overlapped and exposed communication, and idle time. "
    "The table below holds the same numbers.",
}

_UNIT = re.compile(r"(?<=\d) (?=(?:%|µs|ms|s|min|h|steps)(?:\W|$))")
"""The blank between a number and its unit, where a line must not end."""


def write(report: Report, path: Path) -> Path:
    """Write the page, whole or not at all.

    Args:
        report: From ``content.gather``.
        path: The file; its folder exists.

    Returns:
        The path.

    Raises:
        StorageError: It cannot be written.
    """
    try:
        replace_file(path, render(report))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", "free space, or choose another --out") from error
    return path


def write_if_possible(source: Source) -> Path | None:
    """Write the page of a study beside its ledger, or say in the log why there is none: no page is worth a verdict."""
    try:
        return write(gather(source), source.folder / FILE)
    except Exception as error:
        _log.warning("%s was not written: %s", FILE, error)
        return None


def render(report: Report) -> str:
    """The page as text."""
    import jinja2
    from markupsafe import Markup

    library, script, style = charts.library(), _asset("report.js"), _asset("report.css")
    engine = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters["unbroken"] = lambda text: _UNIT.sub("\N{NO-BREAK SPACE}", text)
    return engine.get_template("report.html.j2").render(
        report=report,
        summary=report.summary,
        figures=_figures(report),
        alt=_ALT,
        dark=charts.DARK,
        policy=_policy(library, script),
        # Our own files, without a word of the study in them.
        library=Markup(library),  # noqa: S704
        script=Markup(script),  # noqa: S704
        style=Markup(style),  # noqa: S704
    )


def _figures(report: Report) -> dict[str, dict[str, Any]]:
    found = {
        "rounds": charts.rounds_figure(report.finalists, report.min_gain),
        "course": charts.course_figure(report.course),
        "time": charts.time_figure(report.steps),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def _policy(*scripts: str) -> str:
    """What the page may do: run these scripts and style itself. plotly.js sets styles as attributes."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
