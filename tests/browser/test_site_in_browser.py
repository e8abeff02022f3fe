"""`make html`: every page opens in a browser without kernel, network or complaint, and can be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Page

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.tools.notebooks import all_notebooks
from brrcrl_lib.tools.site import write_site

PICTURES = """pictures => Promise.all(pictures.map(async picture => {
  picture.loading = 'eager';
  await picture.decode().catch(() => null);
  return [picture.alt, picture.naturalWidth];
}))"""
WIDTHS = "formulas => formulas.map(formula => formula.getBoundingClientRect().width)"
NO_ALT = ("", "No description has been provided for this image")  # the latter is nbconvert's
UNREAD = re.compile(r"\$[^$\n]*\\[a-zA-Z]+[^$\n]*\$")  # a formula that is still its own source


def hear(page: Page) -> list[str]:
    """What the browser complains about from now on, and whatever it asks the network for."""
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("requestfailed", lambda request: heard.append(f"failed: {request.url[:100]}"))
    page.on("request", lambda request: None if _local(request.url) else heard.append(f"network: {request.url}"))
    return heard


def _local(url: str) -> bool:
    return urlsplit(url).scheme in ("file", "data")


def problems(page: Page, path: Path) -> Iterator[str]:
    """What keeps a reader from reading this page."""
    page.goto(path.as_uri())
    page.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")
    for alt, width in page.locator("img").evaluate_all(PICTURES):
        if not width:
            yield f"a picture is missing: {alt}"
        if alt.strip() in NO_ALT:
            yield "a picture has no alternative text"
    for address in page.locator("a").evaluate_all("links => links.map(link => link.href)"):
        if _local(address) and not _exists(Path(unquote(urlsplit(address).path)), path.parent):
            yield f"a link leads nowhere: {address}"
    for formula in UNREAD.findall(page.locator("body").inner_text()):
        yield f"a formula is not set: {formula}"
    if any(width < 1 for width in page.locator("math").evaluate_all(WIDTHS)):
        yield "a formula is not drawn"
    if page.locator("script").count():
        yield "a script"


def _exists(target: Path, site: Path) -> bool:
    """In the site, or where site/ lies: beside it, in the kit."""
    return target.is_file() or Path(os.path.normpath(ROOT / "site" / os.path.relpath(target, site))).is_file()


def test_every_page_can_be_read(page: Page, tmp_path: Path) -> None:
    heard = hear(page)
    pages = write_site(all_notebooks(), tmp_path)
    assert {path.name: found for path in pages if (found := list(problems(page, path)))} == {}
    assert heard == []
    page.goto((tmp_path / "index.html").as_uri())
    linked = page.locator("td a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert linked == [f"{path.stem}.html" for path in all_notebooks()]
    page.locator("td a").last.click()
    assert page.locator("h1").inner_text().startswith(all_notebooks()[-1].stem[:2])


def test_what_is_wrong_with_a_page_is_noticed(page: Page, tmp_path: Path) -> None:
    heard = hear(page)
    wrong = r"<img src=no.png><a href=no.html>x</a><p>$\delta$<script src=https://cdn.invalid/x.js></script><script>no()</script>"
    (tmp_path / "x.html").write_text(wrong + "<math></math>")
    found = "\n".join(problems(page, tmp_path / "x.html"))
    for said in ("missing", "no alternative", "nowhere", "not set", "not drawn", "a script"):
        assert said in found
    assert any(said.startswith("failed: file") for said in heard) and "network: https://cdn.invalid/x.js" in heard
    assert any("no is not defined" in said for said in heard)
