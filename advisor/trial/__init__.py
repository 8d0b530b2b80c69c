"""Trials: chosen layouts run for a few steps on the real stack, with records that predictions are held against.

`job` turns a candidate into what the worker is told, `proxy` shrinks it, `processes` runs one process group and lets
nothing survive, `runner` does so trial by trial under a budget, `outcome` says what became of one, `store` keeps the
records, `study` asks Optuna which candidate is next, `measure` turns micro-benchmarks into a profile and a system.
`worker/` is a program of its own (`python -m advisor.trial.worker`), the only part that imports torch and megatron.
"""
