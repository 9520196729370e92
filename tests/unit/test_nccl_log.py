"""NCCL's log by version and form, through everything that happens to logs."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccltune.trial import nccl_log
from nccltune.trial.nccl_facts import NcclLog
from nccltune.trial.nccl_forms import transport
from nccltune.trial.nccl_log import parse_files, parse_text

_SPEC = importlib.util.spec_from_file_location("nccl_samples", Path(__file__).with_name("nccl_samples.py"))
assert _SPEC
assert _SPEC.loader
samples = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(samples)

I0 = "h1:100:110 [0] NCCL INFO "
I1 = "h1:101:111 [1] NCCL INFO "
J0 = "h2:200:210 [0] NCCL INFO "


def lines(*texts: str) -> NcclLog:
    return parse_text("".join(text + "\n" for text in texts))


# What a change of names may change in the answer.
def same_facts(log: NcclLog) -> dict[str, object]:
    facts = dataclasses.asdict(log)
    for key in ("communicator_ids", "texts", "lines"):
        del facts[key]
    return facts


class TestVersion:
    @pytest.mark.parametrize(
        "line",
        [
            "NCCL version 2.10.3+cuda11.3",  # up to 2.21.5: a line of its own
            I0 + "NCCL version 2.10.3+cuda11.3",  # from 2.22.3
            "NCCL INFO NCCL version 2.10.3+cuda11.3",
            "[default0]:NCCL version 2.10.3+cuda11.3",
        ],
    )
    def test_forms(self, line: str) -> None:
        log = lines(line)
        assert (log.version, log.cuda_build) == ("2.10.3", "11.3")

    def test_torchs_own_message_names_the_version_without_cuda(self) -> None:
        log = lines("torch.distributed.DistBackendError: NCCL error in: /x.cpp:1, invalid usage, NCCL version 2.19.3")
        assert (log.version, log.cuda_build) == ("2.19.3", None)

    def test_two_versions_mixed_leave_it_open(self) -> None:
        log = lines("NCCL version 2.10.3+cuda11.3", "NCCL version 2.28.9+cuda13.0")
        assert log.version is None
        assert log.versions == ("2.10.3", "2.28.9")

    def test_nothing_is_invented(self) -> None:
        log = parse_text("")
        facts = dataclasses.asdict(log)
        assert all(facts[key] in (None, 0, (), {}) for key in facts)


class TestCommunicators:
    @pytest.mark.parametrize(
        ("line", "ids"),
        [
            ("comm 0x7f00 rank 1 nranks 2 cudaDev 1 busId 41000 - Init COMPLETE", ()),  # up to 2.14.3
            ("comm 0x7f00 rank 1 nranks 2 cudaDev 1 busId 41000 commId 0xab - Init COMPLETE", ("0xab",)),  # 2.16.2
            ("comm 0x7f00 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 4 commId 0xab - Init COMPLETE", ("0xab",)),
            (
                "ncclCommSplit comm 0x7 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 4 commId 0xab - Init COMPLETE",
                ("0xab",),
            ),
            (
                "[Rank 1] ncclCommInitAll comm 0x7 rank 1 nranks 2 cudaDev 1 busId 4 commId 0xab - Init COMPLETE",
                ("0xab",),
            ),
        ],
    )
    def test_init_complete_by_version(self, line: str, ids: tuple[str, ...]) -> None:
        log = lines(I1 + line)
        assert (log.nranks, log.communicators, log.init_complete_ranks, log.communicator_ids) == (2, 1, 1, ids)

    def test_start_alone_confirms_nothing(self) -> None:
        log = lines(I0 + "comm 0x7 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 30 commId 0xab - Init START")
        assert (log.nranks, log.init_complete_ranks, log.nnodes) == (8, 0, None)

    def test_two_pointers_of_one_rank_are_two_communicators(self) -> None:
        tail = " rank 0 nranks 2 cudaDev 0 busId 41000 - Init COMPLETE"
        assert lines(I0 + "comm 0x7f00" + tail, I0 + "comm 0x7f11" + tail).communicators == 2

    def test_a_ring_listing_is_no_connection(self) -> None:
        log = lines(I0 + "Channel 00/04 :    0   1   2", I0 + "Channel 01/04 :    0   2   1")
        assert (log.nranks, log.communicators, log.connections) == (3, 1, {})

    def test_part_of_a_ring_counts_nobody(self) -> None:
        assert lines(I0 + "Channel 00/04 :    0   2").nranks is None


class TestNodes:
    def test_nccls_own_count_wins_over_host_names(self) -> None:
        log = lines(
            I0 + "comm 0x7 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 30 commId 0xab - Init START",
            I1 + "comm 0x8 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 40 commId 0xab - Init START",
            I0 + "comm 0x7 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
        )
        assert (log.nnodes, log.communicators) == (2, 1)

    def test_hosts_count_before_2_20_5(self) -> None:
        log = lines(
            I0 + "comm 0x7 rank 0 nranks 2 cudaDev 0 busId 30 - Init COMPLETE",
            J0 + "comm 0x8 rank 1 nranks 2 cudaDev 0 busId 30 - Init COMPLETE",
        )
        assert log.nnodes == 2

    def test_one_nodes_log_of_several_leaves_the_count_open(self) -> None:
        log = lines(*(I0 + f"comm 0x{r} rank {r} nranks 16 cudaDev {r} busId {r} - Init COMPLETE" for r in range(8)))
        assert (log.nranks, log.nnodes) == (16, None)

    def test_nodes_that_are_alone_are_one_node_each(self) -> None:
        log = lines(
            I0 + "comm 0x7 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 30 commId 0xaa - Init START",
            J0 + "comm 0x8 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 30 commId 0xbb - Init START",
        )
        assert (log.nranks, log.nnodes, log.communicators) == (1, 1, 2)


class TestConnections:
    @pytest.mark.parametrize(
        ("via", "kind", "gdr"),
        [
            ("P2P/IPC/read", "P2P/IPC", False),
            ("P2P/CUMEM", "P2P/CUMEM", False),
            ("P2P/CUMEM/CE", "P2P/CUMEM", False),
            ("P2P/MNNVL", "P2P/MNNVL", False),
            ("P2P/direct pointer", "P2P/direct pointer", False),
            ("P2P/indirect/3[3]", "P2P/indirect", False),
            ("direct shared memory", "SHM/direct", False),
            ("SHM/direct/direct", "SHM/direct", False),
            ("SHM/direct", "SHM/direct", False),
            ("NET/Socket/0", "NET/Socket", False),
            ("NET/IB/0(5)/GDRDMA", "NET/IB", True),
            ("NET/IBext_v8/3/GDRDMA/Shared", "NET/IBext_v8", True),
            ("NET/AWS Libfabric/1/GDRDMA", "NET/AWS Libfabric", True),
        ],
    )
    def test_kinds(self, via: str, kind: str, gdr: bool) -> None:
        assert transport(via) == (kind, gdr)

    @pytest.mark.parametrize("channel", ["00", "00/0", "00/1"])
    @pytest.mark.parametrize("device", ["41000", "1", "c1000"])
    def test_indices_and_brackets_by_version(self, channel: str, device: str) -> None:
        log = lines(I0 + f"Channel {channel} : 0[{device}] -> 1[{device}] via P2P/IPC/read")
        assert log.connections == {"0->1": "P2P/IPC"}
        assert log.transports == {"P2P/IPC": 1}

    def test_both_ends_of_a_connection_count_once(self) -> None:
        log = lines(
            I0 + "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
            J0 + "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0",
            J0 + "Channel 01/0 : 0[0] -> 1[0] [receive] via NET/Socket/0",
        )
        assert (log.transports, log.network, log.gdrdma) == ({"NET/Socket": 2}, "Socket", False)


class TestEcho:
    @pytest.mark.parametrize(
        ("line", "value"),
        [
            ("NCCL_X set by environment to 5.", "5"),
            ("NCCL_X set by environment to -2.", "-2"),
            ("NCCL_X set by environment to eth0", "eth0"),
            ("NCCL_X set by environment to eth0.100", "eth0.100"),
            ("NCCL_X set to mlx5_0,mlx5_1", "mlx5_0,mlx5_1"),
            ("Comm config maxCTAs reset to NCCL_X=4", "4"),
            ("Parsed environment variable NCCL_X=EFFICIENCY", "EFFICIENCY"),
        ],
    )
    def test_forms(self, line: str, value: str) -> None:
        assert lines(I0 + line).echoed == {"NCCL_X": (value,)}
        assert lines(line).echoed == {"NCCL_X": (value,)}

    def test_ranks_that_read_different_values_keep_both(self) -> None:
        assert lines(I0 + "NCCL_X set by environment to a", I1 + "NCCL_X set by environment to b").echoed["NCCL_X"] == (
            "a",
            "b",
        )


class TestNetwork:
    def test_an_empty_device_list_is_no_ib(self) -> None:
        log = lines(I0 + "NET/IB : Using [RO]; OOB eth0:192.0.2.1<0>", I0 + "Using network Socket")
        assert (log.ib_devices, log.network, log.net_plugin_external) == ((), "Socket", False)

    def test_devices_and_interfaces(self) -> None:
        log = lines(
            I0 + "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.1<0>",
            I0 + "NET/Socket : Using [0]eth0:192.0.2.1<0> [1]tun0:198.51.100.2<0>",
        )
        assert log.ib_devices == ("mlx5_0", "mlx5_1")
        assert log.socket_interfaces == ("eth0", "tun0")

    def test_a_plugin_that_names_itself_is_external(self) -> None:
        assert lines(I0 + "Using network AWS Libfabric").net_plugin_external is True

    def test_gpudirect_off(self) -> None:
        log = lines(I0 + "NET/IB : GPU Direct RDMA Disabled for HCA 2 'mlx5_2'")
        assert (log.gdrdma, log.gdr_disabled) == (False, ("mlx5_2",))

    def test_socket_threads(self) -> None:
        assert lines(I0 + "NET/Socket: Using 4 threads and 2 sockets per thread").sockets == (4, 2)

    @pytest.mark.parametrize(("word", "answer"), [("", True), ("not ", False)])
    def test_multicast(self, word: str, answer: bool) -> None:
        assert lines(I0 + f"NVLS multicast support is {word}available on dev 0").nvls_multicast is answer


class TestChoices:
    @pytest.mark.parametrize(
        ("line", "wanted"),
        [
            ("4096 Bytes -> Algo 1 proto 0 time 12.3", (None, 4096, "Ring", "LL", None)),  # 2.20.5 to 2.22.3
            ("AllReduce: 4096 Bytes -> Algo 6 proto 2 time 12.3", ("AllReduce", 4096, "PAT", "Simple", None)),  # 2.23.4
            (
                "AllGather: 4096 Bytes -> Algo COLLNET_DIRECT proto SIMPLE channel{Lo..Hi}={2..5}",
                ("AllGather", 4096, "CollnetDirect", "Simple", (2, 5)),
            ),
            (
                "ReduceScatter: 8 Bytes -> Algo NVLS_TREE proto LL128 channel{Lo..Hi}={0..0}",
                ("ReduceScatter", 8, "NVLSTree", "LL128", (0, 0)),
            ),
        ],
    )
    def test_forms_by_version(self, line: str, wanted: tuple[object, ...]) -> None:
        (choice,) = lines(I0 + line).choices
        assert dataclasses.astuple(choice) == wanted

    def test_best_tuning_belongs_to_the_request_of_its_thread(self) -> None:
        ask = "Input: {{ .comm = 0x7, .tuningMask = 0x1f, .func = {}, .redOp = 0, .nBytes = {}, .count = 4 }}"
        best = (
            "Best tuning {{ .id = 3, .valid = 1, timeUs = 8.2, .algo = {}, .proto = {}, nChannels = {},"
            " maxChannels = 32, nWarps = 16, forced = 0 }}"
        )
        log = lines(
            I0 + ask.format("AllReduce", 1024),
            I1 + ask.format("AllGather", 2048),
            I0 + best.format("RING", "LL", 4),
            I1 + best.format("NVLS", "SIMPLE", 16),
            I1 + best.format("TREE", "SIMPLE", 2),
        )
        assert [dataclasses.astuple(choice) for choice in log.choices] == [
            ("AllReduce", 1024, "Ring", "LL", (0, 3)),
            ("AllGather", 2048, "NVLS", "Simple", (0, 15)),
        ]

    def test_ll128_of_the_table(self) -> None:
        row = "    AllReduce |  8.0/  90.0 |  16.5/ {} |  16.4/ 232.2 |  7.8/ 141.0 |  17.8/ 0.0 | 15.2/ 360.0 |"
        assert lines(I0 + row.format("331.2")).ll128 is True
        assert lines(I0 + row.format("0.0")).ll128 is False
        assert lines(I0 + row.format("-1.0")).ll128 is False
        assert lines(I0 + "Enabled NCCL Func/Proto/Algo Matrix:", I0 + row.format("331.2")).ll128 is None


class TestRecordings:
    def test_default_run(self) -> None:
        log = parse_files([samples.RECORDINGS / "2.28.9-nvlink-default.log"])
        assert (log.version, log.cuda_build, log.nranks, log.nnodes, log.communicators) == ("2.28.9", "13.0", 2, 1, 1)
        assert (log.transports, log.channels, log.init_complete_ranks) == ({"P2P/CUMEM": 48}, 24, 2)
        assert log.connections == {"0->1": "P2P/CUMEM", "1->0": "P2P/CUMEM"}
        assert log.ll128 is True

    def test_emulated_nodes(self) -> None:
        log = parse_files([samples.RECORDINGS / "2.28.9-sock-threads.log"])
        assert (log.nnodes, log.network, log.sockets, log.gdrdma) == (2, "Socket", (2, 2), False)
        assert log.echoed["NCCL_HOSTID"] == ("h0", "h1")

    @pytest.mark.parametrize("path", samples.RECORDED, ids=lambda path: path.stem)
    @pytest.mark.parametrize("change", samples.CHANGES)
    def test_what_happens_to_logs_changes_nothing(self, path: Path, change: str) -> None:
        text = path.read_text()
        assert same_facts(parse_text(samples.CHANGES[change](text))) == same_facts(parse_text(text)), change

    def test_all_runs_mixed(self) -> None:
        log = parse_files(samples.RECORDED)
        assert log.version == "2.28.9"
        assert log.communicators == len(samples.RECORDED)
        assert log.init_complete_ranks == 2


class TestStream:
    @pytest.mark.parametrize("bare", [False, True], ids=["tagged", "bare"])
    def test_a_long_log_says_the_same_as_a_short_one(self, tmp_path: Path, bare: bool) -> None:
        text = (samples.RECORDINGS / "2.28.9-sock-threads.log").read_text()
        if bare:
            text = text.replace("[0] NCCL INFO ", "").replace("[1] NCCL INFO ", "")
            text = samples._PREFIX.sub("", text)
        late = [
            line for line in text.splitlines() if "Channel 0" in line or "Bytes ->" in line or "threads and" in line
        ]
        early = [line for line in text.splitlines() if line not in late]
        noise = "step 17 loss 0.25 of the training\n" * (3 * nccl_log._THOROUGH_BYTES // 30)
        path = tmp_path / "long.log"
        path.write_text("\n".join([*early, noise, *late]) + "\n")
        assert path.stat().st_size > 2 * nccl_log._THOROUGH_BYTES
        short, long = parse_text("\n".join([*early, *late])), parse_files([path])
        assert same_facts(long) == same_facts(short)

    def test_pairs_late_in_a_long_log_are_kept_together(self, tmp_path: Path) -> None:
        ask = I0 + "Input: { .comm = 0x7, .func = AllReduce, .redOp = 0, .nBytes = 512, .count = 4 }\n"
        best = I0 + "Best tuning { .id = 3, .valid = 1, timeUs = 8.2, .algo = RING, .proto = LL, nChannels = 2 }\n"
        path = tmp_path / "long.log"
        path.write_text("noise of the training\n" * (2 * nccl_log._THOROUGH_BYTES // 22) + ask + best)
        assert len(parse_files([path]).choices) == 1

    def test_utf_16(self, tmp_path: Path) -> None:
        path = tmp_path / "wide.log"
        path.write_bytes((samples.RECORDINGS / "2.28.9-ctas.log").read_text().encode("utf-16"))
        assert same_facts(parse_files([path])) == same_facts(parse_files([samples.RECORDINGS / "2.28.9-ctas.log"]))

    def test_a_number_that_lost_its_end_is_no_fact(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.log"
        path.write_text(I0 + "Using network IB\n" + I0 + "NCCL_X set by environment to 104")
        log = parse_files([path])
        assert (log.network, log.echoed) == ("IB", {})

    def test_binary_between_the_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "junk.log"
        path.write_bytes(b"\x00\xff\xfe\x80" * 1000 + b"\n" + (I0 + "Using network IB\n").encode() + bytes(range(256)))
        assert parse_files([path]).network == "IB"

    @settings(max_examples=60, deadline=None)
    @given(cut=st.integers(0, 20396))
    def test_a_cut_log_never_says_more_than_the_whole(self, cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
        source = samples.RECORDINGS / "2.28.9-sock-threads.log"
        path = tmp_path_factory.mktemp("cut") / "cut.log"
        path.write_bytes(source.read_bytes()[:cut])
        whole, part = parse_files([source]), parse_files([path])
        assert part.version in (None, whole.version)
        assert part.nranks in (None, whole.nranks)
        assert part.connections.items() <= whole.connections.items()
        assert set(part.choices) <= set(whole.choices)
        assert all(set(values) <= set(whole.echoed[name]) for name, values in part.echoed.items())


# Words of the format in any order reach deeper than random letters.
_VOCABULARY = """NCCL INFO WARN version 2.28.9+cuda13.0 Channel 00/0 00/04 : 0[0] -> 1[1] via P2P/CUMEM NET/IB/0/GDRDMA
    comm 0x7f rank 0 nranks nRanks 2 nNodes localRanks cudaDev commId 0xab - Init START COMPLETE Using network
    [0]mlx5_0:1/IB set by environment to NCCL_ALGO AllReduce: 4096 Bytes Algo RING proto LL h1:1:2 [0] [rank0]:
    99999999999999999999 \x1b[31m \x00 \u0660"""
_WORDS = st.sampled_from([*_VOCABULARY.split(), "\n"])


class TestAnyInput:
    @settings(max_examples=300, deadline=None)
    @given(text=st.one_of(st.text(), st.lists(_WORDS, max_size=40).map(" ".join)))
    def test_no_text_raises(self, text: str) -> None:
        parse_text(text)

    @settings(max_examples=100, deadline=None)
    @given(data=st.binary(max_size=4000))
    def test_no_bytes_raise(self, data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
        path = tmp_path_factory.mktemp("any") / "any.log"
        path.write_bytes(data)
        parse_files([path])
