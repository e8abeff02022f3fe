"""A real browser, and JupyterLab as `make lab` starts it; whatever either of them writes goes to a temporary folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
from lab_page import LabPage
from playwright.sync_api import Browser, Page, sync_playwright

from brrcrl_lib.base.files import ROOT

SCREENSHOTS = ROOT / "runs" / "browser"
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},  # asks the network
}
"""What the test changes in JupyterLab, beside what the kit itself does."""


def find_browser() -> str | None:
    names = (os.environ.get("BRRCRL_BROWSER"), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no browser found: install chromium, or name one in BRRCRL_BROWSER, to try the notebooks in it")
    with sync_playwright() as playwright:
        root = hasattr(os, "geteuid") and os.geteuid() == 0  # chromium has no sandbox for root, as in a container
        yield playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"] if root else [])


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of its own for each test; what it showed when the test failed is kept in runs/browser."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    yield page
    if getattr(request.node, "failed", False):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{request.node.name}.png")
    context.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Tell the fixture above, and the reader, about a failure."""
    report = (yield).get_result()
    if report.failed and "page" in getattr(item, "fixturenames", ()):
        item.failed = True
        report.sections.append(("screenshot", str(SCREENSHOTS / f"{item.name}.png")))


@pytest.fixture(scope="session")
def lab_server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A JupyterLab that `brrcrl_lib.tools.lab` started for this process alone: address with token, folder of copies."""
    folder = tmp_path_factory.mktemp("jupyter")
    for plugin, values in SETTINGS.items():
        path = folder / "settings" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    env = {key: value for key, value in os.environ.items() if key != "BRRCRL_QUIET"}  # a person sits at this one
    env |= {f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("config", "data", "runtime")}
    env |= {f"JUPYTERLAB_{name.upper()}_DIR": str(folder / name) for name in ("settings", "workspaces")}
    env |= {"BRRCRL_LAB": str(folder / "lab"), "IPYTHONDIR": str(folder / "ipython")}
    env |= {"HOME": str(folder), "MPLCONFIGDIR": matplotlib.get_cachedir()}  # fonts are indexed once, not here again
    command = [sys.executable, "-m", "brrcrl_lib.tools.lab", "--no-browser", "--port=0"]
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield _address(server, folder), folder / "lab"
    finally:
        server.terminate()
        server.wait(timeout=60)


def _address(server: subprocess.Popen[bytes], folder: Path) -> str:
    """Where the server listens, from the file that it writes once it does."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        for path in (folder / "runtime").glob("jpserver-*.json"):
            try:
                about = json.loads(path.read_text())
            except ValueError:  # half written
                continue
            return f"{about['url']}?token={about['token']}"
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{(folder / 'log.txt').read_text()}")


@pytest.fixture
def lab(page: Page, lab_server: tuple[str, Path]) -> Iterator[LabPage]:
    """JupyterLab in the browser; the kernels that a test started end with it."""
    url, folder = lab_server
    lab = LabPage(page, url, folder)
    yield lab
    lab.end_kernels()
