"""Sliders that teach in JupyterLab and leave nothing missing where there are none."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from IPython.display import display

from brrcrl_lib.base.devices import quiet


def explore(draw: Callable[..., Any], **controls: Any) -> None:
    """Show `draw` with one ipywidgets control per keyword, in the style of `ipywidgets.interact`.

    What `draw` takes beside the controls keeps its default. The controls are made in every case, so that tests and
    batch runs notice one that cannot be.

    Without widgets (tests, batch runs, GitHub) it prints which controls JupyterLab would show; the notebook has
    drawn the same content for a few fixed values just above, so that nobody misses anything.
    """
    import ipywidgets

    parameters = inspect.signature(draw).parameters
    others = {name: ipywidgets.fixed(parameters[name].default) for name in parameters if name not in controls}
    seen = someone_can_drag() and not quiet()
    panel = ipywidgets.interactive(draw, {"manual": not seen}, **controls, **others)  # manual: draws when it is told to
    if seen:
        display(panel)
    else:
        print("In JupyterLab, controls appear here for: " + ", ".join(controls) + ".")


def someone_can_drag() -> bool:
    """True in a kernel that a person's front end started: a Jupyter server, VS Code or Colab; not papermill, nbval."""
    return any(name == "JPY_SESSION_NAME" or name.startswith(("VSCODE_", "COLAB_")) for name in os.environ)
