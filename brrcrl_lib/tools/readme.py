"""`brrcrl claims readme`: the README's table of claims, written from the recorded rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT, atomic_path
from brrcrl_lib.study.claims.paper_claims import Evidence, judge_claims, markdown_table
from brrcrl_lib.tools.notebooks import all_notebooks

BEGIN, END = "<!-- claims: written by `brrcrl claims readme` -->", "<!-- end of claims -->"


@dataclass(frozen=True)
class ReadmeConfig:
    """Write the table of claims, between its two markers, from the recorded rows."""

    path: Path = ROOT / "README.md"
    """The page that holds the markers."""


def claims_table() -> str:
    """The table as it should be today."""
    return markdown_table(judge_claims(Evidence()), {path.stem[:2]: path.stem for path in all_notebooks()})


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
    with atomic_path(config.path) as temporary:
        temporary.write_text(f"{before}{BEGIN}\n{claims_table()}\n{END}{after}")
    print(f"wrote the table of claims to {config.path.name}")
    return 0
