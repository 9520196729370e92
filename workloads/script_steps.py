"""The steps of a script: it calls us once a step, while the harness wants to call a step.

Two threads that take turns, one of them always waiting: the script's own, which does everything between two
steps (so that time stamps, CUDA events and the profiler are on the thread that trains), and the harness's,
which decides. They change turns between blocks of steps only, so a step costs one call of a generator.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from .drive import OutOfSteps

T = TypeVar("T")

_BEAT_S = 1.0


class Enough(BaseException):
    """Ends the script from within its hook: all that was wanted is measured, or measuring has failed.

    No ``Exception``, so that a script's own ``except Exception`` lets it pass.
    """


class ScriptSteps:
    """A step for ``drive`` that the script takes.

    Args:
        measure: Run on a thread of its own from the script's first report on.
        alive: Called now and then between two steps with the number of steps so far.

    Attributes:
        reported: Calls of the hook.
        over: Whether measuring has ended.
        error: What it ended with, if not well.
        ended: Whether the script has ended before that.
    """

    def __init__(self, measure: Callable[[], None], alive: Callable[[int], None] = lambda _: None) -> None:
        self._measure = measure
        self._alive = alive
        self._alive_at = time.monotonic()
        self._wanted: queue.SimpleQueue[Generator[None, None, Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._playing: Generator[None, None, Any] | None = None
        self._thread: threading.Thread | None = None
        self.reported = 0
        self.over = False
        self.error: BaseException | None = None
        self.ended = False

    # ---- on the script's thread

    def hook(self) -> None:
        """Take note of a step.

        Raises:
            Enough: Measuring has ended, and so shall the script.
        """
        self.reported += 1
        if self.over:
            raise Enough
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nccltune", daemon=True)
            self._thread.start()
        elif self._playing is not None and self._advance(self._playing):
            return
        while (wanted := self._wanted.get()) is not None:
            if self._advance(wanted):
                return
        self.over = True
        raise Enough

    def finish(self) -> None:
        """Let measuring come to its end without further steps; the script has ended."""
        self.ended = True
        if self._thread is None or self.over:
            return
        if self._playing is not None:
            self._cut(self._playing)
        while (wanted := self._wanted.get()) is not None:
            if self._advance(wanted):
                self._cut(wanted)
        self.over = True

    def _advance(self, steps: Generator[None, None, Any]) -> bool:
        """Run up to the next step; whether there is one."""
        return self._resume(steps, lambda: next(steps))

    def _cut(self, steps: Generator[None, None, Any]) -> None:
        while self._resume(steps, lambda: steps.throw(OutOfSteps())):
            pass

    def _resume(self, steps: Generator[None, None, Any], resume: Callable[[], None]) -> bool:
        now = time.monotonic()
        if now - self._alive_at >= _BEAT_S:
            self._alive_at = now
            self._alive(self.reported)
        self._playing = None
        try:
            resume()
        except StopIteration as end:
            self._answers.put((end.value, None))
        except BaseException as error:
            self._answers.put((None, error))
        else:
            self._playing = steps
            return True
        return False

    # ---- on the harness's thread

    def __call__(self) -> None:
        """Let the script take one step.

        Raises:
            OutOfSteps: It has ended.
        """
        self.play(_one())

    def play(self, steps: Generator[None, None, T]) -> T:
        """Run the generator on the script's thread, one step at each of its yields.

        Args:
            steps: Yields where a step belongs; gets ``OutOfSteps`` where the script has ended.

        Returns:
            What the generator returned.

        Raises:
            OutOfSteps: The generator did not catch it.
        """
        self._wanted.put(steps)
        value, error = self._answers.get()
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def _run(self) -> None:
        try:
            self._measure()
        except BaseException as error:
            self.error = error
        finally:
            self._wanted.put(None)


def _one() -> Generator[None, None, None]:
    yield
