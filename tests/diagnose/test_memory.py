"""Numbers of out-of-memory messages: too small, or in pieces."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.diagnose.memory import read_message

NEW = (
    "CUDA out of memory. Tried to allocate {t:.2f} GiB. GPU 0 has a total capacity of 79.11 GiB of which {f:.2f} GiB is free. "
    "Of the allocated memory {a:.2f} GiB is allocated by PyTorch, and {u:.2f} GiB is reserved by PyTorch but unallocated."
)


def test_both_forms_say_the_same():
    new = read_message(NEW.format(t=2, f=1.2, a=74.3, u=1.7))
    old = read_message(
        "Tried to allocate 2.00 GiB (GPU 0; 79.11 GiB total capacity; 74.30 GiB already allocated; 1.20 GiB free; 76.00 GiB "
        "reserved in total by PyTorch)"
    )
    assert new.unused_bytes == pytest.approx(old.unused_bytes, rel=1e-6)
    assert (new.tried_bytes, new.capacity_bytes, new.free_bytes) == (
        old.tried_bytes,
        old.capacity_bytes,
        old.free_bytes,
    )
    assert new.kind() == old.kind() == ("cuda_oom", "high")


@pytest.mark.parametrize(
    ("tried", "free", "allocated", "unused", "cause"),
    [
        (4.5, 1.1, 60.2, 15.3, "cuda_oom_fragmentation"),
        (2.0, 0.5, 75.1, 1.2, "cuda_oom"),
        (0.02, 0.01, 76.4, 0.6, "cuda_oom"),
        (20.0, 1.0, 62.0, 12.0, "cuda_oom"),
        (1.0, 0.2, 70.0, 5.0, "cuda_oom_fragmentation"),
    ],
)
def test_numbers_decide(tried, free, allocated, unused, cause):
    assert read_message(NEW.format(t=tried, f=free, a=allocated, u=unused)).kind()[0] == cause


def test_a_message_without_numbers_is_less_sure():
    assert read_message("torch.OutOfMemoryError: CUDA out of memory.").kind() == ("cuda_oom", "medium")


def test_memory_of_other_processes_is_said():
    text = NEW.format(t=2, f=0.5, a=20, u=0.1) + " Process 4711 has 55.00 GiB memory in use."
    assert "55 GiB held by other processes" in read_message(text).said()


def test_in_a_container_the_own_process_has_a_number_like_others():
    alone = NEW.format(t=6, f=1.2, a=74.1, u=1.2) + " Process 4242 has 77.90 GiB memory in use."
    assert "other processes" not in read_message(alone).said()
    shared = NEW.format(t=6, f=1.2, a=40, u=1) + " Process 7 has 34.00 GiB memory in use."
    shared += " Process 8 has 43.90 GiB memory in use."
    assert "34 GiB held by other processes" in read_message(shared).said()


@given(st.text(max_size=200))
def test_never_fails(text):
    read_message("Tried to allocate " + text).kind()
