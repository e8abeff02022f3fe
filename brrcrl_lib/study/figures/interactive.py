"""Sliders that teach in JupyterLab and leave a picture where there are none."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from IPython.display import display
from IPython.utils.capture import capture_output

from brrcrl_lib.base.devices import no_bars, quiet, someone_can_drag

BOLDER = (0.9, 0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.015, 0.01, 0.007, 0.005, 0.003, 0.002, 0.001)
"""Round values of delta, about evenly spaced in log delta; ambition grows to the right, as in all figures."""


def delta_slider(value: float = 0.1, smallest: float = 0.001) -> Any:
    """A slider over delta on a logarithmic scale, down to `smallest`."""
    import ipywidgets

    steps = sorted({value, *(delta for delta in BOLDER if delta >= smallest)}, reverse=True)
    options = [(f"{delta:g}", delta) for delta in steps]
    return ipywidgets.SelectionSlider(options=options, value=value, description="delta", continuous_update=False)


def explore(draw: Callable[..., Any], strip: Sequence[Mapping[str, Any]] = (), **controls: Any) -> None:
    """Show `draw` with one ipywidgets control per keyword, in the style of `ipywidgets.interact`.

    What `draw` takes beside the controls keeps its default. The controls and the first picture are made in every
    case, so that tests and batch runs notice what cannot be, and the picture is stored: it is what a reader without
    a kernel sees (GitHub, nbconvert), beside the names of the controls that JupyterLab would show. With `strip`, that
    reader sees several: one for each of these settings of the controls.
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
    if shown:  # who can show widgets takes the view; everybody else, the picture
        _show(pictures, {**(panel._repr_mimebundle_() or {}), "text/plain": sentence})
        return
    print(sentence)
    first = {widget._kwarg: widget.get_interact_value() for widget in panel.kwargs_widgets}
    for values in strip or ({},):
        redraw(**first | dict(values))
        _show(pictures)


def _show(pictures: Sequence[Any], view: Mapping[str, Any] | None = None) -> None:
    """Display the last of the pictures, and the widget's view for those who can show it."""
    data, metadata = (pictures[-1].data, pictures[-1].metadata) if pictures else ({}, {})
    picture = {kind: data[kind] for kind in data if kind == "image/png"}
    if view or picture:
        display({**picture, **(view or {})}, metadata=metadata, raw=True)
