"""The library's floors: tools on the study, the study on the engine, the engine on nothing of the kit; no cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from brrcrl_lib.base.files import ROOT

PACKAGE = "brrcrl_lib"
FLOORS = ("engine", "study", "tools", "command line")
"""From the ground up. A module may import from its own floor and from those below it."""
COMMAND_LINE = ("cli", "commands")
UNWANTED = ("d4rl", "mujoco_py", "gym")  # unmaintained, and the reason why many reproductions never start


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def floor(module: str) -> int:
    room = [*module.split("."), ""][1]
    name = "command line" if room in COMMAND_LINE else room if room in FLOORS else "engine"
    return FLOORS.index(name)


def imports(source: str, known: set[str]) -> set[str]:
    """The kit's modules that a file imports, anywhere in it, except for type checking."""
    found: set[str] = set()
    tree = ast.parse(source)
    checking = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in checking:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return {name for name in found if name.split(".")[0] == PACKAGE}


def graph() -> dict[str, set[str]]:
    every = modules()
    return {name: imports(path.read_text(), set(every)) for name, path in every.items()}


def upward(importing: dict[str, set[str]]) -> list[str]:
    return sorted(
        f"{name} ({FLOORS[floor(name)]}) imports {other} ({FLOORS[floor(other)]})"
        for name, others in importing.items()
        for other in others
        if floor(other) > floor(name)
    )


def cycle(importing: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(importing).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_import_points_to_the_same_floor_or_below() -> None:
    assert upward(graph()) == []


def test_no_module_imports_itself_through_others() -> None:
    assert cycle(graph()) == []


def test_an_upward_import_and_a_cycle_would_be_noticed() -> None:
    known = {f"{PACKAGE}.{name}" for name in ("nets", "study.claims.summary", "tools.notebooks", "cli")}
    assert imports("from brrcrl_lib.study.claims import summary", known) == {f"{PACKAGE}.study.claims.summary"}
    lazy = {f"{PACKAGE}.nets": imports("def f():\n    from brrcrl_lib.study.claims import summary", known)}
    assert upward(lazy) == [f"{PACKAGE}.nets (engine) imports {PACKAGE}.study.claims.summary (study)"]
    assert upward({f"{PACKAGE}.study.claims.summary": {f"{PACKAGE}.tools.notebooks"}}) != []
    assert upward({f"{PACKAGE}.tools.notebooks": {f"{PACKAGE}.cli"}}) != []
    assert upward({f"{PACKAGE}.tools.notebooks": {f"{PACKAGE}.study.claims.summary", f"{PACKAGE}.nets"}}) == []
    assert cycle({"a": {"b"}, "b": {"a"}}) != []


def test_no_file_uses_relative_imports() -> None:
    relative = [
        name
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_the_kit_needs_no_d4rl_no_mujoco_py_no_gym() -> None:
    code = (
        f"import importlib, sys\nfor name in {list(modules())}: importlib.import_module(name)\n"
        f"print('found:', [name for name in {UNWANTED} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == "found: []"


@pytest.mark.parametrize(
    ("what", "heavy"),
    [
        ("brrcrl_lib.cli, brrcrl_lib.tools.notebooks", ("torch", "matplotlib", "pandas", "nbformat")),
        ("brrcrl_lib.study.experiments.results", ("torch", "gymnasium")),
    ],
)
def test_what_must_start_at_once_does_not_wait_for_heavy_libraries(what: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {what}\nprint([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
