"""The driver's management library (nvidia-ml-py), asked so that what it does not support is ``None``."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

POWER_CAP = 0x04
"""nvmlClocksEventReasonSwPowerCap: at the power limit, which is how a healthy GPU lives under load."""

# nvmlClocksEventReasons: those that mean a GPU slower than it should be. Idle, application clocks and the power cap
# under load are left out: they are how a healthy GPU lives.
THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@dataclass(frozen=True)
class Library:
    """The management library after its initialisation.

    Attributes:
        module: ``pynvml``, or what stands for it in tests.
        failures: What it raises.
    """

    module: Any
    failures: tuple[type[Exception], ...] = field(default=())

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function; ``None`` where the library or the driver does not have it, or refuses."""
        function = getattr(self.module, name, None)
        if function is None:
            return None
        try:
            answer = function(*arguments)
        except self.failures:
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def clock_reasons(self, handle: Any) -> int | None:
        """Bits of why the clocks of a GPU are what they are."""
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the name before driver 535
            reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return None if reasons is None else int(reasons)

    def is_mig(self, handle: Any) -> bool | None:
        """Whether a GPU is cut into instances."""
        mode = self.ask("nvmlDeviceGetMigMode", handle)
        return None if mode is None else bool(mode[0])


def connect(module: Any = None) -> Library | str:
    """Open the library; whoever does so ends with ``ask("nvmlShutdown")``, or with its process.

    Args:
        module: To ask; ``pynvml`` where ``None``.

    Returns:
        The library, or why there is none.
    """
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError as error:
            return str(error)
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        return str(error)
    return Library(module, (module.NVMLError, UnicodeDecodeError))
