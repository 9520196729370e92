"""A workload that does what ``options["act"]`` says; standard library only, so that it starts at once."""

import argparse
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

RANK = int(os.environ["RANK"])


def beat(phase: str) -> None:
    if RANK == 0:
        fresh = FOLDER / "heartbeat.new"
        fresh.write_text(json.dumps({"phase": phase, "step": 0, "time": time.time()}))
        fresh.rename(FOLDER / "heartbeat")


def leave(document: object) -> None:
    fresh = RESULT.with_suffix(".new")
    fresh.write_text(document if isinstance(document, str) else json.dumps(document))
    fresh.rename(RESULT)


def report(rank: int) -> dict:
    echo = {name: os.environ[name] for name in os.environ if name.startswith("NCCL_") or name in REQUEST["environment"]}
    echo |= REQUEST["per_rank_env"].get(str(rank), {})
    return {
        "rank": rank,
        "local_rank": rank,
        "host": "node",
        "pid": os.getpid(),
        "device": "cpu",
        "torch_version": "0",
        "echo": echo,
    }


def good(token: str, ranks: int) -> dict:
    return {
        "schema_version": 1,
        "token": token,
        "status": "ok",
        "measurement": {
            "step_times_us": [10.0, 11.0, 12.0],
            "clock": "host",
            "warmup_steps": 1,
            "ranks": [report(rank) for rank in range(ranks)],
        },
    }


def run(act: str) -> None:  # noqa: C901
    if act == "hang_before_group":
        beat("group")
        time.sleep(600)
    beat("timed")
    world = int(os.environ["WORLD_SIZE"])
    match act:
        case "ok" if RANK == 0:
            leave(good(REQUEST["token"], world))
        case "raise" if RANK == 1:
            raise ValueError("the labels are 7, not 5")
        case "segfault" if RANK == 1:
            ctypes.string_at(0)
        case "exit_0":
            os._exit(0)
        case "print" if RANK == 0:
            for _ in range(50):
                sys.stdout.write(("x" * 1023 + "\n") * 1024)
            print("the last line")
            leave(good(REQUEST["token"], world))
        case "hang":
            time.sleep(600)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
            subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
            beat("profiled")
            time.sleep(60)
        case "cut_off" if RANK == 0:
            leave('{"schema_version": 1, "token": "')
        case "other_schema" if RANK == 0:
            leave({"schema_version": 99, "token": REQUEST["token"], "status": "ok"})
        case "other_token" if RANK == 0:
            leave(good("somebody else's", world))
        case "fewer_ranks" if RANK == 0:
            leave(good(REQUEST["token"], world - 1))
        case "environment" if RANK == 0:
            (FOLDER / "environ.json").write_text(json.dumps(dict(os.environ)))
            (FOLDER / "path.json").write_text(json.dumps(sys.path))
            leave(good(REQUEST["token"], world))
        case "hang_after_result":
            if RANK == 0:
                leave(good(REQUEST["token"], world))
            time.sleep(600)


parser = argparse.ArgumentParser()
parser.add_argument("--request", type=pathlib.Path, required=True)
parser.add_argument("--result", type=pathlib.Path, required=True)
options = parser.parse_args()
RESULT = options.result
FOLDER = RESULT.parent
REQUEST = json.loads(options.request.read_text())
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # die with the parent, as the real harness does
beat("import")
run(REQUEST["options"]["act"])
