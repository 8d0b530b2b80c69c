"""Trials: chosen layouts run for a few steps on the real stack, with records that predictions are held against.

`job` turns a candidate into what the worker is told, `proxy` shrinks it. `runner` runs trial by trial under a budget,
through `local` (one process group of torchrun, `processes`) or `slurm` (one job each); both let nothing survive.
`outcome` says what became of a trial, `store` keeps the records. `study` asks Optuna what is next: `space` holds what
may be asked, `asking` and `sampler` ask it, `workers` do so side by side. `measure` turns micro-benchmarks into a
profile and a system, `ab` and `via_bridge` compare one overlap and run through Megatron-Bridge. `worker/` is a program
of its own (`python -m advisor.trial.worker`), the only part that imports torch and megatron.
"""
