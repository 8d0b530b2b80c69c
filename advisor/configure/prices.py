"""What fields and environment variables are worth in a step: a gain, or why there is none and what they act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.configure.environment import Variable
from advisor.configure.gain import Gain, gain_of, given, steps
from advisor.configure.job import Job, preset
from advisor.configure.resolved import Field
from advisor.cost.norms import norm_s
from advisor.cost.profile import load_profile
from advisor.spec.layout import Dispatcher, Fsdp, table
from advisor.spec.plan import Candidate, StepEstimate

FILE = "launch/prices.yaml"
DEFAULT_CONNECTIONS = 8
"""Hardware queues that CUDA takes when nobody says."""
COMPUTE = ("compute_gemm", "compute_attention", "compute_experts", "compute_memory_bound", "compute_recurrence",
           "compute_head")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Price:
    """What one setting is worth: `gain`, or None and the reason in `why`.

    `acts_on_s` is how many seconds of the step an unpriced setting acts on, None where it is priced. `saved_bytes` is
    device memory that it saves, None where it saves none that is known.
    """

    gain: Gain | None
    why: str = ""
    acts_on_s: float | None = None
    saved_bytes: float | None = None
    source: str = ""

    def record(self) -> dict[str, Any]:
        """JSON form, seconds and bytes."""
        one = self.gain
        return {
            "gain": None if one is None else one.name,
            "kind": "none" if one is None else one.kind,
            "with_s": None if one is None else one.with_s,
            "without_s": None if one is None else one.without_s,
            "saved_s": None if one is None else one.saved_s,
            "low_s": None if one is None else one.low_s,
            "high_s": None if one is None else one.high_s,
            "acts_on_s": self.acts_on_s,
            "saved_bytes": self.saved_bytes,
            "why": self.why or None,
        }


def _unpriced(row: Mapping[str, Any], step: StepEstimate, why: str = "") -> Price:
    """No gain, with the seconds of the terms that the setting acts on."""
    hidden = {f"hidden_{name}": seconds for name, seconds in step.hidden_s.items()}
    terms = hidden | {name: term.value for name, term in step.terms.items()}
    touched = sum(float(share) * terms[name] for name, share in row.get("touches", {}).items())
    return Price(None, why or str(row["why"]), touched)


def field_prices(fields: Iterable[Field], found: Iterable[Gain], step: StepEstimate) -> dict[str, Price]:
    """The price of every field by its dotted name; KeyError for a field that the preset does not know."""
    rows, by_name = preset(FILE)["fields"], {one.name: one for one in found}
    prices = {}
    for field in fields:
        row = rows[field.path]
        gain = by_name.get(str(row.get("gain", "")).format(value=field.effective))
        if gain is not None:
            prices[field.path] = _priced(gain)
        elif "touches" in row:
            prices[field.path] = _unpriced(row, step)
        else:
            why = str(row["why"]) if field.effective and "why" in row else field.reason
            prices[field.path] = Price(None, why, 0.0)
    return prices


def _priced(gain: Gain) -> Price:
    """A gain with its note; without seconds the note says why."""
    return Price(None, gain.note, 0.0) if gain.saved_s is None else Price(gain, gain.note)


def variable_prices(job: Job, wanted: Iterable[Variable], candidate: Candidate) -> dict[str, Price]:
    """The price of every variable that `job` wants, by name, beside other values; `candidate` is the job priced."""
    rows, step = preset(FILE)["variables"], candidate.step
    if step is None:
        return {}
    prices = {}
    for one in wanted:
        make = _PRICED.get(one.name)
        made = None if make is None else make(job, one, candidate, step)
        prices[one.name] = made if made is not None else _unpriced(rows[one.name], step)
    return prices


def _scaled(gain: Gain, factor: float) -> Gain:
    """A gain in the seconds of a measured run, which scales predictions and not the ratios between them."""
    names = ("with_s", "without_s", "saved_s", "low_s", "high_s")
    return replace(gain, **{name: factor * getattr(gain, name) for name in names})


def _connections(job: Job, wanted: Variable, candidate: Candidate, step: StepEstimate) -> Price | None:
    """Overlap that another number of hardware queues loses: with CUDA's own number, or with one."""
    if job.knobs.fsdp is not Fsdp.none:
        return _unpriced({}, step, "Megatron-FSDP refuses 1, and nothing else of it is known to rest on the number")
    today = job.workload.connections
    other = today if today not in (None, int(wanted.value)) else 1 if wanted.value != "1" else DEFAULT_CONNECTIONS
    now, with_it, without = steps([job, given(job, connections=int(wanted.value)), given(job, connections=other)])
    if without.step_s <= with_it.step_s:
        return None
    words = f"without: {other}"
    gain = _scaled(gain_of(wanted.name, today is None, with_it, without), step.step_s / now.step_s)
    if job.knobs.ep_overlap:
        note = f"{words}; what one queue still hides is one public report's share"
        return _priced(replace(gain, kind="measured", note=note))
    what = "the order of launches is not ensured" if other != 1 else "gradient and parameter traffic waits for compute"
    return _priced(replace(gain, low_s=0.0, note=f"{words}, where {what}: from nothing lost to all of that overlap"))


def _margin(job: Job, wanted: Variable, candidate: Candidate, step: StepEstimate) -> Price | None:
    """SMs that norms leave free: norms slow in proportion at worst, at best all traffic beside them goes on."""
    columns = table([job.layout], [job.knobs])
    norms = norm_s(job.model, job.workload, columns, load_profile(job.gpu))
    seconds = float((norms.forward if "FWD" in wanted.name else norms.backward)[0])
    margin = int(wanted.value)
    slower = seconds * margin / (job.gpu.sm_count - margin)
    compute = sum(step.terms[name].value for name in COMPUTE)
    waits = sum(step.hidden_s.values()) * seconds / compute
    if waits <= 0:
        return _unpriced({}, step, "nothing runs beside norms here that could wait for SMs")
    note = f"norms slower by {slower:.2g} s at most, traffic beside them let through for {waits:.2g} s at most"
    saved = waits - slower
    return _priced(Gain(wanted.name, True, step.step_s, step.step_s + saved, saved, -slower, waits, note))


def _domain(job: Job, wanted: Variable, candidate: Candidate, step: StepEstimate) -> Price | None:
    """HybridEP told that NVLink ends at the node, on a system where it does not."""
    node = job.cluster.system.gpus_per_node
    if job.knobs.dispatcher is not Dispatcher.hybridep or job.cluster.system.nvlink_domain <= node:
        return None
    now, without = steps([job, given(job, ep_domain=node)])
    if without.step_s <= now.step_s:
        return _unpriced({}, step, f"EP {job.layout.ep} stays inside a node of {node} GPUs")
    note = f"without: domains of one node ({node} GPUs), set by these variables together"
    return _priced(_scaled(gain_of(wanted.name, True, now, without, note), step.step_s / now.step_s))


def _allocator(job: Job, wanted: Variable, candidate: Candidate, step: StepEstimate) -> Price | None:
    """Memory that segments of fixed size leave reserved and unused; no time."""
    table_row = preset(FILE)["reserved_share_without_segments"]
    memory = candidate.memory
    lost = float(table_row["value"]) * memory.peak_allocated_bytes
    saved = max(lost - memory.terms["fragmentation"].value, 0.0)
    row = preset(FILE)["variables"][wanted.name]
    return Price(None, str(row["why"]), 0.0, saved, str(table_row["source"]))


_PRICED: dict[str, Callable[[Job, Variable, Candidate, StepEstimate], Price | None]] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": _connections,
    "NVTE_FWD_LAYERNORM_SM_MARGIN": _margin,
    "NVTE_BWD_LAYERNORM_SM_MARGIN": _margin,
    "NVLINK_DOMAIN_SIZE": _domain,
    "USE_MNNVL": _domain,
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": _domain,
    "PYTORCH_CUDA_ALLOC_CONF": _allocator,
}
