"""The explorer: recorded rows in words, narrowed by menus, every seed a point; quiet where nothing is recorded."""

from __future__ import annotations

import inspect

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from brrcrl_lib.study.experiments.results import read_grid, select
from brrcrl_lib.study.figures import explorer
from brrcrl_lib.study.figures.explorer import ALL, NONE, chosen, draw_rows, explore_rows, in_words

HOPPER = "brrcrl/hopper/medium-replay-v0"


def points(figure: plt.Figure) -> list[list[float]]:
    """Per panel, where its points lie, sorted."""
    return [sorted(float(x) for dots in axis.collections for x, _ in dots.get_offsets()) for axis in figure.axes]


@pytest.mark.parametrize("grid", ["targets", "delta_sweep", "ablations", "atari"])
def test_no_two_recorded_rows_read_alike(grid: str) -> None:
    rows = read_grid(grid)
    shown = in_words(rows)
    assert len(shown) == len(rows) and not shown[list(explorer.MENUS)].duplicated().any()
    assert sorted(shown["return"]) == sorted(rows["return_mean"])


def test_rows_in_words_and_menus_that_narrow_them() -> None:
    rows = read_grid("ablations")
    shown = in_words(rows)
    found = chosen(shown, dataset="hopper medium-replay", method="vanilla RCRL", rule="DT scheduler", seed=ALL)
    expected = select(rows, dataset=HOPPER, method="vanilla", target="dt_schedule")
    assert list(found["seed"]) == [0, 1, 2] and list(found["return"]) == list(expected["return_mean"])
    assert set(found["delta"]) == {NONE} and set(found["objective"]) == {NONE}
    assert set(chosen(shown, variant="optimizer = dfo, samples = 1024")["dataset"]) == {"hopper medium-replay"}
    assert set(chosen(shown, objective="paper text")["variant"]) == {NONE}


def test_of_two_versions_of_a_dataset_the_newer_is_shown() -> None:
    rows = select(read_grid("delta_sweep"), dataset=HOPPER).head(2)
    newer = rows.assign(dataset=HOPPER.replace("-v0", "-v1"), return_mean=7.0)
    assert list(in_words(pd.concat([rows, newer]))["return"]) == [7.0, 7.0]


def test_every_row_is_a_point_of_its_dataset_and_every_setting_a_line() -> None:
    shown = in_words(read_grid("targets"))
    figure = draw_rows(shown)
    datasets = list(dict.fromkeys(shown["dataset"]))
    assert [axis.get_title() for axis in figure.axes] == datasets
    assert points(figure) == [pytest.approx(sorted(chosen(shown, dataset=name)["score"])) for name in datasets]
    assert len(figure.axes[0].get_yticklabels()) == 15  # three models, five rules
    means = chosen(shown, dataset=datasets[0]).groupby(["method", "objective", "rule"])["score"].mean()
    strokes = [float(x) for line in figure.axes[0].get_lines() for x in line.get_xdata()]
    assert sorted(strokes) == pytest.approx(sorted(means))
    plt.close("all")


def test_a_changed_setting_is_a_line_of_its_own() -> None:
    shown = chosen(in_words(read_grid("ablations")), dataset="hopper medium-replay", objective="released code")
    figure = draw_rows(shown[shown["variant"].isin((NONE, "fusion = early"))])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["as played", "fusion = early"]
    plt.close("all")


def test_without_a_reference_score_and_with_an_unknown_method_returns_are_drawn() -> None:
    shown = in_words(read_grid("delta_sweep").head(3)).assign(score=None, method="mine")
    figure = draw_rows(shown)
    assert points(figure) == [pytest.approx(sorted(shown["return"]))] and figure.axes[0].get_xlabel() == "return"
    plt.close("all")


def test_there_is_a_menu_for_what_differs_and_an_answer_for_every_choice(monkeypatch, capsys) -> None:
    made, tables = {}, []
    monkeypatch.setattr(explorer, "explore", lambda show, **menus: made.update(show=show, menus=menus))
    monkeypatch.setattr(explorer, "display", tables.append)
    explore_rows(read_grid("targets"))
    assert list(made["menus"]) == ["dataset", "method", "objective", "rule", "delta", "seed"]
    assert all(options[0] == ALL for options in made["menus"].values())
    assert [one.default for one in inspect.signature(made["show"]).parameters.values()] == [ALL] * 6
    made["show"](dataset="walker2d medium", rule="max")
    assert list(tables[0]["seed"]) == [0, 1, 2] and "3 of 153 rows.\n" in capsys.readouterr().out
    made["show"]()
    assert (
        len(tables[1]) == explorer.MOST_ROWS
        and "153 of 153 rows; the table lists the first 20." in capsys.readouterr().out
    )
    made["show"](dataset="walker2d medium", rule="fixed: 50%")
    assert len(tables) == 2 and "No row is recorded for this combination." in capsys.readouterr().out
    plt.close("all")


def test_without_rows_it_says_so(capsys) -> None:
    explore_rows(read_grid("targets").iloc[:0])
    assert capsys.readouterr().out == "No row is recorded yet, so there is nothing to choose from.\n"
