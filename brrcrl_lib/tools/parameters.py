"""What a notebook may be asked to do: its `parameters` cell, read and enforced.

Each parameter is one annotated literal with a comment, and the comment's first words may state its range:

    preset: str = "recorded"  # one of recorded, smoke, laptop, released, paper
    delta: float = 0.1  # in (0, 1): share of outcomes that the agent may hope for
    dataset: str = "brrcrl/hopper/medium-replay-v0"  # a dataset id

The runner checks a request against this before anything runs; `begin` checks again inside the kernel.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.errors import KitError

SCALARS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
RANGE = re.compile(r"in ([\[(])\s*([^,]+),\s*([^\])]+)([\])])")
CHOICES = re.compile(r"one of ([^:]+)")


class ParameterError(KitError):
    """A request that no notebook can fulfil; the message says what was wrong and what would be right."""


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell."""

    name: str
    annotation: str  # int, float, bool, str, or list[...] of one of these
    default: Any
    comment: str

    @property
    def element(self) -> str:
        """The scalar type: of the value, or of a list's members."""
        return self.annotation.removeprefix("list[").removesuffix("]")

    def parse(self, text: str) -> Any:
        """The value that a command line's `text` stands for, by the declared type."""
        if self.annotation == "str":
            return text
        try:
            return float(text) if self.annotation == "float" else ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError):
            return text  # `problem` will say what the type is

    def problem(self, value: Any) -> str | None:
        """What is wrong with `value`, in words, or None."""
        if self.annotation.startswith("list["):
            if not isinstance(value, list | tuple):
                return f"{self.name} takes a {self.annotation}, for example {self.default!r}; got {value!r}"
            problems = (self._scalar_problem(item) for item in value)
            return next((problem for problem in problems if problem), None)
        return self._scalar_problem(value)

    def _scalar_problem(self, value: Any) -> str | None:
        wanted = SCALARS[self.element]
        fits = type(value) is wanted or (wanted is float and type(value) is int)
        if not fits or (wanted is float and math.isnan(value)):
            article = "an" if self.element == "int" else "a"
            return f"{self.name} takes {article} {self.element}, for example {self.default!r}; got {value!r}"
        if match := RANGE.match(self.comment):
            opening, low, high, closing = match.groups()
            above = value > float(low) or (opening == "[" and value == float(low))
            below = value < float(high) or (closing == "]" and value == float(high))
            if not (above and below):
                return f"{self.name} must lie {match.group(0)}, for example {self.default!r}; got {value!r}"
        if match := CHOICES.match(self.comment):
            choices = [choice.strip() for choice in match.group(1).split(",")]
            if str(value) not in choices:
                return f"{self.name} cannot be {value!r}{did_you_mean(str(value), choices)}"
        if self.comment.startswith("a dataset id"):
            from brrcrl_lib.data.registry import missing_dataset_message

            return missing_dataset_message(value)
        return None


def parse_cell(source: str) -> dict[str, Parameter]:
    """The parameters declared by a cell's source, in order. Anything but annotated literals is an error."""
    try:
        statements = ast.parse(source).body
        comments = {
            token.start[0]: token.string.lstrip("# ").strip()
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError) as error:
        raise ParameterError(f"the parameters cell is not Python: {error}") from None
    found: dict[str, Parameter] = {}
    for statement in statements:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            raise ParameterError(f"line {statement.lineno} of the parameters cell is not `name: type = literal`")
        name, annotation = statement.target.id, ast.unparse(statement.annotation)
        if annotation.removeprefix("list[").removesuffix("]") not in SCALARS or statement.value is None:
            raise ParameterError(f"parameter {name} needs one of the types {', '.join(SCALARS)} or a list of one")
        try:
            default = ast.literal_eval(statement.value)
        except (ValueError, TypeError, RecursionError):
            raise ParameterError(f"the default of parameter {name} is not a literal") from None
        found[name] = Parameter(name, annotation, default, comments.get(statement.end_lineno or 0, ""))
    return found


def read_cells(notebook: Path) -> list[dict[str, Any]]:
    """The cells of a notebook, each with its `source` as one string. Plain JSON: nbformat takes seconds to import."""
    try:
        found = json.loads(notebook.read_text(encoding="utf-8"))
        cells = [{**cell, "source": "".join(cell["source"])} for cell in found["cells"]]
        whole = bool(cells) and all(isinstance(cell["metadata"].get("tags", []), list) for cell in cells)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ParameterError(f"{notebook.name} is not a notebook of format 4; restore it from the repository")
    return cells


def declared_parameters(notebook: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares in the cell tagged `parameters`."""
    for cell in read_cells(notebook):
        if "parameters" in cell["metadata"].get("tags", []):
            try:
                return parse_cell(cell["source"])
            except ParameterError as error:
                raise ParameterError(f"{notebook.name}: {error}") from None
    raise ParameterError(f"{notebook.name} has no cell tagged 'parameters'")


def check(declared: Mapping[str, Parameter], given: Mapping[str, Any]) -> None:
    """Raise one ParameterError that lists every unknown name, wrong type and value out of range."""
    problems = [
        f"unknown parameter '{name}'{did_you_mean(name, list(declared))}" for name in given if name not in declared
    ]
    problems += [
        problem for name, value in given.items() if name in declared and (problem := declared[name].problem(value))
    ]
    if problems:
        raise ParameterError("; ".join(problems))
