"""What a stored notebook prints."""

import nbformat

from brrcrl_lib.tools.notebooks import NOTEBOOKS


def printed(name: str) -> str:
    """Everything that the cells of a notebook print, in one line: where lines are broken is for the reader's screen."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    return " ".join(" ".join(texts).split())
