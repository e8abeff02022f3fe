"""`brrcrl claims readme`: the README's table of claims, written from the recorded rows, and its film in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT, atomic_path
from brrcrl_lib.study.claims.paper_claims import Evidence, judge_claims, markdown_table
from brrcrl_lib.study.figures.robot_film import story_of
from brrcrl_lib.tools.film import FILM
from brrcrl_lib.tools.notebooks import all_notebooks

SHOWN_FILM = re.compile(rf"!\[[^\]]*\]\(figures/{FILM.name}\)")
BEGIN, END = "<!-- claims: written by `brrcrl claims readme` -->", "<!-- end of claims -->"


@dataclass(frozen=True)
class ReadmeConfig:
    """Write the table of claims, between its two markers, from the recorded rows, and the film's words."""

    path: Path = ROOT / "README.md"
    """The page that holds the markers."""


def claims_table() -> str:
    """The table as it should be today."""
    return markdown_table(judge_claims(Evidence()), {path.stem[:2]: path.stem for path in all_notebooks()})


def film_line() -> str:
    """The film, with what it shows as its alternative text (in Markdown that may hold no square brackets)."""
    return f"![{story_of(FILM).translate(str.maketrans('[]', '()'))}](figures/{FILM.name})"


def between_markers(page: str) -> str:
    """What stands between the markers now."""
    _, found, rest = page.partition(BEGIN)
    table, ended, _ = rest.partition(END)
    if not found or not ended:
        raise KitError(f"the page has no place for the table of claims: put the lines '{BEGIN}' and '{END}' into it")
    return table.strip()


def write_readme(config: ReadmeConfig) -> int:
    page = config.path.read_text()
    between_markers(page)
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    page = SHOWN_FILM.sub(lambda _: film_line(), f"{before}{BEGIN}\n{claims_table()}\n{END}{after}")
    with atomic_path(config.path) as temporary:
        temporary.write_text(page)
    print(f"wrote the table of claims to {config.path.name}")
    return 0
