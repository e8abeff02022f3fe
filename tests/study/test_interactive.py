"""Sliders: controls for what is asked, defaults for the rest, and a control that cannot be made is noticed anywhere."""

import ipywidgets
import pytest

from brrcrl_lib.study.figures import interactive


def draw(delta=0.1, start=0, axis=None):
    """Stands for a figure."""


def test_without_a_front_end_the_controls_are_named(monkeypatch, capsys):
    monkeypatch.setattr(interactive, "someone_can_drag", lambda: False)
    monkeypatch.setattr(interactive, "display", lambda panel: pytest.fail("nobody is there to see it"))
    interactive.explore(draw, delta=(0.01, 0.99, 0.01), start=(0, 20, 1))
    assert "delta, start" in capsys.readouterr().out
    interactive.explore(lambda delta=0.1: pytest.fail("nobody is there to draw for"), delta=(0.01, 0.99, 0.01))


def test_a_person_gets_one_slider_per_control_at_the_default(monkeypatch):
    shown = []
    monkeypatch.setattr(interactive, "someone_can_drag", lambda: True)
    monkeypatch.setattr(interactive, "quiet", lambda: False)
    monkeypatch.setattr(interactive, "display", shown.append)
    interactive.explore(draw, delta=(0.01, 0.99, 0.01), start=(0, 20, 1))
    sliders = [child for child in shown[0].children if not isinstance(child, ipywidgets.Output)]
    assert [(slider.description, slider.value) for slider in sliders] == [("delta", 0.1), ("start", 0)]
    assert shown[0].kwargs_widgets[2].value is None  # `axis` keeps its default, without a control


def test_a_control_that_cannot_be_made_is_noticed_without_a_front_end(monkeypatch):
    monkeypatch.setattr(interactive, "someone_can_drag", lambda: False)
    with pytest.raises(ValueError, match="cannot be transformed"):
        interactive.explore(draw, delta=None)
