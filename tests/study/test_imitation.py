"""What notebook 12 says about imitation follows from the metrics of trainings."""

from __future__ import annotations

from math import log
from pathlib import Path

import pandas as pd
import pytest

from brrcrl_lib.base.files import write_csv
from brrcrl_lib.study.analysis import imitation
from brrcrl_lib.study.experiments.grids import Cell, cells
from brrcrl_lib.study.experiments.results import read_grid
from brrcrl_lib.study.experiments.running import train_directory

CHANCE = {"breakout": 4, "pong": 6}


def ends_at(number: int, step: int) -> float:
    """A loss of its own for each training, every other point 0.1 higher."""
    return 1 + number / 100 + 0.1 * (step % 100 > 0)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Trainings of Breakout and Pong whose loss falls to a number of its own; one is not finished."""
    for number, cell in enumerate(_trainings()):
        steps = cell.config.steps // 2 if number == 1 else cell.config.steps
        losses = [
            {"step": step, "prior_nll": 9.0 if step <= 0.9 * cell.config.steps else ends_at(number, step)}
            for step in range(50, steps + 1, 50)
        ]
        folder = train_directory(cell, tmp_path)
        folder.mkdir(parents=True)
        write_csv(folder / "metrics.csv", losses)
    return tmp_path


def _trainings() -> list[Cell]:
    found = {cell.train_key: cell for cell in cells("atari") if cell.dataset in ("ladder/breakout", "ladder/pong")}
    return list(found.values())


def test_the_end_of_every_finished_training_is_averaged(work: Path) -> None:
    rows = imitation.measure(work=work).set_index("train_key")
    kept = {cell.train_key: number for number, cell in enumerate(_trainings()) if cell.method != "vanilla"}
    assert set(rows.index) == {key for key, number in kept.items() if number != 1}
    for key, line in rows.iterrows():
        assert line["nll"] == pytest.approx(1 + kept[key] / 100 + 0.05)


def test_recorded_rows_are_read_back(work: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(imitation, "FILE", imitation.record(work, tmp_path / "imitation.csv"))
    pd.testing.assert_frame_equal(imitation.imitation_for("recorded"), imitation.measure(work=work))


def test_shares_are_of_what_cloning_learned_beyond_chance() -> None:
    lines = [
        ("ladder/breakout", "cloning", None, 0, 1.0),
        ("ladder/breakout", "cloning", None, 1, 1.1),
        ("ladder/breakout", "br_rcrl_joint", "monte_carlo", 0, 1.2),
        ("ladder/pong", "cloning", None, 0, 1.0),
        ("ladder/pong", "br_rcrl_joint", "distributional_td", 0, 1.3),
    ]
    rows = pd.DataFrame(lines, columns=["dataset", "method", "objective", "train_seed", "nll"])
    breakout, pong = (log(4) - 1.2) / (log(4) - 1.05), (log(6) - 1.3) / (log(6) - 1.0)
    expected = f"table, Monte Carlo: breakout {breakout:.0%}; table, distributional TD: pong {pong:.0%}"
    assert imitation.learned(rows, CHANCE) == expected
    table = imitation.readable(rows, CHANCE)
    assert table.loc["cloning", "breakout"] == "1.050 (1.000 to 1.100)" and table.loc["cloning", "pong"] == "1.000"
    assert table.loc["table, Monte Carlo", "pong"] == "-" and table.loc["pressing at random", "pong"] == "1.792"


def test_what_ships_covers_the_recorded_grid() -> None:
    rows = imitation.imitation_for("recorded")
    grid = {cell.train_key: cell for cell in cells("atari")}
    recorded = read_grid("atari")
    assert sorted(rows["train_key"]) == sorted(set(recorded.loc[recorded["method"] != "vanilla", "train_key"]))
    assert (rows["steps"] == [grid[key].config.steps for key in rows["train_key"]]).all()
