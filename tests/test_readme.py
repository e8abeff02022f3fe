"""What the README promises exists: files, notebooks, commands and their flags."""

from __future__ import annotations

import dataclasses
import re
import shlex

import pytest

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.cli import COMMANDS, LEADING, _choose, _load
from brrcrl_lib.tools.notebook_map import markdown_table

PAGES = ("README.md", "data/README.md", "CONTRIBUTING.md", "DEVIATIONS.md")
TEXTS = {name: (ROOT / name).read_text() for name in PAGES}
LINES = [
    (page, line) for page, text in TEXTS.items() for line in re.findall(r"(?:^|`)(brrcrl [a-z][^`\n#]*)", text, re.M)
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


@pytest.mark.parametrize(("page", "line"), LINES)
def test_commands_in_the_docs_are_real(page: str, line: str) -> None:
    words = shlex.split(line)[1:]
    if words[0] == "COMMAND":
        return
    command = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    assert command is not None, f"{page}: {line}"
    config = _load(_choose(command, words)[0])
    if "--dataset" in words and hasattr(config, "defaults"):  # which flags there are depends on the data
        config = type(config.defaults(words))
    known = flags(config)
    for word in words:
        if word.startswith("--"):
            assert word[2:].split(".")[-1] in known, f"{page}: {line}: {word}"
    assert LEADING.get(command, "")[2:] in known | {""}


def test_there_are_commands_to_check() -> None:
    assert len(LINES) >= 8


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXTS[page]):
        if not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_the_table_of_notebooks_is_the_notebooks_own() -> None:
    assert markdown_table() in TEXTS["README.md"], "paste the output of brrcrl_lib.tools.notebook_map.markdown_table()"
