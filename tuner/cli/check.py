"""``nccltune check``: does this machine match a profile's conditions?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from .application import Flag, app
from .output import configure_logging, show, show_json, warn

_DIFFERS = 5


@app.command
def check(
    profile: Path,
    /,
    *,
    format: Literal["sh"] | None = None,
    emulated: Flag = False,
    collective_only: Flag = False,
    json: Flag = False,
    verbose: Flag = False,
) -> int:
    """Say whether this machine is the one that a profile was measured on. Takes no GPU and imports no torch.

    Exit status 0 when it is and 5 when it is not. For an image's entry point:
    eval "$(nccltune check profile.yaml --format sh)"

    Args:
        profile: Folder of the profile, or its profile.yaml.
        format: sh: print the exports where the profile holds, for what is not set yet; else nothing.
        emulated: With sh: also what was measured on emulated nodes.
        collective_only: With sh: also what was measured on a collective alone.
        json: Print the answer as JSON.
        verbose: Say more on the standard error stream.
    """
    configure_logging(verbose)
    # A job's start waits for this command. Pydantic would read the metadata of every installed package for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from ..machine import facts
    from ..verdict import guard as guards
    from ..verdict.reading import read_profile

    found = read_profile(profile, thoroughly=False)
    differing = guards.differing(found, facts.gather(os.environ), os.environ)
    if json:
        show_json({"holds": not differing, "differing": list(differing)})
    elif format == "sh":
        why = guards.why_withheld(found, emulated=emulated, collective_only=collective_only)
        differing = (*differing, why.what) if why is not None else differing
        if differing:
            warn(f"nothing was set: {'; '.join(differing)}")
        else:
            show(guards.exports(found, os.environ))
    else:
        for line in differing:
            warn(line)
        show([] if differing else ["the profile holds here"])
    return _DIFFERS if differing else 0
