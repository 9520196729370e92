"""The end of a launch: whoever dies first, nobody is left."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from nccltune.records import Failure, Limits
from nccltune.trial import guardian, process
from nccltune.trial.environment import TOKEN
from nccltune.trial.paths import launch_paths

LIMITS = Limits(startup_s=30, no_progress_s=30, total_s=30, grace_s=0.5, shutdown_s=0)
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


class Commands:
    """Runs small programs under a guardian."""

    def __init__(self, folder):
        self.paths = launch_paths(folder, "l")
        self.paths.folder.mkdir(parents=True)
        self.token = os.urandom(8).hex()

    def run(self, program, *, limits=LIMITS, stop=lambda: False, **options):
        argv = [sys.executable, "-c", textwrap.dedent(program)] if isinstance(program, str) else program
        env = {"PATH": os.environ["PATH"], TOKEN: self.token}
        return process.run_guarded(
            argv, env=env, paths=self.paths, limits=limits, token=self.token, stop=stop, **options
        )  # fmt: skip

    def left(self):
        return list(process.holders([self.token]))

    def log(self):
        return self.paths.log.read_text()

    def report(self):
        return json.loads(self.paths.guardian.read_text())


@pytest.fixture
def commands(tmp_path):
    made = Commands(tmp_path)
    yield made
    process.sweep([made.token])


def test_a_command_that_ends_by_itself(commands):
    ended = commands.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.reason, ended.returncode, ended.survivors) == ("exited", 3, ())
    assert sorted(commands.log().split()) == ["err", "out"]


def test_the_environment_stands_in_no_file(commands):
    commands.run("pass")
    written = b"".join(path.read_bytes() for path in commands.paths.folder.rglob("*") if path.is_file())
    assert os.environ["PATH"].encode() not in written


def test_whoever_the_command_leaves_behind_is_ended(commands):
    started = time.monotonic()
    ended = commands.run(f"""
        import subprocess, sys
        for _ in range(3):
            child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=-1)
            child.stdout.readline()
    """)
    assert (ended.reason, ended.returncode) == ("exited", 0)
    assert commands.left() == []
    assert time.monotonic() - started < 10


def test_a_double_fork_out_of_everything_is_ended(commands):
    ended = commands.run("""
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "60"])
            os._exit(0)
        time.sleep(0.3)
    """)
    assert (ended.returncode, commands.left()) == (0, [])


def test_the_command_is_asked_before_it_is_killed(commands):
    ended = commands.run(
        """
        import os, signal, time
        def bye(*_):
            os.write(1, b"asked")
            os._exit(0)
        signal.signal(signal.SIGTERM, bye)
        os.write(1, b"up")
        time.sleep(60)
        """,
        stop=lambda: "up" in commands.log() if commands.paths.log.exists() else False,
    )
    assert (ended.reason, ended.returncode) == ("stopped", 0)
    assert "asked" in commands.log()


def test_a_command_that_ignores_the_question_is_killed(commands):
    limits = LIMITS.model_copy(update={"total_s": 1.0})
    ended = commands.run([sys.executable, "-c", STUBBORN], limits=limits)
    assert (ended.reason, ended.returncode) == ("total_timeout", -signal.SIGKILL)
    assert commands.left() == []


def test_a_stopped_process_is_ended_too(commands):
    limits = LIMITS.model_copy(update={"total_s": 1.0})
    ended = commands.run("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", limits=limits)
    assert (ended.returncode, commands.left()) == (-signal.SIGKILL, [])


def test_signals_that_the_caller_blocks_or_ignores_reach_the_command(commands):
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ended = commands.run("""
            import signal
            print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
        """)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        signal.signal(signal.SIGINT, ignored)
    assert ended.returncode == 0
    assert commands.log().split() == ["set()", "False"]


def test_a_command_that_is_not_there(commands):
    ended = commands.run(["/nowhere/srun", "-N2"])
    assert (ended.reason, ended.returncode) == ("launcher_missing", None)
    assert "/nowhere/srun" in ended.error


def test_a_big_environment_and_a_strange_one_arrive(commands):
    env = {"PATH": os.environ["PATH"], TOKEN: commands.token, "BIG": "x" * 100_000, "ODD": "a'b\"c\nd ,ü"}
    show = "import os; print(len(os.environ['BIG']), ascii(os.environ['ODD']))"
    process.run_guarded(
        [sys.executable, "-c", show], env=env, paths=commands.paths, limits=LIMITS, token=commands.token, stop=bool
    )
    assert commands.log().strip() == "100000 " + ascii(env["ODD"])


def test_the_guardian_keeps_the_total_limit_by_itself(commands, monkeypatch):
    monkeypatch.setattr(process, "BACKSTOP_S", -29.5)
    ended = commands.run("import time; time.sleep(60)")
    assert ended.reason == "total_timeout"


def test_a_full_disk_costs_the_log_and_nothing_else(tmp_path):
    log = guardian.CappedLog("/dev/full")
    log.write(b"x" * 10)
    log.close()
    assert log.written == 10
    guardian.CappedLog(str(tmp_path / "no" / "folder")).write(b"x")


@pytest.mark.parametrize("size", [0, 5, 10, 17, 20, 21, 100])
def test_the_log_keeps_both_ends(tmp_path, size):
    data = bytes(range(size))
    log = guardian.CappedLog(str(tmp_path / "log"), head=10, tail=10)
    for start in range(0, size, 7):
        log.write(data[start : start + 7])
    log.close()
    kept = (tmp_path / "log").read_bytes()
    if size <= 20:
        assert kept == data
    else:
        assert kept == data[:10] + b"\n[nccltune: %d bytes left out here]\n" % (size - 20) + data[-10:]


def test_a_dead_guardian_is_noticed_and_its_orphans_are_swept(commands):
    outcome = {}

    def run():
        outcome["ended"] = commands.run(f"""
            import subprocess, sys, time
            subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True)
            time.sleep(60)
        """)

    thread = threading.Thread(target=run)
    thread.start()
    assert wait_for(lambda: len(commands.left()) == 2 and "up" in commands.log(), 20)
    os.kill(guardian_of(os.getpid()), signal.SIGKILL)
    thread.join(20)
    assert not thread.is_alive()
    assert (outcome["ended"].reason, outcome["ended"].returncode) == ("exited", None)
    assert commands.left() == []


@pytest.mark.parametrize(
    ("parent", "word", "reason"), [(os.getpid(), b"stop\n", "stopped"), (1, b"", "parent_died")], ids=["word", "parent"]
)
def test_the_guardian_ends_everything_on_a_word_or_when_its_parent_changed(commands, parent, word, reason):
    """Also while somebody else holds the pipe open."""
    spec = {
        "argv": ["sleep", "60"],
        "env": {"PATH": os.environ["PATH"], TOKEN: commands.token},
        "cwd": "/",
        "log": str(commands.paths.log),
        "report": str(commands.paths.guardian),
        "grace_s": 1,
        "total_s": 60,
        "parent": parent,
    }
    with subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process_:
        process_.stdin.write(json.dumps(spec).encode() + b"\n" + word)
        process_.stdin.flush()
        assert json.loads(process_.stdout.readline())["reason"] == reason
    assert commands.report()["returncode"] == -signal.SIGTERM
    assert commands.left() == []


def guardian_of(parent):
    """The process id of the guardian that this process started."""
    for pid, above, _ in guardian._processes():
        if above == parent and b"guardian.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no guardian is running")


def test_holders_are_those_with_the_token_and_never_this_process(monkeypatch):
    token = os.urandom(8).hex()
    other = subprocess.Popen(["sleep", "60"], env={TOKEN: token + "0"})
    mine = subprocess.Popen(["sleep", "60"], env={TOKEN: token})
    try:
        wait_for(lambda: list(process.holders([token])), 5)
        assert list(process.holders([token])) == [mine.pid]
        assert process.sweep([token]) == [mine.pid]
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        mine.wait()
    assert list(process.holders([])) == []


def test_only_our_own_unused_shared_memory_is_removed(tmp_path):
    since = time.time()
    old, ours, used, mapped, other = (tmp_path / name for name in ("nccl-old", "nccl-a", "nccl-b", "nccl-m", "torch_x"))
    for path in (old, ours, used, mapped, other):
        path.write_bytes(b"x")
    for path in (old, mapped):
        os.utime(path, (since - 100, since - 100))
    with used.open("rb"):
        removed = process.remove_shared_memory([str(mapped)], since=since, folder=tmp_path)
    assert sorted(removed) == [ours, mapped]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nccl-b", "nccl-old", "torch_x"]


DRIVER = """
import os, sys
from pathlib import Path
from nccltune.records import Request
from nccltune.trial.runner import LaunchRunner
folder, python, request = sys.argv[1:]
LaunchRunner(Path(folder), package="scripted_workloads", python=python).run(Request.model_validate_json(request))
"""


def start_tuner(launches, request, python, wrap=()):
    return subprocess.Popen(
        [*wrap, sys.executable, "-c", DRIVER, str(launches.folder), python, request.model_dump_json()],
        env=launches.environ,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.launch
def test_kill_9_of_the_tuner_leaves_nobody(launches):
    """Workers that ignore SIGTERM, with a child in a session of its own, and a minute to go."""
    limits = Limits(startup_s=60, no_progress_s=60)
    tuner = start_tuner(launches, launches.request("stubborn", limits=limits), sys.executable)
    try:
        # agent, two workers, two of their children
        assert wait_for(lambda: "profiled" in launches.phase() and len(launches.left()) == 5, 60)
    finally:
        tuner.kill()
        tuner.wait()
    assert wait_for(lambda: not launches.left(), 10)
    assert process.sweep_study(launches.folder) == []


def test_the_next_run_ends_what_a_killed_tuner_and_a_killed_guardian_left(launches):
    tuner = start_tuner(launches, launches.request("stubborn"), launches.quick)
    assert wait_for(lambda: "profiled" in launches.phase() and len(launches.left()) >= 5, 30)
    os.kill(tuner.pid, signal.SIGSTOP)  # a tuner that cannot react
    os.kill(guardian_of(tuner.pid), signal.SIGKILL)
    tuner.kill()
    tuner.wait()
    # the death signal takes the launcher and the workers with it; only children in sessions of their own go on
    assert wait_for(lambda: len(launches.left()) == 2, 5)
    assert len(process.sweep_study(launches.folder)) == 2
    launches.nobody_left()


def test_a_tuner_that_is_process_1_of_a_container(launches):
    """No init process, nobody else who would reap; and no HOME."""
    launches.environ.pop("HOME", None)
    wrap = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespace can be made here")
    limits = Limits(startup_s=30, no_progress_s=0.5, grace_s=0.5, shutdown_s=0)
    tuner = start_tuner(launches, launches.request("stubborn", limits=limits), launches.quick, wrap)
    assert tuner.wait(30) == 0
    launches.nobody_left()
    report = json.loads(launch_paths(launches.folder, "0000-search").guardian.read_text())
    assert (report["reason"], report["survivors"]) == ("stopped", [])


def test_a_signal_to_the_guardian_alone_is_a_failed_launch(launches):
    outcome = {}
    thread = threading.Thread(target=lambda: outcome.update(it=launches.runner().run(launches.request("hang"))))
    thread.start()
    assert wait_for(lambda: "timed" in launches.phase(), 30)
    os.kill(guardian_of(os.getpid()), signal.SIGTERM)
    thread.join(20)
    assert isinstance(outcome["it"], Failure)
    assert outcome["it"].name == "stopped"
    launches.nobody_left()
