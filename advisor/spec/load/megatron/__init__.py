"""Megatron-LM arguments as a job that can be estimated: `read_megatron_args`."""

from advisor.spec.load.megatron.job import MegatronJob, read_megatron_args

__all__ = ["MegatronJob", "read_megatron_args"]
