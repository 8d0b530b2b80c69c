"""One rank of a trial: `python -m advisor.trial.worker JOB.json FOLDER` under torchrun or srun.

`build` makes the real megatron-core model, optimizer and schedule of a job, `loop` runs and times its steps, `shim`
lets megatron-core run without a GPU or without Transformer Engine, `witness` writes down what happened, `bench` holds
the micro-benchmarks of `advisor measure`. Nothing else of the package may import this folder.
"""
