"""The command-line application that every command is added to, and what their options share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Group, Parameter

from .. import __version__

Flag = Annotated[bool, Parameter(negative="", show_default=False)]

app = App(
    name="nccltune",
    version=f"nccltune {__version__}",
    usage="Usage: nccltune [COMMAND] [OPTIONS]",
    help="Tune NCCL settings for this cluster and this training job, and end in a verdict that can be acted on. "
    "Without a command and --workload: say what was found and what would be run, and start nothing.",
    help_epilogue="Example: nccltune --workload resnet --trials 50",
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)

SEARCH, PLACE, FILES = (
    Group("What is tuned", sort_key=1),
    Group("Where it runs", sort_key=2),
    Group("Files", sort_key=3),
)
