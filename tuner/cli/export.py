"""``nccltune export``: a profile for who will read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from ..errors import UsageError
from .application import Flag, app
from .output import configure_logging, named, show, warn


@app.command
def export(
    profile: Path,
    /,
    *,
    format: Literal["env", "sh", "nccl-conf", "dockerfile", "k8s"] = "env",
    guard: Flag = False,
    emulated: Flag = False,
    collective_only: Flag = False,
    allow: str | None = None,
    out: Path | None = None,
    verbose: Flag = False,
) -> int:
    """Write a profile's settings for who will read them: all of them, or none and the reason.

    A profile that keeps the defaults gives the header and no setting.

    Args:
        profile: Folder of the profile, or its profile.yaml.
        format: env (docker --env-file), sh (for a shell's source), nccl-conf, dockerfile (ENV and LABEL lines), k8s
            (a ConfigMap).
        guard: With sh: a script that sets them only where the conditions hold, for images without Python.
        emulated: Also write what was measured on emulated nodes, marked as such.
        collective_only: Also write what was measured on a collective alone.
        allow: Documentation classes that may be written: system, debugging, undocumented, with commas.
        out: File to write. Default: the standard output.
        verbose: Say more on the standard error stream.
    """
    configure_logging(verbose)
    from ..plan import read_allow
    from ..verdict import export as exports
    from ..verdict import guard as guards
    from ..verdict.profile import write_file
    from ..verdict.reading import read_profile

    if guard and format != "sh":
        raise UsageError("--guard is a shell script", "add --format sh")
    found = read_profile(profile)
    why = exports.why_not(found, emulated=emulated, collective_only=collective_only, allow=read_allow(allow))
    if why is not None:
        raise why
    if format == "nccl-conf" and (late := exports.too_late(found)):
        warn(f"NCCL reads this file too late for {', '.join(late)}: set that in the environment")
    for line in exports.conflicts(found, os.environ):
        warn(line)
    text = guards.script(found) if guard else exports.render(found, format)
    if out is None:
        show(text.splitlines())
    else:
        write_file(named(out), text, 0o755 if guard else 0o644)
    return 0
