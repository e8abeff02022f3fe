"""Figures of notebooks 07 to 11: what is drawn is what the rows say."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from brrcrl_lib.study.claims import delivered
from brrcrl_lib.study.claims.statistics import difference
from brrcrl_lib.study.figures import experiments as experiment_plots
from brrcrl_lib.study.figures.calibration import calibration_figure
from brrcrl_lib.study.figures.showing import alt_text


@pytest.fixture
def axis() -> Axes:
    figure, axis = plt.subplots()
    yield axis
    plt.close(figure)


def lines(*names: str) -> pd.DataFrame:
    """One line per setting; its return is its place times 100."""
    return pd.DataFrame(
        [
            {"dataset": "d", "setting": name, "return": 100.0 * i, "low": 100.0 * i - 9, "high": 100.0 * i + 5,
             "seeds": (100.0 * i - 1, 100.0 * i + 1)}
            for i, name in enumerate(names)
        ]
    )  # fmt: skip


def test_settings_are_listed_from_the_top_with_their_seeds(axis: Axes) -> None:
    experiment_plots.draw_settings(axis, lines("first", "second"), ["first", "absent", "second"])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["first", "absent", "second"]
    assert axis.get_ylim()[0] > axis.get_ylim()[1]  # downwards
    points = {tuple(np.atleast_1d(line.get_xdata()).tolist()): line.get_ydata()[0] for line in axis.lines}
    assert points[(91.0, 105.0)] == 2 and points[(-9.0, 5.0)] == 0  # intervals
    assert points[(100.0,)] == 2 and points[(0.0,)] == 0  # means
    seeds = [point for group in axis.collections for point in group.get_offsets().tolist()]
    assert seeds == [[-1.0, 0.0], [1.0, 0.0], [99.0, 2.0], [101.0, 2.0]]
    markers = {line.get_marker() for line in axis.lines if line.get_ydata()[0] == 0}
    assert "D" in markers  # the first is marked


def test_a_sweep_runs_from_modest_to_ambitious(axis: Axes) -> None:
    experiment_plots.draw_sweep(axis, lines("0.9", "0.1", "0.001"), "paper")
    left, right = axis.get_xlim()
    assert left > right and axis.get_xscale() == "log"
    assert axis.lines[0].get_xdata().tolist() == [0.9, 0.1, 0.001] and axis.lines[0].get_label() == "paper text"


def test_steps_near_the_cut_are_drawn_apart(axis: Axes) -> None:
    trace = pd.DataFrame({"observed": [1.0, 2.0, 3.0], "target": [1.0, 5.0, 3.0], "step": [0, 1, 2],
                          "near_cut": [False, True, False]})  # fmt: skip
    dots = experiment_plots.draw_match(axis, trace)
    assert dots.get_offsets().tolist() == [[1.0, 1.0], [3.0, 3.0]] and dots.get_array().tolist() == [0, 2]
    assert axis.collections[-1].get_offsets().tolist() == [[2.0, 5.0]]


def test_a_course_averages_the_episodes_that_are_running(axis: Axes) -> None:
    trace = pd.DataFrame({"seed": 0, "episode": [0, 0, 1], "step": [0, 1, 0], "target": [2.0, 7.0, 4.0],
                          "observed": [1.0, 1.0, 3.0]})  # fmt: skip
    experiment_plots.draw_course(axis, trace)
    assert axis.lines[0].get_ydata().tolist() == [3.0, 7.0] and axis.lines[1].get_ydata().tolist() == [2.0, 1.0]


def test_effects_show_their_direction_and_what_is_missing(axis: Axes) -> None:
    up = difference([10.0, 11.0, 12.0], [1.0, 1.0, 1.0], paired=True)
    once = difference([5.0], [1.0], paired=True)
    experiment_plots.draw_effects(axis, {"up": up, "once": once}, ["up", "once", "nobody"], {"up": 1})
    assert [text.get_text() for text in axis.texts] == ["–"]
    marks = {line.get_marker(): line for line in axis.lines if len(line.get_xdata()) == 1}
    assert marks[">"].get_xdata()[0] == pytest.approx(10) and marks[">"].get_ydata()[0] == 2
    assert marks["o"].get_markerfacecolor() == "white" and marks["o"].get_xdata()[0] == 4
    bars = [line.get_xdata() for line in axis.lines if len(line.get_xdata()) == 2 and line.get_linewidth() == 3]
    assert len(bars) == 1 and bars[0] == pytest.approx([up.low, up.high])  # one seed has no interval


def test_shares_that_were_not_measured_leave_a_gap(axis: Axes) -> None:
    table = lines("cloning, 100%", "cloning, 20%", "BR-RCRL, 50%")
    experiment_plots.draw_shares(axis, table, ["BR-RCRL", "cloning"], ["100%", "50%", "20%"])
    drawn = {container.get_label(): container.lines[0].get_xdata().round().tolist() for container in axis.containers}
    assert drawn == {"BR-RCRL": [1.0], "cloning": [0.0, 2.0]}
    assert [label.get_text() for label in axis.get_xticklabels()] == ["100%", "50%", "20%"]


def test_a_headline_must_be_shown_by_the_rows() -> None:
    assert experiment_plots.finding("it grows", True, recorded=True) == "it grows"
    assert "it grows" not in experiment_plots.finding("it grows", False, recorded=False)
    with pytest.raises(ValueError, match="write another: it grows"):
        experiment_plots.finding("it grows", False, recorded=True)


def test_calibration_is_drawn_beside_a_perfect_match() -> None:
    steps = np.arange(40)
    parts = [pd.DataFrame({"step": steps, "seed": seed, "episode": 0, "target": steps * 1.0, "observed": steps + seed,
                           "cut": False, "near_cut": False}) for seed in (0, 1, 2)]  # fmt: skip
    trace = pd.concat(parts, ignore_index=True)
    figure = calibration_figure({"here": trace}, {"here": delivered.match(trace)}, "Title")
    perfect, line = figure.axes[0].get_lines()
    assert line.get_xydata().tolist() == [[4 * k + 1.5, 4 * k + 2.5] for k in range(10)]  # one more on average
    assert perfect.get_xdata().tolist() == perfect.get_ydata().tolist()
    assert "reached 100%" in alt_text(figure)
    plt.close(figure)
