"""A notebook in JupyterLab, by what a person can see and do there: menus, cells, controls and pictures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from brrcrl_lib.tools.notebooks import KERNEL

PATIENCE = 300_000  # milliseconds: for a whole notebook, on a busy machine
REDRAW = 60.0  # seconds: for one picture
SETTLED = 5.0  # seconds without any work in the kernel, after which no new picture will come
CONTROLS = (
    ".widget-dropdown, .widget-select, .widget-slider, .widget-toggle-buttons, .widget-radio, .widget-checkbox,"
    " .jupyter-button:not(.widget-toggle-buttons *)"
)
PICTURES = ".jp-Cell-outputArea img"
PROMPTS = ".jp-CodeCell .jp-InputArea-prompt"
STDERR = "[data-mime-type='application/vnd.jupyter.stderr']"  # JupyterLab shows tracebacks there, too
SHOWN = """async output => {
  const bytes = async picture => picture.tagName === 'CANVAS' ? picture.toDataURL()
    : picture.src.startsWith('blob:') ? [...new Uint8Array(await (await fetch(picture.src)).arrayBuffer())].join()
    : picture.src;
  const texts = [...output.querySelectorAll('.jp-OutputArea, .widget-html-content')].map(area => area.textContent);
  return [texts.join('\\n'), await Promise.all([...output.querySelectorAll('img, canvas')].map(bytes))];
}"""
"""What a cell's output shows beside its controls: texts and pictures."""


class LabPage:
    """JupyterLab with one notebook open, and what the browser complained about meanwhile."""

    def __init__(self, page: Page, url: str, folder: Path) -> None:
        self.folder = folder
        parts = urlsplit(url)
        self.page, self.base, self.token = page, f"{parts.scheme}://{parts.netloc}{parts.path}", parts.query
        self.panel = page.locator(".jp-NotebookPanel")
        self.complaints: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text}")

    # -- the notebook ------------------------------------------------------------------------------------------------

    def open(self, name: str, kernel: str = KERNEL["display_name"]) -> None:
        """Open a notebook, alone in its workspace, and wait for its kernel."""
        self.page.goto(f"{self.base}lab/workspaces/{name}/tree/{name}.ipynb?{self.token}")
        self._await(kernel)

    def reload(self) -> None:
        self.page.reload()
        self._await(KERNEL["display_name"])

    def _await(self, kernel: str) -> None:
        expect(self.panel.locator(".jp-KernelName")).to_have_text(kernel, timeout=PATIENCE)
        self.panel.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=PATIENCE)

    def choose(self, menu: str, item: str) -> None:
        self.page.locator(".lm-MenuBar-item", has_text=re.compile(f"^{menu}$")).click()
        self.page.get_by_role("menuitem", name=re.compile(rf"^{item}( (Ctrl|⌘|Shift).*)?$")).click()

    def run_all(self) -> None:
        """Clear what is stored, so that nothing but this run is seen; run; wait for the last cell or an error."""
        self.choose("Edit", "Clear Outputs of All Cells")
        expect(self.panel.locator("[data-mime-type='image/png']")).to_have_count(0)
        self.choose("Run", "Run All Cells")
        prompts = self.panel.locator(PROMPTS)
        expect(prompts.first).to_have_text(re.compile(r"\d"), timeout=PATIENCE)
        expect(prompts.filter(has_text="*")).to_have_count(0, timeout=PATIENCE)

    def save(self) -> None:
        with self.page.expect_response(lambda response: response.request.method == "PUT" and ".ipynb" in response.url):
            self.choose("File", "Save Notebook")

    def pictures(self) -> int:
        """How many pictures the notebook shows, those of its controls included."""
        return self.panel.locator(PICTURES).count()

    def await_pictures(self, count: int) -> None:
        expect(self.panel.locator(PICTURES)).to_have_count(count, timeout=PATIENCE)

    def problems(self) -> list[str]:
        """Errors and warnings in outputs, formulas that MathJax could not read, and the console's complaints."""
        found = self.panel.locator(f"{STDERR}, mjx-merror")
        if found.count():
            found.first.scroll_into_view_if_needed()  # for the screenshot
        dead = self.panel.locator(".jp-OutputArea-output", has_text="Error displaying widget")
        return [text[-500:] for text in found.all_text_contents() + dead.all_text_contents()] + self.complaints

    def end_kernels(self) -> None:
        """Shut down what a test started, as a person would in the end."""
        headers = {"Authorization": f"token {self.token.partition('=')[2]}"}
        for session in self.page.request.get(f"{self.base}api/sessions", headers=headers).json():
            self.page.request.delete(f"{self.base}api/sessions/{session['id']}", headers=headers)

    # -- its controls ------------------------------------------------------------------------------------------------

    def outputs_with_controls(self) -> Iterator[Locator]:
        outputs = self.panel.locator(".jp-Cell-outputArea", has=self.page.locator(CONTROLS))
        for index in range(outputs.count()):
            yield outputs.nth(index)

    def idle_controls(self, output: Locator) -> list[str]:
        """Move every control of a cell's output; return those of which a move changed nothing that it shows.

        A button that does nothing at first (Back, in the beginning) gets another chance after all the others.
        """
        controls = [output.locator(CONTROLS).nth(index) for index in range(output.locator(CONTROLS).count())]
        idle = [control for control in controls if not self._every_move_shows(output, control)]
        return [
            _name(control) for control in idle if not (_is_button(control) and self._every_move_shows(output, control))
        ]

    def _every_move_shows(self, output: Locator, control: Locator) -> bool:
        control.scroll_into_view_if_needed()
        moves = list(_moves(control))
        return bool(moves) and all(self._changes(output, move) for move in moves)

    def _changes(self, output: Locator, move: Callable[[], None]) -> bool:
        """Make a move and wait: for another picture, or for the kernel to have nothing left to do."""
        before = output.evaluate(SHOWN)
        move()
        deadline = time.monotonic() + REDRAW
        rest = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - rest < SETTLED:
            self.page.wait_for_timeout(50)
            if not self._kernel_rests():
                rest = time.monotonic()
            elif (shown := output.evaluate(SHOWN)) != before and any(shown):
                return True
        return False

    def _kernel_rests(self) -> bool:
        return self.panel.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").count() > 0


def _moves(control: Locator) -> Iterator[Callable[[], None]]:
    """What there is to do with a control: each other option, both sides of a slider, a click."""
    kinds = (control.get_attribute("class") or "").split()
    if "widget-dropdown" in kinds or "widget-select" in kinds:
        select = control.locator("select")
        chosen = select.evaluate("select => select.selectedIndex")
        for index in range(select.locator("option").count()):
            if index != chosen:
                yield lambda index=index: select.select_option(index=index)
    elif "widget-slider" in kinds:
        track, handle = control.locator(".noUi-base"), control.locator("[role=slider]").first
        low, now, high = (float(handle.get_attribute(f"aria-value{name}") or 0) for name in ("min", "now", "max"))
        for share in (0.85, 0.15) if now - low < high - now else (0.15, 0.85):  # never where the handle lies already
            yield lambda share=share: _click_at(track, share)
    elif "widget-toggle-buttons" in kinds:
        for button in control.locator("button:not(.mod-active)").all():
            yield button.click
    elif "widget-radio" in kinds:
        for circle in control.locator("input:not(:checked)").all():
            yield circle.check
    elif "widget-checkbox" in kinds:
        yield control.locator("input").click
    else:
        yield control.click


def _is_button(control: Locator) -> bool:
    return bool(control.evaluate("control => control.matches('button')"))


def _name(control: Locator) -> str:
    """Its label, or else whatever text it has."""
    label = control.locator("label")
    return label.first.inner_text() if label.count() else control.inner_text() or "a control without a name"


def _click_at(track: Locator, share: float) -> None:
    box = track.bounding_box()
    assert box is not None, "a slider without a track"
    upright = box["height"] > box["width"]
    track.click(
        position={"x": box["width"] * (0.5 if upright else share), "y": box["height"] * (share if upright else 0.5)}
    )
