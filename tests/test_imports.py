"""The library's floors: imports point downward only, and nothing drags in what will not install."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from brrcrl_lib.runs import ROOT

PACKAGE = "brrcrl_lib"
LAYERS = [  # from top to bottom: a module may import from lower lines only (and from its own package)
    ["cli"],
    ["welcome"],
    ["notebooks"],
    ["parameters"],
    ["claims"],
    ["atari_plots", "engine_plots", "experiment_plots"],
    ["atari_models", "diagnostics", "imitation"],
    ["experiments"],
    ["grids"],
    ["atari_film", "commands", "bench"],
    ["bench_data", "bench_frames", "bench_growth", "literal"],
    ["families"],
    ["evaluate"],
    ["train", "discrete"],
    ["build"],
    ["loop"],
    ["checkpoints"],
    ["policies"],
    ["baselines"],
    ["inference"],
    ["losses"],
    ["models"],
    ["verdicts"],
    ["results"],
    ["datasets_plots"],
    ["datasets"],
    ["scores"],
    ["returns"],
    ["toys"],
    ["interactive", "plots"],
    ["runs"],
    ["config", "devices", "environments"],
]
FLOOR = {name: number for number, names in enumerate(LAYERS) for name in names}
UNWANTED = ("d4rl", "mujoco_py", "gym")  # unmaintained, and the reason why many reproductions never start


def imported_parts(source: str) -> set[str]:
    """The kit's top-level parts (modules or packages) that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith(f"{PACKAGE}.")}
    return found


def upward_imports(part: str, source: str) -> list[str]:
    """Imports of `source`, a file of `part`, that do not point downward."""
    others = imported_parts(source) - {part}
    return sorted(other for other in others if FLOOR.get(other, -1) <= FLOOR[part])


def files() -> list[Path]:
    return sorted(path for path in (ROOT / PACKAGE).rglob("*.py") if path != ROOT / PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT / PACKAGE).as_posix())
def test_imports_point_downward(path: Path) -> None:
    part = path.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py")
    assert part in FLOOR, f"{part} has no place in LAYERS yet: add it where its imports point downward"
    assert upward_imports(part, path.read_text()) == []


def test_no_file_uses_relative_imports() -> None:
    relative = [
        path.name
        for path in files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_an_upward_import_would_be_noticed() -> None:
    assert upward_imports("losses", "from brrcrl_lib.models import ReturnModel") == []
    assert upward_imports("models", "from brrcrl_lib.losses import info_nce") == ["losses"]
    assert upward_imports("train", "def f():\n    import brrcrl_lib.evaluate") == ["evaluate"]
    assert upward_imports("runs", "from brrcrl_lib import cli, unheard_of") == ["cli", "unheard_of"]


def test_the_kit_needs_no_d4rl_no_mujoco_py_no_gym() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files()]
    code = (
        f"import importlib, sys\nimport {PACKAGE}\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        f"print('found:', [name for name in {UNWANTED} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == "found: []"


def test_the_command_starts_without_the_heavy_libraries() -> None:
    heavy = ("torch", "matplotlib", "pandas", "nbformat")
    code = f"import sys, brrcrl_lib.cli, brrcrl_lib.notebooks\nprint([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
