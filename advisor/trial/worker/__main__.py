"""Entry of a rank: ends with the process that started it, builds, runs, and leaves its file whatever happens."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from advisor.trial.guard import end_with_starter


def main(job_file: str, folder: str) -> None:
    """Run the job; the exception that ends a rank goes to its stderr as usual."""
    end_with_starter()
    warnings.filterwarnings("ignore", module="megatron|torch")
    from advisor.trial.worker.witness import Witness

    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    witness = Witness(Path(folder), int(os.environ.get("RANK", "0")), job["run"]["device"])
    import torch

    from advisor.trial.worker.build import build, open_groups
    from advisor.trial.worker.loop import NotFiniteError, run_steps
    from advisor.trial.worker.said import first_line, is_out_of_memory

    witness.phase("imported")
    try:
        open_groups(job)
        witness.phase("groups")
        built = build(job)
        witness.built(built)
        run_steps(built, witness, Path(folder))
    except NotFiniteError as problem:
        witness.write("nan", message=str(problem))
        raise
    except BaseException as problem:
        if is_out_of_memory(problem):
            witness.memory()
            witness.write("oom", message=first_line(problem))
        else:
            witness.write("crash", message=f"{type(problem).__name__}: {problem}")
        raise
    witness.write("done")
    witness.phase("done")
    torch.distributed.barrier(device_ids=[torch.cuda.current_device()] if built.on_gpu else None)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
