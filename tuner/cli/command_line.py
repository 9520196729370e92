"""One command line: arguments → a call, errors → one line and an exit status."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import CycloptsError
from cyclopts.exceptions import UnknownOptionError, UnusedCliTokensError

from ..errors import Interrupted, NccltuneError, StorageError, UsageError, nearest
from .application import app
from .output import open_standard_streams


def main() -> NoReturn:
    """Entry point of the console script."""
    open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run one command line.

    Args:
        argv: The words after the program's name.

    Returns:
        The exit status: 0 done, 1 failed, 2 usage, 130 interrupted; with ``--strict`` and for ``validate`` 3 and 4 for
        the verdict; 5 when ``check`` finds another machine.
    """
    words = list(argv)
    try:
        command, bound, unparsed = app.parse_args(words[: words.index("--")] if "--" in words else words)
        if "--" in words:
            if "arguments" not in unparsed:
                raise UsageError("this command takes no arguments after '--'", "leave out '--' and what follows it")
            bound.arguments["arguments"] = tuple(words[words.index("--") + 1 :])
        return int(command(*bound.args, **bound.kwargs) or 0)
    except CycloptsError as error:
        return _fail(_usage(error))
    except NccltuneError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return _fail(Interrupted("stopped at once", "run the same command again to go on"))
    except BrokenPipeError:
        # The reader of our output went away (nccltune … | head): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return _internal(error)
        what = f"cannot write {error.filename or 'the output'}: {error.strerror}"
        return _fail(StorageError(what, "free space, then run the same command again: what was measured is kept"))
    except Exception as error:
        return _internal(error)


def _internal(error: Exception) -> int:
    logging.getLogger(__name__).debug("internal error", exc_info=True)
    what = f"internal error: {type(error).__name__}: {error}"
    return _fail(NccltuneError(what, "what was measured is kept; run again with --verbose and report what it prints"))


def _fail(error: NccltuneError) -> int:
    sys.stderr.write(f"nccltune: {error}\n")
    return error.exit_status


def _usage(error: CycloptsError) -> UsageError:
    """Turn a parser's error into ours, with the nearest command or option."""
    if isinstance(error, UnusedCliTokensError):
        word = (error.unused_tokens or [""])[0]
        known = [name for name in app if not name.startswith("-")]
        return UsageError(f"there is no command '{word}'", f"{nearest(word, known)}; see nccltune --help")
    if isinstance(error, UnknownOptionError) and error.token is not None:
        word = error.token.keyword or error.token.value
        known = [name for argument in error.argument_collection for name in argument.names]
        return UsageError(f"there is no option '{word}'", f"{nearest(word, known)}; see nccltune --help")
    return UsageError(" ".join(str(error).split()), "see nccltune --help")
