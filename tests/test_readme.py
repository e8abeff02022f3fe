"""What the README promises exists: files, notebooks, commands and their flags."""

from __future__ import annotations

import dataclasses
import re
import shlex
from importlib import import_module

import pytest

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.cli import COMMANDS, LEADING, _choose
from brrcrl_lib.commands import Evaluate, Train
from brrcrl_lib.methods.base import method_named, methods
from brrcrl_lib.tools.notebook_map import markdown_table
from brrcrl_lib.tools.readme import film_line

PAGES = ("README.md", "data/README.md", "CONTRIBUTING.md", "DEVIATIONS.md")
TEXTS = {name: (ROOT / name).read_text() for name in PAGES}
PLUGIN = re.compile(r"^export BRRCRL_METHODS.*?^```$", re.M | re.S)  # test_contributing.py runs what a plugin adds
LINES = [
    (page, line)
    for page, text in TEXTS.items()
    for line in re.findall(r"(?:^|`)(brrcrl [a-z][^`\n#]*)", PLUGIN.sub("", text), re.M)
]


def flags(config: type) -> set[str]:
    """All flags that a command's configuration understands, nested ones included."""
    found = {"help"}
    for field in dataclasses.fields(config):
        nested = getattr(field.default_factory, "__name__", "")
        if dataclasses.is_dataclass(field.default_factory) and nested:
            found |= flags(field.default_factory)  # type: ignore[arg-type]
        else:
            found.add(field.name.replace("_", "-"))
    return found


def known_flags(command: str, words: list[str]) -> set[str]:
    """All flags of a command; those of training and playing depend on the method."""
    if command == "train":
        return flags(Train) | flags(method_named(words[1]).Config)
    if command == "evaluate":
        return flags(Evaluate).union(*(flags(method.Act) for method in methods().values()))
    module, config, _ = _choose(command, words)
    return flags(getattr(import_module(f"brrcrl_lib.{module}"), config))


@pytest.mark.parametrize(("page", "line"), LINES)
def test_commands_in_the_docs_are_real(page: str, line: str) -> None:
    words = shlex.split(line)[1:]
    if "COMMAND" in words or "METHOD" in words:
        return
    command = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    assert command is not None, f"{page}: {line}"
    known = known_flags(command, words)
    for word in words:
        if word.startswith("--"):
            assert word[2:].split(".")[-1] in known, f"{page}: {line}: {word}"
    assert LEADING.get(command, "")[2:] in known | {""}


def test_a_flag_that_is_none_would_be_noticed() -> None:
    for line in ("brrcrl train cloning --negatives 4", "brrcrl evaluate --run x --negatives 4"):
        with pytest.raises(AssertionError, match=f"README.md: {line}: --negatives"):
            test_commands_in_the_docs_are_real("README.md", line)


def test_there_are_commands_to_check() -> None:
    assert len(LINES) >= 8


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXTS[page]):
        if not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_the_table_of_notebooks_is_the_notebooks_own() -> None:
    assert markdown_table() in TEXTS["README.md"], "paste the output of brrcrl_lib.tools.notebook_map.markdown_table()"


def test_the_film_is_told_in_its_own_words() -> None:
    assert film_line() in TEXTS["README.md"], "run `brrcrl claims readme`"
