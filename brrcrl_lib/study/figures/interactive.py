"""Sliders that teach in JupyterLab and leave a picture where there are none."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from IPython.display import display
from IPython.utils.capture import capture_output

from brrcrl_lib.base.devices import no_bars, quiet, someone_can_drag


def explore(draw: Callable[..., Any], **controls: Any) -> None:
    """Show `draw` with one ipywidgets control per keyword, in the style of `ipywidgets.interact`.

    What `draw` takes beside the controls keeps its default. The controls and the first picture are made in every
    case, so that tests and batch runs notice what cannot be, and the picture is stored: it is what a reader without
    a kernel sees (GitHub, nbconvert), beside the names of the controls that JupyterLab would show.
    """
    import ipywidgets
    from ipywidgets.widgets.interaction import show_inline_matplotlib_plots

    pictures: list[Any] = []

    @functools.wraps(draw)
    def redraw(**values: Any) -> None:
        with capture_output() as seen, no_bars():  # the old picture stays until the new one is complete
            draw(**values)
            show_inline_matplotlib_plots()
        pictures[:] = [output for output in seen.outputs if "image/png" in output.data]
        if shown:
            seen.show()

    shown = someone_can_drag() and not quiet()
    parameters = inspect.signature(draw).parameters
    others = {name: ipywidgets.fixed(parameters[name].default) for name in parameters if name not in controls}
    panel = ipywidgets.interactive(redraw, {"manual": not shown}, **controls, **others)  # manual: draws when told to
    sentence = "In JupyterLab, controls appear here for: " + ", ".join(controls) + "."
    view: dict[str, Any] = {}
    if shown:  # who can show widgets takes the view; everybody else, the picture
        view = {**(panel._repr_mimebundle_() or {}), "text/plain": sentence}
    else:
        print(sentence)
        redraw(**{widget._kwarg: widget.get_interact_value() for widget in panel.kwargs_widgets})
    data, metadata = (pictures[-1].data, pictures[-1].metadata) if pictures else ({}, {})
    picture = {kind: data[kind] for kind in data if kind == "image/png"}
    if view or picture:
        display({**picture, **view}, metadata=metadata, raw=True)
