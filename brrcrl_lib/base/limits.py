"""What a field of a file may be, said once: a `Rule` is a test and the words for it.

`check_fields` and `read_json` name the file and the field. The settings of tools declare the same rules beside their
fields (base/settings.py).
"""

from __future__ import annotations

import dataclasses
import json
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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


TEXT = Rule("a text that is not empty", lambda value: isinstance(value, str) and value.strip() != "")
ENV_ID = Rule(
    "the id of an environment, for example Hopper-v5 (never module:id, which would run that module)",
    lambda value: isinstance(value, str) and re.fullmatch(r"(\w[\w.-]*/)*\w[\w.-]*", value) is not None,
)
RECORD = Rule("an object with named fields", lambda value: isinstance(value, dict))


def each(rule: Rule, length: int | None = None) -> Rule:
    """A list of `length` values (any number of them by default), all of which fit `rule`."""

    def fits(value: Any) -> bool:
        return isinstance(value, list | tuple) and length in (None, len(value)) and all(map(rule.fits, value))

    return Rule(f"a list{'' if length is None else f' of {length}'}, each {rule.words}", fits)


def either(*rules: Rule) -> Rule:
    return Rule(" or ".join(rule.words for rule in rules), lambda value: any(rule.fits(value) for rule in rules))


def check(value: Any, rule: Rule, what: str) -> None:
    """Raise if `value` does not fit: '{what} must be ...; got ...'."""
    if not rule.fits(value):
        raise KitError(f"{what} must be {rule.words}; got {shown(value)}")


def shown(value: Any) -> str:
    text = repr(str(value) if isinstance(value, Path) else value)
    if isinstance(value, int) and abs(value) >= TOO_LARGE:
        text += ", which is too large"
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


Fields = Mapping[str, Rule]


def check_fields(
    found: Any, where: Path | str, needed: Fields, optional: Fields | None = None, error: type[KitError] = KitError
) -> dict[str, Any]:
    """`found`, if it is an object with these fields; otherwise one sentence with the file `where` and the field."""
    if not isinstance(found, dict):
        raise error(f"{where} must hold {RECORD.words}; it holds {shown(found)}")
    for name, rule in needed.items():
        if name not in found:
            raise error(f"{where} lacks the field '{name}', {rule.words}; restore the file or make it again")
    said = {name: rule for name, rule in (optional or {}).items() if found.get(name) is not None}
    for name, rule in {**needed, **said}.items():
        if not rule.fits(found[name]):
            raise error(f"{where}: the field '{name}' must be {rule.words}; it is {shown(found[name])}")
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
