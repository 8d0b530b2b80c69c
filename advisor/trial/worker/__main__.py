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

    witness.phase("imported")
    try:
        open_groups(job)
        witness.phase("groups")
        built = build(job)
        witness.built(built)
        run_steps(built, witness, Path(folder))
    except torch.OutOfMemoryError as problem:
        witness.memory()
        witness.write("oom", message=str(problem).splitlines()[0])
        raise
    except NotFiniteError as problem:
        witness.write("nan", message=str(problem))
        raise
    except BaseException as problem:
        witness.write("crash", message=f"{type(problem).__name__}: {problem}")
        raise
    witness.write("done")
    witness.phase("done")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
