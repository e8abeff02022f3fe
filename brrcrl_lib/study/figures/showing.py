"""What a notebook shows to those who cannot see it, cannot scroll it, or have no kernel."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import HTML, Markdown, display
from matplotlib.figure import Figure


def alt_text(figure: Figure, name: str = "figure") -> str:
    """A figure in words: its headline and its panels' titles, or else its name."""
    axes = figure.get_axes()
    titles = [axis.get_title(loc=side) for axis in axes for side in ("left", "center", "right")]  # type: ignore[arg-type]
    parts = [figure.get_suptitle(), *titles]
    return "; ".join(dict.fromkeys(" ".join(part.split()) for part in parts if part.strip())) or name


def show_with_alt_text(figure: Figure, name: str) -> None:
    """Let IPython put `alt_text` beside every figure's picture, and call this figure `name` where it has no title."""
    figure.set_label(name)
    shell: Any = get_ipython()
    formatter: Any = shell.display_formatter.formatters["image/png"] if shell is not None else None
    draw = formatter.type_printers.get(Figure) if formatter is not None else None
    if draw is None or getattr(draw, "describes", False):
        return

    def described(shown: Figure) -> Any:
        drawn = draw(shown)
        data, metadata = drawn if isinstance(drawn, tuple) else (drawn, {})
        return data, {**metadata, "alt": alt_text(shown, str(shown.get_label()) or "figure")}

    described.describes = True  # type: ignore[attr-defined]
    formatter.for_type(Figure, described)


def clip(path: Path, alt: str) -> HTML:
    """A GIF that plays wherever HTML is shown; nbconvert has no way to show `IPython.display.Image` of one."""
    data = base64.b64encode(path.read_bytes()).decode()
    return HTML(f'<img src="data:image/gif;base64,{data}" alt="{html.escape(alt)}"/>')


def show_verdict(text: str) -> None:
    """A verdict as a quotation that wraps between words; a printed line of 300 characters breaks inside them."""
    quoted = "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())
    display(Markdown(quoted))
