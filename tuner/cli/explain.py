"""``nccltune explain``: what files say."""

from __future__ import annotations

from pathlib import Path

from .application import Flag, app
from .output import configure_logging, show, show_json


@app.command
def explain(*files: Path, json: Flag = False, verbose: Flag = False) -> int:
    """Say what files say: an NCCL or torchrun log, the output of 'nvidia-smi topo -m', or profiler traces.

    Args:
        files: One log or matrix; or the logs or traces of one run, a file a rank.
        json: Print the answer as JSON.
        verbose: Say more on the standard error stream.
    """
    configure_logging(verbose)
    from .. import explain as explainer

    answer = explainer.explain(files)
    show_json(answer) if json else show([explainer.words(answer)])
    return 0
