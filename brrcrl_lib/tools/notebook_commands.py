"""`brrcrl notebooks run | refresh | html | list`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.tools import notebooks


@dataclass(frozen=True)
class RunNotebooks:
    """Run notebooks in order: checked before they start, with a table at the end."""

    notebooks: tyro.conf.Positional[tuple[str, ...]] = ()
    """Numbers or names, for example 02; all notebooks if none is named."""
    preset: str | None = None
    """recorded, smoke, laptop, released or paper; each notebook's own default if left out."""
    parameter: Annotated[
        tyro.conf.UseAppendAction[tuple[tuple[str, str], ...]], tyro.conf.arg(aliases=["-p"], metavar="NAME VALUE")
    ] = ()
    """A parameter of the notebook, for example -p delta 0.2."""
    out: Path = ROOT / "runs" / "notebooks"
    """Folder for the executed copies, one subfolder per preset."""
    jobs: int = 1
    """How many notebooks run at a time, each in a process of its own."""


@dataclass(frozen=True)
class RefreshNotebooks:
    """Execute notebooks with their defaults and store the outputs in place."""

    notebooks: tyro.conf.Positional[tuple[str, ...]] = ()
    """Numbers or names, for example 02; all notebooks if none is named."""


@dataclass(frozen=True)
class HtmlNotebooks:
    """Write the notebooks, as they are stored, to a small site with an index: no kernel, no network, no script."""

    notebooks: tyro.conf.Positional[tuple[str, ...]] = ()
    """Numbers or names, for example 02; all notebooks if none is named."""
    out: Path = ROOT / "site"
    """Folder for the pages; index.html is where to begin."""


@dataclass(frozen=True)
class ListNotebooks:
    """List the notebooks with their questions."""


def run_notebooks(config: RunNotebooks) -> int:
    if config.jobs < 1:
        raise KitError(f"--jobs must be at least 1; got {config.jobs}")
    planned = notebooks.plan(notebooks.find_notebooks(config.notebooks), config.preset, dict(config.parameter))
    outcomes = notebooks.run_notebooks(planned, config.out, config.jobs)
    print("\n" + notebooks.summary(outcomes))
    failed = sum(outcome.status == "failed" for outcome in outcomes)
    verdict = f"{failed} of {len(outcomes)} failed" if failed else "all ok"
    print(f"\n{verdict}; executed copies in {config.out}")
    return 1 if failed else 0


def refresh_notebooks(config: RefreshNotebooks) -> int:
    failed = 0
    for path in notebooks.find_notebooks(config.notebooks):
        print(f"refreshing {path.stem}", flush=True)
        try:
            notebooks.refresh(path)
        except notebooks.NotebookFailed as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


def html_notebooks(config: HtmlNotebooks) -> int:
    from brrcrl_lib.tools.site import write_site

    pages = write_site(notebooks.find_notebooks(config.notebooks), config.out)
    print(f"{len(pages)} pages; begin with {config.out / 'index.html'}")
    return 0


def list_notebooks(config: ListNotebooks) -> int:
    for path in notebooks.all_notebooks():
        print(f"{path.stem:<24} {notebooks.question(path)}")
    return 0
