"""Sliders: controls for what is asked, defaults for the rest, and a picture for those who have no kernel."""

import itertools
import os

import ipywidgets
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.study.figures import interactive

VIEW = "application/vnd.jupyter.widget-view+json"
SLIDER = """\
import matplotlib.pyplot as plt
from brrcrl_lib.base.devices import track
from brrcrl_lib.study.figures.interactive import explore
def draw(delta=0.5):
    for _ in track(range(3), mininterval=0):
        plt.plot([delta])
explore(draw, delta=(0.0, 1.0))
"""


def draw(delta=0.1, start=0, axis=None):
    """Stands for a figure."""
    drawn.append((delta, start, axis))


drawn: list[tuple] = []


def test_without_a_front_end_the_controls_are_named_and_the_first_picture_drawn(monkeypatch, capsys):
    monkeypatch.setattr(interactive, "someone_can_drag", lambda: False)
    monkeypatch.setattr(interactive, "display", lambda *_, **__: pytest.fail("there is nothing to see"))
    drawn.clear()
    interactive.explore(draw, delta=(0.01, 0.99, 0.01), start=(0, 20, 1))
    assert capsys.readouterr().out.endswith("controls appear here for: delta, start.\n")
    assert drawn == [(0.1, 0, None)]


def test_a_person_gets_one_slider_per_control_at_the_default(monkeypatch):
    made = []
    real = ipywidgets.interactive
    monkeypatch.setattr(ipywidgets, "interactive", lambda *args, **more: made.append(real(*args, **more)) or made[-1])
    monkeypatch.setattr(interactive, "someone_can_drag", lambda: True)
    monkeypatch.setattr(interactive, "quiet", lambda: False)
    monkeypatch.setattr(interactive, "display", lambda data, **_: made.append(data))
    interactive.explore(draw, delta=(0.01, 0.99, 0.01), start=(0, 20, 1))
    panel, data = made
    sliders = [child for child in panel.children if not isinstance(child, ipywidgets.Output)]
    assert [(slider.description, slider.value) for slider in sliders] == [("delta", 0.1), ("start", 0)]
    assert panel.kwargs_widgets[2].value is None  # `axis` keeps its default, without a control
    assert data[VIEW]["model_id"] == panel.model_id


def test_who_cannot_drag_sees_a_strip(monkeypatch, capsys):
    monkeypatch.setattr(interactive, "someone_can_drag", lambda: False)
    drawn.clear()
    interactive.explore(draw, strip=[{"start": 3}, {"start": 7, "delta": 0.5}], delta=(0.01, 0.99, 0.01), start=(0, 9))
    assert drawn == [(0.1, 3, None), (0.5, 7, None)]
    assert capsys.readouterr().out.count("controls appear here") == 1


def test_a_slider_over_delta_is_logarithmic_and_bolder_to_the_right():
    slider = interactive.delta_slider(0.12, smallest=0.01)
    values = [value for _, value in slider.options]
    assert slider.value == 0.12 and values == sorted(values, reverse=True) and values[-1] == 0.01
    ratios = [small / large for large, small in itertools.pairwise(interactive.BOLDER)]
    assert all(0.5 <= ratio <= 0.8 for ratio in ratios) and interactive.BOLDER[-1] == 0.001


def test_a_control_that_cannot_be_made_is_noticed_without_a_front_end(monkeypatch):
    monkeypatch.setattr(interactive, "someone_can_drag", lambda: False)
    with pytest.raises(ValueError, match="cannot be transformed"):
        interactive.explore(draw, delta=None)


@pytest.mark.parametrize("person", [True, False])
def test_what_is_stored_has_a_picture_for_those_without_a_kernel(person):
    env = {key: value for key, value in os.environ.items() if key != "BRRCRL_QUIET"}
    env |= {"PYTHONPATH": str(ROOT), **({"JPY_SESSION_NAME": "mine"} if person else {})}
    client = NotebookClient(new_notebook(cells=[new_code_cell(SLIDER)]), timeout=60, kernel_name="python3")
    client.execute(env=env)
    *printed, last = client.nb.cells[0].outputs
    assert "image/png" in last.data and (VIEW in last.data) is person
    assert "controls appear here for: delta" in (last.data["text/plain"] if person else printed[0].text)
    assert len(printed) == (0 if person else 1), "a bar, or a figure shown twice"
    if person:  # the live picture is one output, not first a bar and then a figure
        states = client.widget_state.values()
        outputs = next(state["outputs"] for state in states if state["_model_name"] == "OutputModel")
        assert ["image/png" in output["data"] for output in outputs] == [True]
