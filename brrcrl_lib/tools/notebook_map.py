"""What notebook 00 shows: this machine, the map of the kit, and one picture per notebook."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version

import matplotlib.image as image
import matplotlib.pyplot as plt
import nbformat
import pandas as pd
from IPython.display import HTML
from matplotlib.figure import Figure

from brrcrl_lib.base.devices import pick_device
from brrcrl_lib.base.files import ROOT, versions
from brrcrl_lib.data.registry import list_datasets
from brrcrl_lib.tools.notebooks import all_notebooks

FIELD = re.compile(r"\*\*(Question|Time|In the paper):\*\*\s*(.+)")
SAVED = re.compile(r"run\.save_figure\(\w+, \"(\w+)\"\)")


def machine() -> pd.DataFrame:
    """Versions, device, cores and datasets of this machine."""
    rows = {
        "system": f"{platform.system()} {platform.machine()}",
        "CPU cores": os.cpu_count(),
        "device": str(pick_device()),
        "kit": version("brrcrl"),
        **versions(),
        "datasets found": len(list_datasets()),
    }
    return pd.DataFrame({"value": rows})


def contents() -> pd.DataFrame:
    """Number, question, paper section, minutes and a figure of every notebook, read from the notebooks."""
    rows = []
    for path in all_notebooks():
        cells = nbformat.read(path, as_version=4).cells
        about = dict(FIELD.findall(cells[0].source))
        figures = [name for cell in cells if cell.cell_type == "code" for name in SAVED.findall(cell.source)]
        rows.append(
            {
                "notebook": path.stem,
                "question": about["Question"],
                "in the paper": about["In the paper"].rstrip("."),
                "time": about["Time"].split(" on ")[0],
                "figure": _landscape(figures),
            }
        )
    return pd.DataFrame(rows).set_index("notebook")


def _landscape(figures: list[str]) -> str:
    """The first figure that is much wider than high, for the map; else simply the first."""
    for name in figures:
        path = ROOT / "figures" / f"{name}.png"
        if path.exists():
            height, width = image.imread(path).shape[:2]
            if width > 1.7 * height:
                return name
    return figures[0] if figures else ""


def linked(table: pd.DataFrame) -> HTML:
    """The contents as a page shows them, every name a link to its notebook."""
    links = table.drop(columns="figure").rename(index=lambda name: f'<a href="{name}.ipynb">{name}</a>')
    with pd.option_context("display.max_colwidth", None):
        return HTML(links.rename_axis(index=None).to_html(escape=False, justify="left"))


def markdown_table() -> str:
    """The table of notebooks as the README shows it."""
    lines = ["| notebook | question | a figure | time |", "|---|---|---|---|"]
    for name, row in contents().iterrows():
        link, figure = f"[{name}](notebooks/{name}.ipynb)", row["figure"]
        lines.append(f"| {link} | {row['question']} | [{figure}](figures/{figure}.png) | {row['time']} |")
    return "\n".join(lines)


def draw_map(table: pd.DataFrame) -> Figure:
    """A figure of each notebook, small, under its name."""
    shown = [
        (name, path)
        for name, figure in table["figure"].items()
        if figure != "fig00_map" and (path := ROOT / "figures" / f"{figure}.png").exists()
    ]
    columns = 2 if len(shown) <= 4 else 3
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(12, 2.4 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, (name, path) in zip(axes.flat, shown, strict=False):
        axis.imshow(image.imread(path))
        axis.set_anchor("N")
        axis.set_title(str(name), fontsize=10)
    return figure
