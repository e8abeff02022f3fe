"""The notebooks as a small site that needs neither kernel nor network: `brrcrl notebooks html`.

Formulas become MathML, which browsers draw by themselves: there is no script on any page, and nothing to download.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT, atomic_path
from brrcrl_lib.tools.notebooks import question

LINK = re.compile(r'href="(\d\d_\w+)\.ipynb(?=["#])')
TITLE = re.compile(r"# (.+)")
STYLE = """\
body { font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 0 auto; padding: 1rem }
nav { display: flex; gap: 1.5rem; border-bottom: 1px solid #ddd; padding-bottom: .5rem }
a { color: #0072b2; text-decoration: none } a:hover { text-decoration: underline } a.anchor-link { display: none }
img { max-width: 100%; height: auto }
pre { font-size: 13px; line-height: 1.4; margin: 0; white-space: pre-wrap; overflow-wrap: break-word }
code { font-size: 14px; background: #f5f5f5 } pre code { background: none }
.highlight { background: #f7f7f7; border: 1px solid #e5e5e5; padding: .5rem .75rem; margin: .75rem 0 .25rem }
.output { padding: .25rem .75rem; overflow-x: auto }
blockquote { border-left: 4px solid #0072b2; margin: .75rem 0; padding: 0 1rem; background: #f3f8fc }
table { border-collapse: collapse; font-size: 14px; margin: .75rem 0 }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top } .dataframe :is(th, td) { text-align: right }
tbody tr:nth-child(odd) { background: #f7f7f7 } thead { border-bottom: 1px solid #999 }
math[display=block] { margin: .75rem 0; overflow-x: auto }
.index img { width: 16rem }
"""


@dataclass(frozen=True)
class Entry:
    """A notebook in the index: its page, and what its first cell says."""

    path: Path
    title: str
    question: str

    @property
    def page(self) -> str:
        return f"{self.path.stem}.html"


class _Renderer(IPythonRenderer):
    """nbconvert's Markdown, with formulas as MathML instead of what a script would turn into formulas."""

    def block_math(self, body: str) -> str:
        return _mathml(body, "block")

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")


def _mathml(formula: str, display: str) -> str:
    try:
        written = convert(" ".join(formula.split()), display=display)
    except Exception:  # the converter has a dozen kinds
        written = "\\"
    if "\\" in written:  # it leaves a command that it does not know as it is
        raise KitError(f"the formula ${formula.strip()}$ cannot be read")
    return written


def write_site(notebooks: Sequence[Path], folder: Path) -> list[Path]:
    """Write index.html, a page for each notebook as it is stored, and one style sheet; return the pages."""
    entries = [_entry(path) for path in notebooks]
    if not entries:
        raise KitError("there is no notebook to write a page of")
    styles = STYLE + HtmlFormatter(style="default").get_style_defs(".highlight") + "\n"
    pages = {"style.css": styles, "index.html": _index(entries, folder)}
    for entry, before, after in zip(entries, [None, *entries[:-1]], [*entries[1:], None], strict=True):
        pages[entry.page] = _page(entry.title, _body(entry.path), before, after)
    for name, text in pages.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in pages if name.endswith(".html")]


def _entry(path: Path) -> Entry:
    found = TITLE.match(nbformat.read(path, as_version=4).cells[0].source)
    return Entry(path, found.group(1) if found else path.stem, question(path))


def _body(path: Path) -> str:
    """A notebook's cells as HTML, its links to other notebooks leading to their pages."""
    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
    exporter.register_filter("markdown2html", lambda text: MarkdownWithMath(_Renderer(escape=False)).render(text))
    try:
        body, _ = exporter.from_filename(str(path))
    except KitError as error:
        raise KitError(f"{path.stem}: {error}") from None
    return LINK.sub(r'href="\1.html', body)


def _page(title: str, body: str, before: Entry | None = None, after: Entry | None = None) -> str:
    links = [("All notebooks", "index.html")]
    links += [(f"← {before.title}", before.page)] if before else []
    links += [(f"{after.title} →", after.page)] if after else []
    anchors = "".join(f'<a href="{address}">{html.escape(text)}</a>' for text, address in links)
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="style.css">
<title>{html.escape(title)}</title>
</head>
<body>
<nav>{anchors}</nav>
{body}
</body>
</html>
"""


def _index(entries: Sequence[Entry], folder: Path) -> str:
    """Title, question and a figure of each notebook."""
    from brrcrl_lib.tools.notebook_map import contents

    figures = contents()["figure"]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    rows = []
    for entry in entries:
        picture = ROOT / "figures" / f"{figures.get(entry.path.stem, '')}.png"
        cell = ""
        if picture.is_file():
            shutil.copyfile(picture, folder / "figures" / picture.name)
            cell = f'<img src="figures/{picture.name}" alt="A figure of {html.escape(entry.title)}" loading="lazy">'
        link = f'<a href="{entry.page}">{html.escape(entry.title)}</a>'
        rows.append(f"<tr><td><strong>{link}</strong><br>{html.escape(entry.question)}</td><td>{cell}</td></tr>")
    table = "<table class=index><tbody>" + "\n".join(rows) + "</tbody></table>"
    return _page("BR-RCRL kit: the notebooks", f"<h1>BR-RCRL kit: the notebooks</h1>\n{table}")
