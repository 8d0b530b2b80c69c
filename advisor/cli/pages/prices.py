"""Words of prices: seconds that a setting is worth, their interval, and what a price leaves out."""

from __future__ import annotations

from advisor.cli.figures import NONE, figure
from advisor.configure.gain import Gain
from advisor.configure.prices import Price
from advisor.units import gib


def signed(value: float) -> str:
    """A number that may be negative."""
    return f"-{figure(-value)}" if value < 0 else figure(value)


def ends(one: Gain) -> str:
    """The interval of a gain."""
    return NONE if one.low_s is None or one.high_s is None else f"{signed(one.low_s)} - {signed(one.high_s)}"


def saves(price: Price | None) -> str:
    """Seconds that a setting saves; in brackets those that an unpriced one acts on, a dash where there are none."""
    if price is None:
        return NONE
    if price.gain is not None and price.gain.saved_s is not None:
        return signed(price.gain.saved_s)
    return f"({figure(price.acts_on_s)})" if price.acts_on_s else NONE


def worth(price: Price | None) -> tuple[str, str]:
    """What a setting saves, and the interval of that."""
    return saves(price), NONE if price is None or price.gain is None else ends(price.gain)


def reasons(reason: str, price: Price | None) -> str:
    """Why a setting is wanted, and what of its price is to be known."""
    if price is None:
        return reason
    memory = [f"saves up to {figure(gib(price.saved_bytes))} GiB of reserved memory"] if price.saved_bytes else []
    return "; ".join([reason, price.why, *memory])
