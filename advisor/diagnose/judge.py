"""From events to one verdict: what failed first, by chronology, with what explains what.

Lines that begin a failure (root) and exceptions (error) compete by time; ranks that wait or see a partner die
(symptoms) decide only where nothing began it; exit codes decide only where even symptoms are absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.diagnose.collectives import classify, unfinished_save
from advisor.diagnose.events import Event, Evidence
from advisor.diagnose.exits import TELLING, by_exit_code
from advisor.diagnose.facts import Facts
from advisor.diagnose.memory import read_message
from advisor.diagnose.patterns import UNDETERMINED, Confidence, Knowledge
from advisor.diagnose.verdict import Verdict

EXTERNAL = {"time_limit", "preempted"}
# (cause, causes that follow from it): the first explains the others wherever it stands in the log.
EXPLAINS = {
    "host_oom": {"dataloader", "native_crash", "python_error", "ckpt_save"},
    "shm_full": {"disk_full", "dataloader", "host_oom", "python_error"},
    "gpu_hardware": {"native_crash", "python_error", "nan", "ckpt_save"},
    "nvlink_fabric": {"native_crash", "python_error", "gpu_hardware"},
    "cache_full": {"disk_full", "python_error", "container"},
    "disk_full": {"ckpt_save", "python_error", "dataloader"},
    "node_fail": {"network_ib", "network_socket", "preempted", "rendezvous", "python_error"},
    "network_ib": {"network_socket", "python_error"},
    "rerun_exit": {"nan", "python_error"},
    "container": {"launch_misuse"},
    "time_limit": {"preempted"},
}
RESUMED_ITERATIONS = 2
STALLED_S = 1800.0
_TAKEN_DOWN_WITH = {"KeyboardInterrupt", "EOFError", "CancelledError", "TimeoutError"}


def judge(evidence: Evidence, facts: Facts, known: Knowledge) -> Verdict:
    """The verdict on a job."""
    resumed = _resumed_at(evidence, facts)
    alive = [event for event in evidence.events if event.at >= resumed]
    current = Evidence(alive, evidence.counts, evidence.sizes)
    candidates = [
        found for event in current.with_role("root", "error") if (found := _candidate(event, facts, known, current))
    ]
    candidates = _unexplained(candidates)
    first = _first(candidates, current, facts)
    waiting = classify(current, facts)
    if first is not None and not _comes_later(first, waiting):
        return _stalled_before(first, current, facts)
    crashed = by_exit_code(current, facts)
    if first is None and crashed is not None and crashed.exit_code in TELLING:
        return crashed
    if waiting is not None and waiting.cause != UNDETERMINED and (first is None or waiting.confidence != "low"):
        return _with_flapping_links(waiting, current)
    if first is not None:
        return first
    return crashed or waiting or _only_symptoms(current)


def _resumed_at(evidence: Evidence, facts: Facts) -> int:
    """Place of the last restart after which training went on: what came before it was survived."""
    marks = [event.at for event in evidence.of("restart")]
    worlds: dict[int, int] = {}
    for event in evidence.of("world"):
        worlds[event.file] = worlds.get(event.file, 0) + 1
        if worlds[event.file] > 1:
            marks.append(event.at)
    survived = [mark for mark in marks if any(one.at > mark for one in facts.progress)]
    fatal = [event.at for event in evidence.with_role("root", "error", "symptom")]
    survived = [mark for mark in survived if any(at > mark for at in fatal)]
    return max(survived, default=0)


def _candidate(event: Event, facts: Facts, known: Knowledge, evidence: Evidence) -> Verdict | None:
    """What one event says on its own, or None where training went on after it."""
    pattern = event.pattern
    if pattern.recoverable and facts.advanced_after(event) >= RESUMED_ITERATIONS:
        return None
    cause, confidence, said, node = pattern.cause, pattern.confidence, "", None
    if pattern.id == "xid":
        return _xid(event, known)
    if pattern.id == "oom-torch":
        numbers = read_message(event.text)
        cause, confidence = numbers.kind()
        said = numbers.said()
    elif pattern.id == "ib-completion":
        node = event.fields["peer"]
    elif pattern.role == "error":
        name = event.fields["type"].rsplit(".", 1)[-1]
        if name in _TAKEN_DOWN_WITH:
            return None
        cause, confidence = _of_exception(event, known, evidence, facts)
    elif pattern.cause in {"ckpt_load", "ckpt_save"} and pattern.confidence != "high":
        cause = _of_exception(event, known, evidence, facts, pattern.cause)[0]
    elif pattern.cause == "import_conflict" and facts.advanced_after(event) >= 1:
        return None
    blame = pattern.cause != "network_ib" and cause not in EXTERNAL
    return Verdict(cause, confidence, () if event.rank is None else (event.rank,), said, (event,), node, blame)


def _xid(event: Event, known: Knowledge) -> Verdict | None:
    number = int(event.fields["xid"])
    xid = known.xids.get(number)
    kind = xid.kind if xid else "hardware"
    said = f"Xid {number}: {xid.name}" if xid else f"Xid {number}"
    match kind:
        case "hardware":
            return Verdict("gpu_hardware", "high" if xid else "medium", (), said, (event,))
        case "fabric":
            return Verdict("nvlink_fabric", "high", (), said, (event,))
        case "application":
            return Verdict("native_crash", "low", (), f"{said} (the program did it)", (event,))
    return None


def _of_exception(
    event: Event, known: Knowledge, evidence: Evidence, facts: Facts, usual: str = "python_error"
) -> tuple[str, Confidence]:
    """Cause of an exception: the frames of the same writer near it, else the phase that rank 0 was in."""
    near = [f for f in evidence.of("frame") if f.writer == event.writer and abs(f.number - event.number) <= 60]
    before = [frame for frame in near if frame.number < event.number]
    for rule in known.frames:
        if any(rule.fits(frame.fields["path"], frame.fields["function"]) for frame in before or near):
            return rule.cause, "high"
    for phase, over in (("loading", "loaded"), ("saving", "saved")):
        begun = [one.at for one in evidence.of(phase) if one.at < event.at]
        ended = [one.at for one in evidence.of(over) if one.at < event.at]
        if begun and max(ended, default=-1) < begun[-1] and facts.last_progress(event.at) < begun[-1] and not before:
            return known.phases[phase], "medium"
    return usual, "high" if before or near or usual != "python_error" else "medium"


def _unexplained(candidates: Sequence[Verdict]) -> list[Verdict]:
    """Candidates that no other candidate explains; an error of a writer that also has a root is that root."""
    causes = {one.cause for one in candidates if one.confidence != "low"}
    explained = {after for cause in causes for after in EXPLAINS.get(cause, ())}
    left = [one for one in candidates if one.cause not in explained]
    writers = {one.events[0].writer for one in left if one.events[0].pattern.role == "root"}
    tagged = {writer for writer in writers if writer[1] is not None}
    return [one for one in left if one.events[0].pattern.role == "root" or one.events[0].writer not in tagged]


def _first(candidates: Sequence[Verdict], evidence: Evidence, facts: Facts) -> Verdict | None:
    """The earliest candidate; without common times a root goes before an error, strong before weak."""
    if not candidates:
        return None
    weak = [one for one in candidates if one.cause in EXTERNAL and one.confidence != "high"]
    strong = [one for one in candidates if one not in weak]
    if weak and not any(one.events[0].at < weak[0].events[0].at for one in strong):
        later = [one for one in strong if one.events[0].pattern.role == "root" and one.cause != "network_socket"]
        strong = later
    pool = strong or weak
    files = {one.events[0].file for one in pool}
    timed = len(files) == 1 or all(one.events[0].time_s is not None for one in pool)

    def key(one: Verdict) -> tuple[int, int, int]:
        event = one.events[0]
        order = 0 if timed else (event.pattern.role != "root") * 2 + (one.confidence != "high")
        return (one.confidence == "low", order, event.at)

    first = min(pool, key=key)
    same = [one for one in candidates if one.cause == first.cause and one is not first]
    lines = (*first.events, *(one.events[0] for one in same[:5]))
    return _settled(first, same, lines)


def _settled(first: Verdict, same: Sequence[Verdict], lines: tuple[Event, ...]) -> Verdict:
    """The first with what others of its cause add: the node named most, firmer words, a rank."""
    confidence: Confidence = first.confidence
    if any(one.confidence == "high" for one in same):
        confidence = "high"
    node = first.node
    if first.cause == "network_ib":
        node, lines = _bad_path(lines)
    if first.cause == "node_fail":
        node = next((event.node for event in lines if event.node), None)
    ranks = first.ranks or next((one.ranks for one in same if one.ranks), ())
    return Verdict(first.cause, confidence, ranks, first.said, lines, node, first.blame_writer, first.exit_code)


def _bad_path(lines: tuple[Event, ...]) -> tuple[str | None, tuple[Event, ...]]:
    """Node of a broken path: the one that reports its own port, else the peer that is named most often."""
    own = [event for event in lines if event.pattern.id in {"ib-event", "ib-link-down"} and event.node]
    if own:
        return own[0].node, (*own[:3], *[event for event in lines if event not in own][:2])
    peers = [event.fields["peer"] for event in lines if "peer" in event.fields]
    if peers:
        return max(set(peers), key=peers.count), lines
    return next((event.node for event in lines if event.node), None), lines


def _comes_later(first: Verdict, waiting: Verdict | None) -> bool:
    """Whether a stop from outside ended a job that was already waiting."""
    if waiting is None or not waiting.events or waiting.confidence == "low":
        return False
    return first.cause in EXTERNAL and first.events[0].at > waiting.events[-1].at


def _stalled_before(first: Verdict, evidence: Evidence, facts: Facts) -> Verdict:
    """A stop from outside that ended a job which had not moved for long: what it was doing then is the better lead."""
    stop, done = first.events[0], [one.event for one in facts.progress if one.at < first.events[0].at]
    if first.cause not in EXTERNAL or not done or stop.time_s is None or done[-1].time_s is None:
        return first
    still_s = stop.time_s - done[-1].time_s
    if still_s < STALLED_S:
        return first
    save = unfinished_save(evidence, facts, stop.at)
    if save is not None:
        said = f"a save began and did not end in the {still_s / 60:.0f} minutes before the job was stopped"
        return Verdict("ckpt_save", "medium", (), said, (save, stop), None, False)
    said = f"no iteration for {still_s / 60:.0f} minutes before: the job may have hung"
    return Verdict(first.cause, "medium", (), said, (*first.events, done[-1]), None, False)


def _with_flapping_links(waiting: Verdict, evidence: Evidence) -> Verdict:
    """All ranks in step, and a link that flapped earlier: that link is the better lead."""
    links = evidence.of("ib-event", "ib-link-down")
    if waiting.cause != "nccl_all_ranks_network" or not links:
        return waiting
    return Verdict(
        "network_ib", "medium", (), "a port had failed before", (links[-1], *waiting.events[:2]), links[-1].node
    )


def _only_symptoms(evidence: Evidence) -> Verdict:
    symptoms = evidence.with_role("symptom") or evidence.of("ib-flush")
    if not symptoms:
        return Verdict(
            UNDETERMINED,
            "low",
            (),
            "no line of this log begins a failure",
            _tail(evidence.with_role("fact", "teardown")),
        )
    closed = [event for event in symptoms if event.pattern.cause == "rendezvous"]
    if closed and len(closed) == len(symptoms):
        return Verdict("rendezvous", "low", (), "connections are refused", tuple(closed[:3]), None, False)
    flushed = evidence.of("ib-flush")
    if flushed:
        said = "completions were flushed; the error before them is not in the log"
        return Verdict("network_ib", "low", (), said, tuple(flushed[:3]), None, False)
    said = "processes lost a partner, and the log does not show who went first"
    return Verdict(UNDETERMINED, "low", (), said, tuple(symptoms[:4]), None, False)


def _tail(events: Iterable[Event]) -> tuple[Event, ...]:
    return tuple(events)[-3:]
