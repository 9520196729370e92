"""Other users of a real GPU: who was there before a launch is named, and a launch alone is disturbed by nobody.

Needs one GPU that nobody else uses.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nccltune.machine import facts as machine
from nccltune.machine import gpu_use
from nccltune.machine.disturbances import Watch

FACTS = machine.gather(os.environ)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(FACTS.backend != "nccl" or not FACTS.gpus, reason="needs a GPU and a torch with NCCL"),
]

HELD = "import sys, torch; x = torch.ones(1 << 29, device='cuda:0'); print('up', flush=True); sys.stdin.read()"
WORK = """
import time, torch
x = torch.ones(4096, 4096, device="cuda:0")
until = time.monotonic() + 5
while time.monotonic() < until:
    x = (x @ x).clamp(-1, 1)
torch.cuda.synchronize()
"""


def watched() -> list[str]:
    """Watch a process that computes for five seconds; what was said of other users of its GPU."""
    with Watch().over(gpus=1) as seen:
        subprocess.run([sys.executable, "-c", WORK], check=True)
    assert seen.result is not None
    print(seen.result)
    assert "GPUs" not in seen.result.unknown
    return [each.text for each in seen.result.seen if each.kind == "gpu-user"]


def test_a_process_that_holds_memory_of_the_gpu_is_told_and_a_launch_alone_is_not() -> None:
    assert watched() == []
    other = subprocess.Popen([sys.executable, "-c", HELD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        (text,) = watched()
        assert "GPU 0" in text
    finally:
        other.communicate(b"")
    assert watched() == []


def test_the_state_of_a_real_gpu_is_known() -> None:
    gpus = gpu_use.find(os.environ, 1)
    assert gpus is not None
    state = gpus.states()[0]
    print(state)
    assert state.reasons is not None
    assert state.used_bytes is not None
    assert state.is_exact
    assert state.used_bytes < gpu_use.HELD_LEAST_BYTES, "an idle GPU seems to be held by somebody"
