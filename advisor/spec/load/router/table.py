"""Router statistics as CSV: one line per layer and expert, or one line per layer with a column per expert.

Long form: columns `layer`, `expert`, `tokens`. Wide form: column `layer`, then one column per expert named 0, 1, ... or
expert_0, expert_1, ... A column `iteration` (or `step`) may be there in both; lines of the same layer are then added
up. Lines that begin with # and blank lines are left out. Layers are numbered from 0 or from 1, as in the model.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from advisor.errors import InputError
from advisor.spec.load.fields import did_you_mean, shown
from advisor.spec.load.router.counts import MOST_LAYERS, Counts, Place, number

TIMES = frozenset({"iteration", "step", "iter"})
_EXPERT = re.compile(r"^(?:experts?[_ ]?|e)?(\d{1,5})$")
FORM = "CSV with a header layer,expert,tokens, or layer,0,1,2,... with a column per expert"


def is_table(lines: Sequence[str]) -> bool:
    """Whether the first line that says anything is a header of statistics."""
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    names = [name.strip().lower() for name in first.split(",")]
    return len(names) > 1 and "layer" in names


def read_table(lines: Sequence[str], source: str) -> Counts:
    """Counts of a CSV file in either form. InputError for a header that is of neither."""
    numbered = [
        (number_, line) for number_, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")
    ]
    try:
        rows = list(csv.reader(line for _, line in numbered))
    except csv.Error as error:
        raise InputError(f"router statistics {source}: {error}", f"the form: {FORM}") from error
    if len(rows) != len(numbered):
        raise InputError(f"router statistics {source}: a quoted field goes on over lines", f"the form: {FORM}")
    header = [name.strip().lower() for name in rows[0]]
    wide = {at: int(found[1]) for at, name in enumerate(header) if (found := _EXPERT.match(name))}
    known = {"layer", "expert", "tokens"} if not wide else {"layer"}
    for at, name in enumerate(header):
        if at not in wide and name not in known | TIMES:
            hint = did_you_mean(name, [*known, *TIMES]) or f"the form: {FORM}"
            raise InputError(f"router statistics {source}: unknown column {shown(name)}", hint)
    if len(set(header)) < len(header) or len(set(wide.values())) < len(wide) or known - set(header):
        raise InputError(
            f"router statistics {source}: the header {shown(','.join(header))} is of no known form", f"the form: {FORM}"
        )
    counts = Counts(source, "CSV, a column per expert" if wide else "CSV, a line per expert")
    sums = bool(TIMES & set(header))
    for (line, _), row in zip(numbered[1:], rows[1:], strict=True):
        where = f"line {line}"
        if len(row) != len(header):
            counts.problems.append(f"{where} has {len(row)} fields, the header {len(header)}")
            continue
        values = dict(zip(header, row, strict=True))
        layer = _whole(values["layer"], "layer", where, counts)
        if wide:
            for at, expert in wide.items():
                counts.add(Place(layer), expert, number(row[at]), where, sums=sums)
        else:
            expert = _whole(values["expert"], "expert", where, counts)
            counts.add(Place(layer), expert, number(values["tokens"]), where, sums=sums)
    return counts


def _whole(text: str, name: str, where: str, counts: Counts) -> int:
    value = number(text)
    if not 0 <= value < MOST_LAYERS or value != int(value):
        counts.problems.append(f"{where}: {name} {shown(text)} is no whole number from 0")
        return 0
    return int(value)
