"""Two ranks that train a number, for tests of fault tolerance: sections, checkpoints, one fault on the first attempt.

Usage: ft_program.py FOLDER STEPS SAVE_EVERY FAULT; FAULT is none, killed, hung or lost (with the agent of its node).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

FAULT_AT, FAULT_RANK, STEP_S = 7, 1, 0.1


def main() -> None:
    folder, steps, every, fault = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
    monitor.start_section("setup")
    saved = folder / "checkpoint.json"
    state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "value": 0.0}
    print(f"attempt {attempt} rank {rank} starts after step {state['step']}", flush=True)
    monitor.end_section("setup")
    for step in range(state["step"] + 1, steps + 1):
        monitor.start_section("step")
        # A spare node counts its attempts anew: the fault is remembered beside the checkpoint.
        if fault != "none" and rank == FAULT_RANK and step == FAULT_AT and not (folder / "fault").exists():
            (folder / "fault").touch()
            print(f"rank {rank} is {fault} at step {step}", flush=True)
            if fault == "lost":
                os.kill(os.getppid(), signal.SIGKILL)
            if fault in ("killed", "lost"):
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hung":
                time.sleep(3600)
        one = torch.ones(1, dtype=torch.float64)
        dist.all_reduce(one)
        state = {"step": step, "value": state["value"] + one.item()}
        time.sleep(STEP_S)
        if rank == 0:
            print(f" iteration {step:8d}/ {steps} | lm loss: {1 / step:.6E} |", flush=True)
        monitor.end_section("step")
        if step % every == 0:
            monitor.start_section("checkpointing")
            if rank == 0:
                beside = saved.with_suffix(".new")
                beside.write_text(json.dumps(state))
                beside.replace(saved)
            dist.barrier()
            monitor.end_section("checkpointing")
    if rank == 0:
        (folder / "done.json").write_text(json.dumps({**state, "attempt": attempt}))
    monitor.shutdown_workload_monitoring()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
