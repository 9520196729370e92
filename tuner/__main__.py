"""Entry point of ``nccltune`` and of ``python -m nccltune``."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; an interrupt while its modules are still being imported is told in one line as well."""
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("nccltune: stopped before anything was started; run the same command again.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
