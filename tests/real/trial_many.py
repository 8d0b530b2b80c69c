"""Runs several jobs of the trial worker in one process group, so that torch and megatron are imported once per rank.

`python trial_many.py JOBS.json FOLDER` under torchrun: JOBS.json maps names to jobs, each gets FOLDER/<name>.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from advisor.trial.guard import end_with_starter


def main(jobs_file: str, folder: str) -> None:
    end_with_starter()
    warnings.filterwarnings("ignore")
    import torch

    from advisor.trial.worker.build import build, open_groups
    from advisor.trial.worker.loop import run_steps
    from advisor.trial.worker.witness import Witness

    for name, job in json.loads(Path(jobs_file).read_text()).items():
        where = Path(folder) / name
        where.mkdir(exist_ok=True)
        witness = Witness(where, int(os.environ["RANK"]), "cpu")
        open_groups(job)
        built = build(job)
        witness.built(built)
        run_steps(built, witness, where)
        witness.write("done")
        torch.distributed.barrier()
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        torch.distributed.init_process_group = lambda *_, **__: None


if __name__ == "__main__":
    main(*sys.argv[1:])
