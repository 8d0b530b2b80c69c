"""The releases a configuration is meant for, and whether what a rule says of its `versions` holds for them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

Release = tuple[int, int]

_COMPARE: dict[str, Callable[[Release, Release], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CLAUSE = re.compile(
    r"(?P<product>[a-z-]+) (?:(?P<compare>>=|<=|>|<)(?P<bound>\d+\.\d+)|(?P<first>\d+\.\d+)(?:-(?P<last>\d+\.\d+))?)"
    r"(?: \([^()]*\))?(?:, |$)"
)


def release(text: str) -> Release:
    """Major and minor number of a version such as 0.6 or 0.6.2."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def hold(versions: str, releases: Mapping[str, Release]) -> bool:
    """Whether `versions` ("megatron-core >=0.17, bridge 0.3-0.5") hold for the known releases of its products.

    Each clause is a product with a bound or a range of releases, and a remark in brackets; a product whose release is
    not known holds. ValueError for a text of another form.
    """
    if not versions or _CLAUSE.sub("", versions):
        raise ValueError(f"versions {versions!r} are no list of products with releases")
    return all(_holds(clause, releases) for clause in _CLAUSE.finditer(versions))


def _holds(clause: re.Match[str], releases: Mapping[str, Release]) -> bool:
    known = releases.get(clause["product"])
    if known is None:
        return True
    if clause["bound"]:
        return _COMPARE[clause["compare"]](known, release(clause["bound"]))
    first = release(clause["first"])
    return first <= known <= (release(clause["last"]) if clause["last"] else first)
