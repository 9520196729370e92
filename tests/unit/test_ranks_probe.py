"""The probe with eight ranks: 28 pairs, few launches, and one GPU that spoils seven of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from fakes import failure, measurement

from nccltune import probe, probe_faults
from nccltune.machine.facts import Facts
from nccltune.machine.gpus import Gpu
from nccltune.machine.library import TorchFacts
from nccltune.machine.limits import Cpu
from nccltune.machine.topology import Topology
from nccltune.records import Limits, Outcome, Placement, Request

EIGHT = Placement(nproc_per_node=8)
TWO_BY_FOUR = Placement(nproc_per_node=8, emulated_nodes=2)
CPU = Facts(torch=TorchFacts(version="2.6.0+cpu", path="/t"), cpu=Cpu(cores_usable=2))


def gpus(count: int = 8) -> Facts:
    links = {f"{one}-{other}": "NV18" for one, other in combinations(range(count), 2)}
    return Facts(
        torch=TorchFacts(version="2.13.0", path="/t", has_nccl=True),
        gpus=tuple(Gpu(index=index) for index in range(count)),
        topology=Topology(gpus=tuple(range(count)), links=links),
        links="nvlink",
        cpu=Cpu(cores_usable=64),
    )


class Machine:
    """A runner whose ranks do as the workload does: part after part, until one hangs.

    Args:
        state_of: The ranks of a part to ``right``, ``wrong`` or ``hung``.
    """

    def __init__(self, state_of: Callable[[tuple[int, ...]], str]) -> None:
        self.state_of = state_of
        self.requests: list[Request] = []
        self.tried: list[str] = []

    def run(self, request: Request) -> Outcome:
        self.requests.append(request)
        world = tuple(range(request.placement.world_size))
        parts = [("world", world)] if request.options["world"] else []
        parts += [(f"{one}-{other}", (one, other)) for one, other in request.options["pairs"]]
        report = Path(str(request.options["report"]))
        report.parent.mkdir(parents=True)
        with report.open("w") as file:
            for name, ranks in parts:
                self.tried.append(name)
                state = self.state_of(ranks)
                file.write(json.dumps({"part": name, "state": "begun"}) + "\n")
                speed = {"gbytes_per_s": 300.0} if state == "right" else {}
                file.write(json.dumps({"part": name, "state": state, **speed}) + "\n")
                if state == "hung":
                    return failure("no_result", "unknown")
        return measurement(request)


def probed(state_of: Callable[[tuple[int, ...]], str], placement: Placement = EIGHT, facts: Facts | None = None):
    runner = Machine(state_of)
    found = probe.run(facts or gpus(), placement, {}, lambda: False, make_runner=lambda _: runner)
    return found, runner


@pytest.mark.parametrize(
    ("placement", "pairs"),
    [
        (Placement(nproc_per_node=2), 1),
        (Placement(nproc_per_node=3), 3),
        (EIGHT, 28),
        (TWO_BY_FOUR, 28),
        (Placement(nnodes=2, nproc_per_node=4), 13),
    ],
    ids=["2", "3", "8", "2x4-emulated", "2x4-real"],
)
def test_a_sound_machine_takes_one_launch_whatever_its_size(placement, pairs):
    found, runner = probed(lambda _: "right", placement)
    assert (len(found.pairs), len(runner.requests)) == (pairs, 1)
    assert {part.state for part in found.parts} == {"right"}
    assert len(set(runner.tried)) == len(runner.tried) == pairs + 1
    assert probe_faults.faults(found, gpus(), placement) == []


@pytest.mark.parametrize("broken", [0, 5, 7], ids=lambda rank: f"gpu-{rank}")
def test_a_gpu_that_hangs_with_every_other_is_found_in_four_launches(broken):
    found, runner = probed(lambda ranks: "hung" if broken in ranks else "right")
    assert len(runner.requests) == probe.MOST_LAUNCHES
    states = {part.name: part.state for part in found.pairs}
    sound = {name for name in states if broken not in probe.ranks_of(name)}
    assert len(sound) == 21
    assert all(states[name] == "right" for name in sound), "all that do not hold the broken one were tried"
    assert {states[name] for name in states.keys() - sound} == {"hangs", "untried"}
    world = probe_faults.faults(found, gpus(), EIGHT)[0]
    assert world.name == "group_hangs"
    assert world.do.startswith(f"GPU {broken} is in every pair that is named here")


def test_a_gpu_that_lies_to_every_other_is_named_as_well():
    found, runner = probed(lambda ranks: "wrong" if 3 in ranks else "right")
    assert len(runner.requests) == 1
    assert [part.name for part in found.pairs if part.state == "wrong"] == [
        "0-3", "1-3", "2-3", "3-4", "3-5", "3-6", "3-7"
    ]  # fmt: skip
    assert "GPU 3 is in every pair" in probe_faults.faults(found, gpus(), EIGHT)[0].do
    assert "Rank 3 is in every pair" in probe_faults.faults(found, CPU, EIGHT)[0].do


def test_a_single_link_accuses_neither_end():
    found, _ = probed(lambda ranks: "hung" if {2, 6} <= set(ranks) else "right")
    faults = probe_faults.faults(found, gpus(), EIGHT)
    assert [fault.name for fault in faults] == ["group_hangs", "pair_hangs"]
    assert faults[0].do == "See the pairs that are named here"


def test_a_machine_on_which_everything_hangs_accuses_nobody():
    found, runner = probed(lambda _: "hung")
    assert len(runner.requests) == probe.MOST_LAUNCHES
    assert [part.name for part in found.parts if part.state == "hangs"] == ["world", "0-1", "2-3", "4-5"]
    assert probe_faults.faults(found, gpus(), EIGHT)[0].do == "See the pairs that are named here"


def test_a_slow_gpu_of_eight_is_told_by_its_pairs():
    found, _ = probed(lambda _: "right")
    slow = tuple(
        part.model_copy(update={"gbytes_per_s": 20.0}) if 6 in probe.ranks_of(part.name) else part
        for part in found.parts
    )
    faults = probe_faults.faults(probe.Probe(parts=slow), gpus(), EIGHT)
    assert [fault.name for fault in faults] == ["pair_slow"] * 7
    assert all(" 6 " in fault.what for fault in faults)


def test_ranks_that_share_cores_have_no_slow_links():
    found, _ = probed(lambda _: "right", facts=CPU)
    uneven = tuple(
        part.model_copy(update={"gbytes_per_s": 0.6 if number % 3 else 0.1}) for number, part in enumerate(found.parts)
    )
    assert probe_faults.faults(probe.Probe(parts=uneven), CPU, EIGHT) == []


@pytest.mark.parametrize("cores", [1, 2, 64], ids=lambda cores: f"{cores}-cores")
def test_the_launch_has_time_for_all_pairs_after_its_start(cores):
    facts = CPU.model_copy(update={"cpu": Cpu(cores_usable=cores)})
    _, runner = probed(lambda _: "right", Placement(nproc_per_node=32), facts)
    limits = runner.requests[0].limits
    assert limits.startup_s == max(120.0, 120.0 * 32 / cores / 8)
    assert limits.total_s > limits.startup_s + 496  # a second for each of the 496 pairs at the very least
    assert limits.no_progress_s > probe.PATIENCE_S
    assert Limits().startup_s == 120.0
