"""Presets, the same experiment at five sizes; and checks of what a field may be.

A configuration is a frozen dataclass whose defaults are the `laptop` values; its class attribute `presets`
lists, for the other presets, only what differs. `recorded` shows what `laptop` made. Where the kind of data asks for
other sizes (vectors or pixels), entries such as "pixels" and "smoke pixels" say which.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from brrcrl_lib.base.errors import KitError

PRESETS = {
    "recorded": "shows shipped results and evaluates a little live; seconds to a minute or two",
    "smoke": "trains from scratch on tiny budgets; proves that every path works, its numbers claim nothing",
    "laptop": "CPU, minutes to an hour; what made the recorded results",
    "released": "the released code's choices as closely as a CPU can follow them; an hour or more a training",
    "paper": "the paper's sizes; wants a GPU",
}

C = TypeVar("C")


def with_preset(config_class: type[C], preset: str, kind: str = "", **overrides: Any) -> C:
    """`config_class` at the size of `preset` for a `kind` of data, with single fields overridden by name."""
    if preset not in PRESETS:
        raise KitError(f"unknown preset '{preset}'{did_you_mean(preset, PRESETS)}")
    listed: Mapping[str, Mapping[str, Any]] = getattr(config_class, "presets", {})
    differences = {**listed.get(kind, {}), **listed.get(preset, {}), **listed.get(f"{preset} {kind}", {})}
    names = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
    for name in overrides:
        if name not in names:
            raise KitError(f"{config_class.__name__} has no field '{name}'{did_you_mean(name, names)}")
    return config_class(**{**differences, **overrides})


def did_you_mean(given: str, valid: Mapping[str, Any] | list[str] | tuple[str, ...]) -> str:
    """'; did you mean ...?' with the nearest valid word, and the whole list behind it."""
    names = list(valid)
    near = get_close_matches(str(given), names, n=1, cutoff=0.5)
    listing = ", ".join(names)
    return (f"; did you mean '{near[0]}'?" if near else "") + f" (valid: {listing})"


# -- checks, for the `__post_init__` of a configuration ----------------------------------------------------------


def one_of(config: Any, name: str, valid: Iterable[str]) -> None:
    value = getattr(config, name)
    if value not in valid:
        raise KitError(f"unknown {name.replace('_', ' ')} '{value}'{did_you_mean(value, tuple(valid))}")


def at_least(config: Any, smallest: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= smallest:
            raise KitError(f"{name} must be at least {smallest}; got {value}")


def in_range(config: Any, name: str, low: float, high: float, open_low: bool = False, open_high: bool = False) -> None:
    """`None` is always fine; what is not a number never."""
    value = getattr(config, name)
    if value is None:
        return
    inside = low <= value <= high and not (open_low and value == low) and not (open_high and value == high)
    if not inside or not math.isfinite(value):
        left, right = "(" if open_low else "[", ")" if open_high or high == math.inf else "]"
        raise KitError(f"{name} must lie in {left}{low}, {high}{right}; got {value}")
