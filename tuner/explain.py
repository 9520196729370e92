"""``nccltune explain``: what a log, a topology matrix or traces say, as one answer and in words.

What a file is, is told by its content. The answer of a log holds what NCCL did (version, ranks, transports, choices)
and, where the run failed, whose fault it was; ``None`` means that the file does not say.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from .errors import StorageError, UsageError
from .machine.topology import parse_topology, topology_answer
from .quantities import format_percent, format_us
from .trial.diagnose import classify, decode, facts_of, failure, log_lines
from .trial.evidence import complaints, load_log_patterns, read_logs
from .trial.nccl_facts import NcclLog
from .trial.symptoms import Symptoms, read_symptoms

Kind: TypeAlias = Literal["log", "topology", "traces"]

_HEAD_BYTES: Final = 64 << 10
_MATRIX_BYTES: Final = 4 << 20
# A failure shows at the start or the end of a log; NCCL's warnings are read from all of it.
_FAILURE_PART_BYTES: Final = 2 << 20
_MATRIX = re.compile(r"\bGPU0\b.*\bCPU Affinity\b|^\W*(?:\S+ )?\s*GPU0\s+(?:X|GPU1)\b", re.MULTILINE)
_VERDICT: Final = ("failure_class", "class", "blame", "retry_same_settings", "stop_search", "pattern")
_FROM_FAILURE: Final = (
    *("blame_setting", "collective", "datatype", "op", "timeout_ms", "seq", "port", "signal", "exit_code"),
    *("first_failed_local_rank", "blame_settings", "last_enqueued", "last_completed", "seq_by_rank", "ranks_behind"),
    *("ranks_unheard", "cuda_error", "confidence", "bus_id"),
)


def explain(paths: Sequence[Path]) -> dict[str, Any]:
    """Say what files say.

    Args:
        paths: One log or matrix; or the logs or traces of one run, a file a rank.

    Returns:
        The answer; ``kind`` says which kind of file it was made from.

    Raises:
        UsageError: When no file is given, or files of different kinds.
        StorageError: When a file cannot be read.
    """
    if not paths:
        raise UsageError("No file to explain", "Name a log, the output of 'nvidia-smi topo -m', or traces")
    for path in paths:
        if path.is_dir():
            raise StorageError(f"{path} is a folder", f"Name the files in it: {path}/*")
    try:
        kinds = {path: kind_of(_start(path)) for path in paths}
        if len(set(kinds.values())) > 1:
            named = ", ".join(f"{path.name} ({kind})" for path, kind in kinds.items())
            raise UsageError(f"The files are of different kinds: {named}", "Explain them one after the other")
        kind = kinds[paths[0]]
        if kind == "traces":
            return explain_traces(paths)
        if kind == "topology":
            with paths[0].open("rb") as file:
                return {"kind": kind, **topology_answer(parse_topology(decode(file.read(_MATRIX_BYTES))))}
        return explain_logs(paths)
    except OSError as error:
        raise StorageError(f"{error.filename or paths[0]} cannot be read: {error.strerror}", "Check its name") from None


def kind_of(start: bytes) -> Kind:
    """Tell the kind of a file by its first bytes (unpacked)."""
    text = decode(start).lstrip("\ufeff \t\r\n")
    if text[:1] in ("{", "[") and ('"traceEvents"' in text or '"ph"' in text or '"schemaVersion"' in text):
        return "traces"
    if "NCCL" not in text and _MATRIX.search(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)):
        return "topology"
    return "log"


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head[:2] == b"\x1f\x8b":
        # The start of a packed file unpacks without its end.
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    return head


def explain_traces(paths: Sequence[Path]) -> dict[str, Any]:
    """Reduce the traces of one run, a file a rank."""
    from nccltune.workloads import timeline

    traces, problems = [], []
    for path in paths:
        try:
            data = path.read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            traces.append(timeline.reduce(json.loads(data)))
        except (ValueError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError) as error:
            problems.append(f"{path.name} is no whole trace: {error}")
    return {"kind": "traces", **(timeline.answers(traces) if traces else {}), "problems": problems}


def explain_logs(paths: Sequence[Path]) -> dict[str, Any]:
    """Read the logs of one run."""
    log = read_logs(paths)
    lines = chain.from_iterable(log_lines(path, _FAILURE_PART_BYTES) for path in paths)
    return log_answer(log, read_symptoms(chain(lines, log.texts)))


def log_answer(log: NcclLog, symptoms: Symptoms) -> dict[str, Any]:
    """Bring what was read into the form of the answer."""
    fallback = fell_back(log)
    return {
        "kind": "log",
        "nccl_version": log.version or (None if len(log.versions) > 1 else symptoms.nccl_version),
        "nccl_versions": list(log.versions),
        "cuda_build": log.cuda_build,
        "nranks": log.nranks,
        "nnodes": log.nnodes,
        "nnodes_basis": log.nnodes_basis,
        "processes_seen": log.processes_seen or None,
        "communicators": log.communicators,
        "communicator_ids": list(log.communicator_ids),
        "init_complete_ranks": log.init_complete_ranks,
        "network": log.network,
        "net_plugin_external": log.net_plugin_external,
        "net_plugin_path": log.net_plugin_path,
        "fallback_to_socket": fallback,
        "fallback_matters": None if not fallback or log.nnodes is None or _lone(log) else log.nnodes > 1,
        "gdrdma": log.gdrdma,
        "hcas_without_gdr": list(log.gdr_disabled),
        "ib_devices": list(log.ib_devices),
        "socket_interfaces": list(log.socket_interfaces),
        "transports": log.transports,
        "connections": log.connections,
        "channels": log.channels,
        "socket_threads": list(log.sockets) if log.sockets else None,
        "nvls_multicast": log.nvls_multicast,
        "ll128": log.ll128,
        "env_echoed": {name: " | ".join(values) for name, values in log.echoed.items()},
        "env_refused": complaints(log.texts),
        "algo_proto": [
            {
                "func": choice.function,
                "bytes": choice.size_bytes,
                "algo": choice.algorithm,
                "proto": choice.protocol,
                "channels": list(choice.channels) if choice.channels else None,
            }
            for choice in log.choices
        ],
        **_failure_answer(symptoms),
        "warnings": warnings(log),
    }


def _failure_answer(symptoms: Symptoms) -> dict[str, Any]:
    """The failure that the logs show; ``class`` and the rest are ``None`` where they show none."""
    found = classify(symptoms)
    if found is None and symptoms.error:
        found = ("workload_error", symptoms.error, {})
    if found is None:
        return dict.fromkeys(_VERDICT)
    name, line, details = found
    pattern = symptoms.pattern if name == "hang_timeout" else None
    classified = failure(name, line, pattern=pattern)
    facts = {**facts_of(symptoms, name), **details}
    return {
        "failure_class": name,
        "class": name,
        "blame": classified.blame,
        "retry_same_settings": classified.retry,
        "stop_search": classified.stop,
        "pattern": pattern,
        "root_line": classified.message,
        "advice": classified.advice,
        **{key: facts.get(key) for key in _FROM_FAILURE},
    }


def fell_back(log: NcclLog) -> bool | None:
    """Whether sockets are used because nothing better could be; a choice of sockets on purpose is no fallback.

    Without one, NCCL takes sockets only after its InfiniBand transport found nothing (``src/plugin/net.cc``).
    """
    if log.network is None:
        return None
    if log.network != "Socket":
        return False
    chosen = load_log_patterns().sockets_by_choice
    return not any(value in chosen.get(name, ()) for name, values in log.echoed.items() for value in values)


def _lone(log: NcclLog) -> bool:
    """Whether several hosts each formed a world of one rank."""
    return log.nranks == 1 and (log.communicators or 0) > 1


def warnings(log: NcclLog) -> list[str]:
    """What a reader of the log should look at, in words."""
    found = []
    if len(log.versions) > 1:
        found.append(f"lines of several NCCL versions are mixed: {', '.join(log.versions)}")
    if log.nranks and log.init_complete_ranks < log.nranks:
        found.append(f"the start is confirmed for {log.init_complete_ranks} of {log.nranks} ranks")
    if _lone(log):
        found.append(f"{log.communicators} communicators of one rank each: the processes did not find each other")
    if log.shared_memory_misfit:
        found.append("this NCCL build needs more shared memory than the GPU has; no setting can repair that")
    if log.gdr_disabled and log.network != "Socket":
        found.append(f"GPUDirect RDMA is off for {', '.join(log.gdr_disabled)}")
    vpn = [name for name in log.socket_interfaces if load_log_patterns().is_vpn(name)]
    if vpn:
        found.append(f"a VPN interface is among the socket interfaces: {', '.join(vpn)}")
    if log.network not in (None, "Socket") and len(log.ib_devices) == 1 and (log.nranks or 0) > 1:
        found.append(f"one network device serves every rank of a node: {log.ib_devices[0]}")
    differing = [name for name, values in log.echoed.items() if len(values) > 1]
    if differing:
        found.append(f"ranks read different values of {', '.join(differing)}")
    return found


def words(answer: dict[str, Any]) -> str:
    """The answer for a reader, one fact a line; what is not known is left out."""
    if answer["kind"] == "log":
        return "\n".join(_log_words(answer)) or "Nothing that NCCL or torchrun says was found."
    skip = {"kind"}
    lines = [_fact(key, value) for key, value in answer.items() if key not in skip and _is_said(value)]
    return "\n".join(lines) or "Nothing was found."


def _fact(key: str, value: Any) -> str:
    """For instance ``step: 55.08 ms``, ``comm share: 28 %``; what is a table goes by its number of lines."""
    name = key.removesuffix("_us").replace("_", " ")
    if key == "collectives":
        return f"{name}: {len(value)} (each in --json)"
    if key.endswith("_us"):
        return f"{name}: {format_us(value)}"
    return f"{name}: {format_percent(value) if key.endswith('_share') else _plain(value)}"


def _log_words(answer: dict[str, Any]) -> Iterable[str]:
    if answer["class"]:
        yield f"Failed: {answer['class']} (blame: {answer['blame']}). {answer['root_line']}"
        yield f"  {answer['advice'].rstrip('.')}."
        again = (
            "the same settings may be tried again"
            if answer["retry_same_settings"]
            else "trying the same settings again is no use"
        )
        again = f"no candidate can succeed here; {again}" if answer["stop_search"] else again
        yield f"  {again[0].upper()}{again[1:]}."
    skip = {
        "kind",
        "warnings",
        "failure_class",
        "class",
        "blame",
        "root_line",
        "advice",
        "retry_same_settings",
        "stop_search",
    }
    if len(answer["nccl_versions"]) < 2:
        skip.add("nccl_versions")
    if answer["network"] == "Socket":
        skip.add("hcas_without_gdr")  # sockets have no GPUDirect to miss
    for key, value in answer.items():
        if key == "algo_proto":
            yield from map(_choice_words, value)
        elif key not in skip and _is_said(value) and (key != "init_complete_ranks" or answer["nranks"]):
            yield f"{key.replace('_', ' ')}: {_plain(value)}"
    for warning in answer["warnings"]:
        yield f"Note: {warning}"


def _choice_words(choice: dict[str, Any]) -> str:
    """For instance ``AllReduce of 1048576 bytes: Ring, LL, channels 0 to 23``."""
    first, last = choice["channels"] or (None, None)
    channels = "" if first is None else f", channel {first}" if first == last else f", channels {first} to {last}"
    size = "" if choice["bytes"] is None else f" of {choice['bytes']} bytes"
    return f"{choice['func']}{size}: {choice['algo']}, {choice['proto']}{channels}"


def _is_said(value: Any) -> bool:
    return value is not None and value != [] and value != {}


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(_plain(item) for item in value)
    return str(value)
