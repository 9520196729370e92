"""``nccltune report``: a study as one page for a person who decides."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from .application import Flag, app
from .output import configure_logging, named, show, show_rich


@app.command
def report(
    folder: Path,
    /,
    *,
    out: Path | None = None,
    text: Flag = False,
    verbose: Flag = False,
) -> int:
    """Write a study as one HTML page that needs no network: verdict, rounds, every trial, where the time goes.

    Works while the study runs, and on what an interrupted one has left.

    Args:
        folder: The study's folder (runs/NAME), a folder that holds exactly one study, or a profile that names it.
        out: File to write. Default: report.html in the study's folder.
        text: Print the same numbers instead, and write nothing.
        verbose: Say more on the standard error stream.
    """
    configure_logging(verbose)
    from ..report import content as contents
    from ..report import page, source
    from ..report import text as plain

    if text and out is not None:
        raise UsageError("--text writes no file", "leave out --text or --out")
    found = source.find(folder)
    content = contents.gather(found)
    if text:
        show_rich(plain.renderables(content))
    else:
        show([str(page.write(content, named(out) if out else found.folder / page.FILE))])
    return 0
