"""The command line: arguments → calls, errors → exit status. The only place that configures logging or prints."""

from . import check, doctor, explain, export, knobs, report, tune, validate  # noqa: F401 - each adds its command
from .application import app
from .command_line import main, run

__all__ = ["app", "main", "run"]

# The usage and the example of the application are the main job's.
for _name in (name for name in app if not name.startswith("-")):
    app[_name].usage, app[_name].help_epilogue = None, ""
