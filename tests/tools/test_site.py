"""The site: formulas that browsers read, links from page to page, and one sentence for what cannot be written."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from command_line import call
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.tools.site import write_site

FIRST = """\
# 01 · One & two

**Question:** why?

Then $R \\ge \\theta_\\delta(s)$, so
$$\\frac{a}{b} <
c$$
as [the next](02_second.ipynb#there) says.
"""


def write(folder: Path, name: str, source: str) -> Path:
    picture = new_output("display_data", data={"image/png": "iVBORw0KGgo="}, metadata={"image/png": {"alt": "a < b"}})
    cells = [new_markdown_cell(source), new_code_cell("print(1)", outputs=[picture])]
    nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def test_pages_formulas_links_and_pictures(tmp_path: Path) -> None:
    notebooks = [
        write(tmp_path, "01_first", FIRST),
        write(tmp_path, "02_second", "# 02 · Second\n\n**Question:** how?"),
    ]
    pages = write_site(notebooks, tmp_path / "site")
    assert [page.name for page in pages] == ["index.html", "01_first.html", "02_second.html"]
    index, first, second = (page.read_text() for page in pages)
    assert '<a href="01_first.html">01 · One &amp; two</a>' in index and "how?" in index
    assert 'href="02_second.html#there"' in first and ".ipynb" not in first
    assert 'alt="a &lt; b"' in first and '<a href="01_first.html">← 01 · One &amp; two</a>' in second
    assert "<script" not in index + first + second and "http" not in (tmp_path / "site" / "style.css").read_text()
    inline, block = (
        ElementTree.fromstring(f"<math{piece.partition('</math>')[0]}</math>") for piece in first.split("<math")[1:]
    )
    assert "".join(inline.itertext()) == "R≥θδ(s)" and inline.get("display") == "inline"
    assert "".join(block.itertext()) == "ab<c" and block.get("display") == "block"


@pytest.mark.parametrize("formula", [r"\left( x", r"\unheard x", "a_b_c"])
def test_a_formula_that_cannot_be_read_is_named(tmp_path: Path, formula: str) -> None:
    notebook = write(tmp_path, "01_first", f"# 01 · First\n\n${formula}$")
    with pytest.raises(KitError, match=re.escape(f"01_first: the formula ${formula}$ cannot be read")):
        write_site([notebook], tmp_path / "site")


def test_the_command_says_where_to_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("notebooks", "html", "13", "--out", str(tmp_path)) == 0
    assert capsys.readouterr().out == f"2 pages; begin with {tmp_path / 'index.html'}\n"
    assert call("notebooks", "html", "77", "--out", str(tmp_path)) == 2
