"""Micro-benchmarks of this host as a system with a profile of its own: a CPU host (`host`) or its GPUs (`card`)."""
