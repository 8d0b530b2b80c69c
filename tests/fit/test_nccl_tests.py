"""Logs of nccl-tests: what they say of a cluster, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.fit.nccl_tests import network_of, read_nccl_log

HEAD = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 1024(factor) warmup iters: 5 iters: 20
# Collective test starting: all_reduce_perf
#
# Using devices
"""
TABLE = """#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    100.0   10.49   19.66      0    101.0   10.38   19.47      0
  1073741824     268435456     float     sum      -1   6000.0  178.96  335.54      0   6010.0  178.66  334.99      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 177.0
"""


def log(folder: Path, nodes: int, text: str = HEAD) -> Path:
    ranks = "".join(
        f"#  Rank {rank:2d} Group  0 Pid  {1000 + rank} on     node{rank // 8} device  {rank % 8} [0x1b] NVIDIA H100\n"
        for rank in range(8 * nodes)
    )
    path = folder / f"nccl_{nodes}.log"
    path.write_text(text + ranks + TABLE, encoding="utf-8")
    return path


def test_a_log_is_read(tmp_path: Path) -> None:
    found = read_nccl_log(log(tmp_path, 2))
    assert (found.operation, found.ranks, found.nodes) == ("all_reduce", 16, 2)
    assert found.seconds == {1048576: pytest.approx(100e-6), 1073741824: pytest.approx(6e-3)}
    assert found.bus_Bps(1073741824) / 1e9 == pytest.approx(335.54, rel=1e-3)


def test_two_nodes_give_share_and_latency(tmp_path: Path) -> None:
    network = network_of([read_nccl_log(log(tmp_path, 2)), read_nccl_log(log(tmp_path, 1))], 50e9)
    assert network.share == pytest.approx(335.54 / 8 / 50, rel=1e-3)
    assert network.latency_s == pytest.approx(50e-6)


def test_one_node_says_nothing_of_the_network(tmp_path: Path) -> None:
    network = network_of([read_nccl_log(log(tmp_path, 1))], 50e9)
    assert network.share is None
    assert network.latency_s is None


@pytest.mark.parametrize("text", ["", "hello\n", HEAD])
def test_files_that_are_no_logs_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="missing"):
        read_nccl_log(path)
