"""Writers of small traces with known overlap: times are microseconds, a trace is a list of events."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GROUPS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
}


def plan_of(step):
    """A plan whose only layout promises `step`, with nothing in its other parts."""
    return {"schema_version": 1, "request": {}, "candidates": [{"layout": {}, "knobs": {}, "memory": {}, "step": step}]}


def kernel(start, dur, name=GEMM, *, stream=7, correlation=None, cat="kernel", **args):
    more = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": dur,
            "args": {"device": 0, "stream": stream, **more, **args}}  # fmt: skip


def collective(start, dur, kind="dp", *, name=NCCL, ranks="[0, 1]", op="allreduce", stream=20, **more):
    group = {"Process Group Name": kind, "Process Group Description": GROUPS[kind], "Process Group Ranks": ranks}
    return kernel(start, dur, name, stream=stream, **{**group, "Collective name": op}, **more)


def launch(start, correlation, dur=1):
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": start, "dur": dur,
            "args": {"cbid": 211, "correlation": correlation}}  # fmt: skip


def mark(number, start, dur):
    return host(f"ProfilerStep#{number}", start, dur, cat="user_annotation")


def host(name, start, dur, *, cat="cpu_op", tid=9, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": start, "dur": dur, "args": args}


def text(events, *, rank=0, world_size=2, **outer):
    info = {"backend": "nccl", "rank": rank, "world_size": world_size, **outer.pop("info", {})}
    top = {"schemaVersion": 1, "distributedInfo": info, **outer, "traceEvents": events}
    return json.dumps(top)


def write(path: Path, events, **top) -> Path:
    raw = text(events, **top).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def nsys(path: Path, kernels=(), copies=(), calls=(), ranges=(), *, process=5 << 24, memsets=()) -> Path:
    """A database of the tables that nsys exports; rows are (start, end, name or kind, correlation, device, stream)."""
    base = sqlite3.connect(path)
    base.executescript("""
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
            contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
            globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
            contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
            bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
            contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
            value INTEGER NOT NULL, bytes INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
            globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
        CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
            text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
        INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (1, 'CUDA_MEMCPY_OPER_HTOD', 'Host-to-Device'),
            (8, 'CUDA_MEMCPY_OPER_DTOD', 'Device-to-Device'), (10, 'CUDA_MEMCPY_OPER_PTOP', 'Peer-to-Peer');
    """)
    names = sorted({row[2] for row in kernels} | {name for _, _, name in ranges})
    ids = {name: number for number, name in enumerate(names, 1)}
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, name) for name, number in ids.items()])
    insert = "INSERT INTO CUPTI_ACTIVITY_KIND_"
    for start, end, name, correlation, device, stream in kernels:
        row = (start, end, device, 1, 0, stream, correlation, process, ids[name], ids[name], ids[name])
        base.execute(f"{insert}KERNEL VALUES ({', '.join('?' * 11)})", row)
    for start, end, kind, correlation, device, stream in copies:
        row = (start, end, device, 1, stream, correlation, process, 1024, kind)
        base.execute(f"{insert}MEMCPY VALUES ({', '.join('?' * 9)})", row)
    for start, end, value, correlation, device, stream in memsets:
        row = (start, end, device, 1, stream, correlation, process, value, 1024)
        base.execute(f"{insert}MEMSET VALUES ({', '.join('?' * 9)})", row)
    for start, end, correlation in calls:
        row = (start, end, 0, process | 77, correlation, 1, 0)
        base.execute(f"{insert}RUNTIME VALUES ({', '.join('?' * 7)})", row)
    for start, end, name in ranges:
        base.execute(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, NULL, ?, NULL, ?, 0)",
            (start, end, process | 77, ids[name]),
        )
    base.commit()
    base.close()
    return path
