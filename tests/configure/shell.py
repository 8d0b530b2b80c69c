"""What a shell makes of a script: srun, scontrol and the like are programs that write down their arguments."""

import os
import stat
import subprocess
from pathlib import Path

STUB = """#!/bin/bash
name=${0##*/}
{
  printf '%s\\0' "$name" "$PWD"
  for key in HF_HOME ODD RANK GROUP_RANK MASTER_ADDR MASTER_PORT; do printf '%s\\0' "${!key-unset}"; done
  printf '%s\\0' "$#" "$@"
} >>"$STUBS/calls"
if [[ $name == scontrol ]]; then printf 'node1\\nnode2\\n'; fi
if [[ $name == srun ]]; then
  while [[ $1 != bash ]]; do shift; done
  export SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=3 SLURM_NODEID=1 SLURM_JOB_NUM_NODES=2
  exec "$@"
fi
"""
KEPT = ("HF_HOME", "ODD", "RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def played(script, folder: Path, **more: str):
    """Calls of the stubs as (name, arguments, folder, environment), in order, when bash runs `script`."""
    folder.mkdir(exist_ok=True)
    for name in ("srun", "scontrol", "uv", "python", "ft_launcher", "numactl", "scancel"):
        path = folder / name
        path.write_text(STUB)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "calls").write_bytes(b"")
    (folder / "job.sbatch").write_text(script)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}", "STUBS": str(folder), "SLURM_JOB_ID": "41",
        "HF_TOKEN": "of the shell",         "SLURM_JOB_NODELIST": "node[1-2]", "LANG": "C.UTF-8", **more,
    }  # fmt: skip
    ran = subprocess.run(
        ["bash", "job.sbatch"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        env=environment, cwd=folder,
    )  # fmt: skip
    words = (folder / "calls").read_bytes().decode().split("\0")[:-1]
    calls = []
    while words:
        name, where = words[:2]
        values = dict(zip(KEPT, words[2:], strict=False))
        start = 2 + len(KEPT)
        end = start + 1 + int(words[start])
        calls.append((name, words[start + 1 : end], where, values))
        words = words[end:]
    return ran, calls


def call(calls, name):
    """Arguments, folder and environment of the only call of a program."""
    (found,) = [one[1:] for one in calls if one[0] == name]
    return found
