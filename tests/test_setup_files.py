"""One set of pins, said in three places; one test command, called from everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from brrcrl_lib.base.files import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
LOCK_LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
LOCK = {canonicalize_name(line.split("==")[0]): line.split("==")[-1] for line in LOCK_LINES}
GPU_PARTS = ("nvidia-", "cuda-", "triton", "pytorch-triton")  # what torch adds on some platforms, pinned by torch


def text(name: str) -> str:
    return (ROOT / name).read_text()


# -- pins --------------------------------------------------------------------------------------------------------


def test_the_lock_is_plain_exact_pins_in_order() -> None:
    odd = [line for line in LOCK_LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]
    assert odd == [], "only name==version: no local parts, hosts, paths or hashes"
    assert len(LOCK) == len(LOCK_LINES), "a package is pinned twice"
    assert list(LOCK) == sorted(LOCK)


def test_every_pin_but_torch_has_its_hashes() -> None:
    found = re.findall(
        r"^(\S+)==(\S+) \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text("requirements.hashes"), re.M
    )
    hashed = {canonicalize_name(name): version for name, version, _ in found}
    assert hashed == {name: version for name, version in LOCK.items() if name != "torch"}
    assert text("requirements.hashes").count("==") == len(found), "a pin without hashes"


def test_the_workflow_takes_actions_by_their_commit() -> None:
    used = re.findall(r"uses: (\S+)", text(".github/workflows/test.yml"))
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_every_dependency_is_locked_within_its_range(requirement: Requirement) -> None:
    pinned = LOCK.get(canonicalize_name(requirement.name))
    assert pinned is not None, f"{requirement.name} is not in requirements.lock"
    assert requirement.specifier.contains(pinned), f"{requirement} does not allow {pinned}"


def missing_from_lock() -> list[str]:
    """What the pinned packages themselves need (with the extras that pyproject asks for) and the lock lacks."""
    missing = set()
    queue = [(canonicalize_name(requirement.name), tuple(sorted(requirement.extras))) for requirement in DECLARED]
    seen = set(queue)
    while queue:
        name, extras = queue.pop()
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            wanted = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))
            if not wanted or needed.name.startswith(GPU_PARTS):
                continue
            key = (canonicalize_name(needed.name), tuple(sorted(needed.extras)))
            if key[0] not in LOCK or not needed.specifier.contains(LOCK[key[0]], prereleases=True):
                missing.add(f"{line} (needed by {name})")
            elif key not in seen:
                seen.add(key)
                queue.append(key)
    return sorted(missing)


def test_the_lock_holds_everything_that_its_packages_need() -> None:
    assert missing_from_lock() == []


def test_the_lock_check_would_notice_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(LOCK, "pyzmq")
    monkeypatch.setitem(LOCK, "tornado", "1.0")
    assert any("pyzmq" in line for line in missing_from_lock())
    assert any("tornado" in line for line in missing_from_lock())


def test_the_lock_names_nothing_that_will_not_install() -> None:
    assert not {"d4rl", "mujoco-py", "gym"} & set(LOCK)


def test_conda_takes_the_same_python_and_the_same_pins() -> None:
    dependencies = yaml.safe_load(text("environment.yml"))["dependencies"]
    assert dependencies == ["python=3.11", "pip", {"pip": ["-r requirements.lock", "-e ."]}]
    assert "3.11" in SpecifierSet(PROJECT["requires-python"])


# -- commands ----------------------------------------------------------------------------------------------------


def dry_run(*arguments: str) -> str:
    """What make would do, in an environment that is not there yet."""
    command = ["make", "--dry-run", "VENV=no-such-venv", "PYTHON=python3.11", *arguments]
    clean = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "PRESET")}
    return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("target", ["notebooks", "test", "test-browser", "html", "lab", "bench", "data"])
def test_every_target_sets_up_its_environment_first(target: str) -> None:
    steps = dry_run(target)
    order = [
        "-m venv no-such-venv",
        " torch ",
        "-r requirements.hashes",
        "--no-build-isolation -e .",
        "no-such-venv/.ready",
    ]
    positions = [steps.index(step) for step in order]
    assert positions == sorted(positions)
    assert "no-such-venv/bin/python -m" in steps[positions[-1] :], "nothing is run after the set-up"


def test_make_test_checks_everything_in_order() -> None:
    steps = dry_run("test")
    order = ["ruff check .", "ruff format --check .", "-m mypy", "pytest tests", "pytest --nbval ", "--preset smoke"]
    positions = [steps.index(step) for step in order]
    assert positions == sorted(positions)
    assert "nbval-lax" not in steps and "--nbval-cell-timeout" in steps


def test_the_preset_reaches_the_notebooks() -> None:
    assert "notebooks run --preset smoke" in dry_run("notebooks", "PRESET=smoke")
    assert "--preset" not in dry_run("notebooks")


def test_ci_calls_make_test_and_nothing_else() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)
    script = text(".ci/run").splitlines()
    assert script[0] == "#!/usr/bin/env bash" and script[1] == "set -euo pipefail"
    assert script[2].startswith("cd ") and script[3:] == ["make test"]
    steps = yaml.safe_load(text(".github/workflows/test.yml"))["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make test"]
    assert [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")] == ["3.11"]


# -- papers ------------------------------------------------------------------------------------------------------


def test_licence_and_citation() -> None:
    assert "Apache License" in text("LICENSE") and "END OF TERMS AND CONDITIONS" in text("LICENSE")
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"
    assert str(citation["version"]) == PROJECT["version"]
    assert f"## [{PROJECT['version']}]" in text("CHANGELOG.md")
    paper = citation["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Ding", "Che", "Zhao", "Pavone"]
    assert paper["year"] == 2023
