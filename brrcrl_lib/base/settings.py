"""What a setting may be, declared beside its field and checked before any work starts.

    @dataclass(frozen=True)
    class CollectConfig:
        steps: Annotated[int, whole(1)] = 500_000
        discount: Annotated[float, number(0, 1)] = 0.99

`check_settings(config)` applies all rules. Fields without one still have the rule of their type: whole numbers are
whole, floats are finite (unless the default is not), strings are not empty, choices are among the choices.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.limits import ENV_ID, TEXT, Rule, check, each, shown, whole


def number(low: float = -math.inf, high: float = math.inf, *, above: float | None = None) -> Rule:
    """A finite number, from `low` to `high`, or larger than `above`."""

    def fits(value: Any) -> bool:
        if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__") or not math.isfinite(value):
            return False
        return low <= value <= high and (above is None or value > above)

    bounds = [f"above {above:g}"] if above is not None else [f"of at least {low:g}"] if math.isfinite(low) else []
    bounds += [f"at most {high:g}"] if math.isfinite(high) else []
    return Rule(" and ".join(["a finite number " + bounds[0], *bounds[1:]] if bounds else ["a finite number"]), fits)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\w[\w.+-]*", value) is not None


NAME = Rule("a name of letters, digits and . _ + - (no folders, not empty, no dot at its beginning)", _is_name)
NAMES = Rule(
    "a name, or names joined by / (letters, digits and . _ + -; no '..', no / at either end)",
    lambda value: isinstance(value, str) and all(map(_is_name, value.split("/"))),
)
PLACE = Rule("a path that names a file or a folder", lambda value: isinstance(value, Path) and value.name != "")
YES_OR_NO = Rule("true or false", lambda value: isinstance(value, bool))

Count = Annotated[int, whole(1)]
Envs = Annotated[int, whole(1, 1024)]  # side by side, each with memory of its own
Seed = Annotated[int, whole(0, 1_000_000)]
Rate = Annotated[float, number(above=0)]
Discount = Annotated[float, number(0, 1)]
Name = Annotated[str, NAME]
Names = Annotated[str, NAMES]
EnvId = Annotated[str, ENV_ID]
OutPath = Annotated[Path, PLACE]


def one_of(*choices: Any) -> Rule:
    return Rule(f"one of {', '.join(map(str, choices))}", lambda value: value in choices)


def check_settings(config: Any, prefix: str = "") -> None:
    """Check every field of a settings dataclass, and of those inside it, by their rules and types."""
    hints = get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            check_settings(value, f"{name}.")
        else:
            unlimited = isinstance(field.default, float) and math.isinf(field.default)
            _check_hint(value, hints[field.name], name, unlimited)


def _check_hint(value: Any, hint: Any, name: str, unlimited: bool) -> None:
    """Check one value by its annotation; `unlimited` lets infinities through."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rules = [rule for rule in hint.__metadata__ if isinstance(rule, Rule)]
        if value is None and type(None) in get_args(arguments[0]):
            return
        for rule in rules:
            check(value, rule, name)
        if not rules:
            _check_hint(value, arguments[0], name, unlimited)
    elif origin in (Union, types.UnionType):
        kinds = [kind for kind in arguments if kind is not type(None)]
        if value is not None and len(kinds) == 1:  # of several kinds, the one that reads it decides
            _check_hint(value, kinds[0], name, unlimited)
    elif origin is Literal:
        check(value, one_of(*arguments), name)
    elif origin is tuple:
        check(value, each(Rule("any value", lambda _: True)), name)
        fixed = len(arguments) if arguments and arguments[-1] is not Ellipsis else None
        if fixed not in (None, len(value)):
            raise KitError(f"{name} must be {fixed} values; got {shown(value)}")
        for index, item in enumerate(value):
            _check_hint(item, arguments[index] if fixed else arguments[0], name, unlimited)
    elif hint is float and unlimited and isinstance(value, float) and math.isinf(value):
        return
    elif hint in PLAIN:
        check(value, PLAIN[hint], name)


PLAIN = {int: whole(), float: number(), str: TEXT, bool: YES_OR_NO}
"""The rule of a type without one of its own."""
