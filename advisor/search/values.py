"""From what people type to values: whole numbers, fractions, switches, lists and names, each with one clear error."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence

from advisor.errors import InputError, UnknownNameError
from advisor.units import from_gib

LARGEST = 2**40


def whole(name: str, value: object, low: int = 1, high: int = LARGEST) -> int:
    """A whole number between `low` and `high`; text and floats without a fraction are taken."""
    number: float = math.nan
    if isinstance(value, str):
        try:
            number = int(value.replace("_", "").replace(",", "").strip())
        except ValueError:
            number = math.nan
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    if not math.isfinite(number) or number != int(number) or not low <= number <= high:
        raise InputError(f"{name}={value!r} is not a whole number from {low} to {high}", f"for example {name}={low}")
    return int(number)


def real(name: str, value: object, low: float, high: float) -> float:
    """A finite number between `low` and `high`."""
    number = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
    if not low <= number <= high:
        raise InputError(f"{name}={value!r} is not a number from {low:g} to {high:g}")
    return number


def switch(name: str, value: object) -> bool:
    """True or false; the words on/off, yes/no, true/false, 1/0 are taken."""
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    found = words.get(str(value).strip().lower())
    if found is None:
        raise InputError(f"{name}={value!r} is neither true nor false")
    return found


def choice(name: str, value: object, known: Sequence[str]) -> str:
    """One of `known`; hyphens, underscores and case do not matter."""
    plain = {one.replace("_", "-").lower(): one for one in known}
    found = plain.get(str(value).strip().replace("_", "-").lower())
    if found is None:
        close = difflib.get_close_matches(str(value).lower(), list(plain), n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(plain[one] for one in close)}?" if close else f"known: {', '.join(known)}"
        raise UnknownNameError(f"{name}={value!r} does not exist", hint)
    return found


def words(name: str, value: object) -> tuple[str, ...]:
    """A list of words, given as a list or as text with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise InputError(f"{name}={value!r} is not a list of names", f"for example {name}=a,b")


def pairs(name: str, value: object) -> dict[str, object]:
    """Settings as a mapping, or as text such as "tp=2,ep=32"; modules of a list are joined by "+"."""
    if isinstance(value, Mapping):
        return {str(key).replace("-", "_"): entry for key, entry in value.items()}
    found: dict[str, object] = {}
    for part in words(name, value):
        key, equals, entry = part.partition("=")
        if not equals or not entry.strip():
            raise InputError(f"{name}: {part!r} is not of the form field=value", f"for example {name}=tp=2,ep=32")
        found[key.strip().replace("-", "_")] = entry.strip()
    return found


def headroom_bytes(value: object, usable_bytes: float) -> float:
    """Memory to keep free: "8%", "4GiB", a fraction below 1 or a number of GiB."""
    text = str(value).strip().lower().replace(" ", "")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%|gib|gb|g)?", text)
    if not found:
        raise InputError(f"headroom={value!r} is neither a percentage nor a size", "for example headroom=8% or 4GiB")
    number, unit = float(found[1]), found[2]
    if unit == "%":
        reserve = usable_bytes * number / 100
    elif unit is None and number < 1:
        reserve = usable_bytes * number
    else:
        reserve = from_gib(number)
    if reserve >= usable_bytes:
        raise InputError(f"headroom={value!r} leaves nothing of the {usable_bytes / from_gib(1):.1f} GiB usable")
    return reserve
