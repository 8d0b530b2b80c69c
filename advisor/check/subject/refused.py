"""What `advisor check` would say of a configuration once a change is written into it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.check.files import read_text
from advisor.check.run import joined, report
from advisor.check.subject.edits import Edit
from advisor.check.subject.form import Subject
from advisor.check.subject.rewrite import rewritten


def refused(subject: Subject, changes: Sequence[Edit]) -> Iterator[str]:
    """What stops the edited job and does not stop it today, with the fix: variables and settings that no edit writes.

    A change of a plan is planned again, not edited, so that nothing is said of it.
    """
    if subject.reading.kind == "plan" or not changes:
        return
    reading = read_text(subject.reading.file, rewritten(subject, changes))
    gpus = subject.setup.gpus if "gpus_asked" in subject.setup.facts else None
    system = subject.request.settings.get("system")
    setup = joined([reading], subject.setup.framework, gpus, None if system is None else str(system.value))
    today = {one.rule for one in subject.report.findings if one.severity == "stop"}
    for one in report([reading], setup).findings:
        if one.severity == "stop" and one.rule not in today:
            yield f"stopped by {one.rule}: {one.fix or one.message}"
