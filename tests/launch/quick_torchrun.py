"""Stands in for ``python`` where a test wants torchrun's shape without its seconds: workers in sessions of their own.

Started as ``quick_torchrun.py -m torch.distributed.run …options… --module M --request R --result F``.
"""

import os
import signal
import subprocess
import sys


def main(words):
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    module = words[words.index("--module") + 1 :]
    world = int(options["nproc-per-node"])
    workers = []

    def forward(number, _frame):
        for worker in workers:
            worker.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    for rank in range(world):
        env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        workers.append(subprocess.Popen([sys.executable, "-m", *module], env=env, start_new_session=True))
    codes = [worker.wait() for worker in workers]
    sys.exit(1 if any(codes) else 0)


main(sys.argv[1:])
