"""A launch as an sbatch script, and the way of that script to the scheduler."""

from advisor.export.slurm.render import interactive_text, script_text
from advisor.export.slurm.submit import submit
from advisor.export.slurm.trial import trial_text

__all__ = ["interactive_text", "script_text", "submit", "trial_text"]
