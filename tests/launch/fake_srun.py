"""Stands in for srun: starts its command once a node on this machine, with the variables that srun would set."""

import os
import signal
import subprocess
import sys

options = []
words = sys.argv[1:]
while words and words[0].startswith("-"):
    options.append(words.pop(0))
nodes = next(int(option[2:]) for option in options if option.startswith("-N"))
if "--export=ALL" not in options or f"--ntasks={nodes}" not in options:
    sys.exit(f"fake srun: wrong options {options}")
tasks = [
    subprocess.Popen(
        words,
        env=os.environ | {"SLURM_PROCID": str(node), "SLURM_NODEID": str(node), "SLURM_NTASKS": str(nodes)},
        start_new_session=True,
    )
    for node in range(nodes)
]


def kill(_number, _frame):
    for task in tasks:
        task.kill()


signal.signal(signal.SIGTERM, kill)
sys.exit(max(abs(task.wait()) for task in tasks))
