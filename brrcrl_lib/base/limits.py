"""What a setting or a field of a file may be, said once and checked before any work starts.

A `Rule` is a test and the words for it. Settings declare rules beside their fields:

    @dataclass(frozen=True)
    class CollectConfig:
        steps: Annotated[int, whole(1)] = 500_000
        discount: Annotated[float, number(0, 1)] = 0.99

and `check_settings(config)` applies them all. Fields without a rule still have the rule of their type: whole numbers
are whole, floats are finite (unless the default is not), strings are not empty, choices are among the choices.
The same rules describe the files that come from outside: `check_fields` and `read_json` name the file and the field.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from brrcrl_lib.base.errors import KitError

LONGEST_SHOWN = 60
TOO_LARGE = 2**63
"""Whole numbers have 64 bits wherever they go."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """`fits(value)` tells whether a value may stand here; `words` complete 'it must be ...'."""

    words: str
    fits: Callable[[Any], bool]


def whole(low: int | None = None, high: int | None = None) -> Rule:
    """A whole number, from `low` to `high`."""

    def fits(value: Any) -> bool:
        try:
            number = operator.index(value)
        except TypeError:
            return False
        if isinstance(value, bool) or abs(number) >= TOO_LARGE:
            return False
        return (low is None or number >= low) and (high is None or number <= high)

    if low is not None and high is not None:
        return Rule(f"a whole number from {low:,} to {high:,}", fits)
    return Rule("a whole number" + ("" if low is None else f" of at least {low:,}"), fits)


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


TEXT = Rule("a text that is not empty", lambda value: isinstance(value, str) and value.strip() != "")
NAME = Rule("a name of letters, digits and . _ + - (no folders, not empty, no dot at its beginning)", _is_name)
NAMES = Rule(
    "a name, or names joined by / (letters, digits and . _ + -; no '..', no / at either end)",
    lambda value: isinstance(value, str) and all(map(_is_name, value.split("/"))),
)
ENV_ID = Rule(
    "the id of an environment, for example Hopper-v5 (never module:id, which would run that module)",
    lambda value: isinstance(value, str) and re.fullmatch(r"(\w[\w.-]*/)*\w[\w.-]*", value) is not None,
)
PLACE = Rule("a path that names a file or a folder", lambda value: isinstance(value, Path) and value.name != "")
RECORD = Rule("an object with named fields", lambda value: isinstance(value, dict))
YES_OR_NO = Rule("true or false", lambda value: isinstance(value, bool))

Count = Annotated[int, whole(1)]
Seed = Annotated[int, whole(0, 1_000_000)]
Rate = Annotated[float, number(above=0)]
Discount = Annotated[float, number(0, 1)]
Name = Annotated[str, NAME]
Names = Annotated[str, NAMES]
EnvId = Annotated[str, ENV_ID]
OutPath = Annotated[Path, PLACE]


def each(rule: Rule, length: int | None = None) -> Rule:
    """A list of `length` values (any number of them by default), all of which fit `rule`."""

    def fits(value: Any) -> bool:
        return isinstance(value, list | tuple) and length in (None, len(value)) and all(map(rule.fits, value))

    return Rule(f"a list{'' if length is None else f' of {length}'}, each {rule.words}", fits)


def one_of(*choices: Any) -> Rule:
    return Rule(f"one of {', '.join(map(str, choices))}", lambda value: value in choices)


def either(*rules: Rule) -> Rule:
    return Rule(" or ".join(rule.words for rule in rules), lambda value: any(rule.fits(value) for rule in rules))


def check(value: Any, rule: Rule, what: str) -> None:
    """Raise if `value` does not fit: '{what} must be ...; got ...'."""
    if not rule.fits(value):
        raise KitError(f"{what} must be {rule.words}; got {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(str(value) if isinstance(value, Path) else value)
    if isinstance(value, int) and abs(value) >= TOO_LARGE:
        text += ", which is too large"
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


# -- settings ------------------------------------------------------------------------------------------------------


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
            raise KitError(f"{name} must be {fixed} values; got {_shown(value)}")
        for index, item in enumerate(value):
            _check_hint(item, arguments[index] if fixed else arguments[0], name, unlimited)
    elif hint is float and unlimited and isinstance(value, float) and math.isinf(value):
        return
    elif hint in PLAIN:
        check(value, PLAIN[hint], name)


PLAIN = {int: whole(), float: number(), str: TEXT, bool: YES_OR_NO}
"""The rule of a type without one of its own."""


# -- files ---------------------------------------------------------------------------------------------------------

Fields = Mapping[str, Rule]


def check_fields(
    found: Any, where: Path | str, needed: Fields, optional: Fields | None = None, error: type[KitError] = KitError
) -> dict[str, Any]:
    """`found`, if it is an object with these fields; otherwise one sentence with the file `where` and the field."""
    if not isinstance(found, dict):
        raise error(f"{where} must hold {RECORD.words}; it holds {_shown(found)}")
    for name, rule in needed.items():
        if name not in found:
            raise error(f"{where} lacks the field '{name}', {rule.words}; restore the file or make it again")
    said = {name: rule for name, rule in (optional or {}).items() if found.get(name) is not None}
    for name, rule in {**needed, **said}.items():
        if not rule.fits(found[name]):
            raise error(f"{where}: the field '{name}' must be {rule.words}; it is {_shown(found[name])}")
    return found


def parse_json(
    text: Any, where: Path | str, needed: Fields, optional: Fields | None = None, error: type[KitError] = KitError
) -> dict[str, Any]:
    """The object that a text from `where` holds, with its fields checked."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as problem:
        raise error(f"{where} cannot be read as JSON: {problem}") from problem
    return check_fields(found, where, needed, optional, error)


def read_json(
    path: Path, needed: Fields, optional: Fields | None = None, error: type[KitError] = KitError
) -> dict[str, Any]:
    """The object in a JSON file, with its fields checked."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path} cannot be read: {problem}") from problem
    return parse_json(text, path, needed, optional, error)
