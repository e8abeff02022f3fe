"""How well the models of the grid `atari` imitate the data's players: -log p(a | s) at the end of their trainings.

Cloning learns p(a | s) alone; a table learns it beside returns, which its loss gives lambda times the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from pathlib import Path

import pandas as pd

from brrcrl_lib.base.files import atomic_path
from brrcrl_lib.study.experiments.grids import cells
from brrcrl_lib.study.experiments.results import RESULTS, order_datasets
from brrcrl_lib.study.experiments.running import WORK, train_directory
from brrcrl_lib.worlds import DatasetName

FILE = RESULTS / "atari_imitation.csv"
LAST = 0.1
"""The share of a training, its end, over which the loss is averaged."""
NAMES = {
    ("cloning", None): "cloning",
    ("br_rcrl_joint", "monte_carlo"): "table, Monte Carlo",
    ("br_rcrl_joint", "distributional_td"): "table, distributional TD",
}


def measure(preset: str = "laptop", work: Path = WORK) -> pd.DataFrame:
    """One row per finished training that has a p(a | s): its mean over the batches of the end."""
    rows = []
    for cell in {cell.train_key: cell for cell in cells("atari", preset)}.values():
        file, config = train_directory(cell, work) / "metrics.csv", cell.config
        objective = cell.training.get("objective")
        if (cell.method, objective) not in NAMES or not file.exists():
            continue
        metrics = pd.read_csv(file)
        if metrics["step"].iloc[-1] < config.steps:
            continue
        end = metrics[metrics["step"] > (1 - LAST) * config.steps]
        rows.append(
            {
                "train_key": cell.train_key,
                "dataset": cell.dataset,
                "method": cell.method,
                "objective": objective,
                "train_seed": config.seed,
                "steps": config.steps,
                "nll": round(float(end["prior_nll"].mean()), 4),
            }
        )
    return pd.DataFrame(rows)


def record(work: Path = WORK, file: Path = FILE) -> Path:
    """Write what `measure` finds in the trainings of the `laptop` preset, beside the rows of the grid."""
    with atomic_path(file) as temporary:
        measure(work=work).to_csv(temporary, index=False)
    return file


def imitation_for(preset: str) -> pd.DataFrame:
    """The rows that a notebook shows: those that ship, or those of the trainings that it made."""
    if preset == "recorded":
        return pd.read_csv(FILE)
    return measure(preset, WORK / "smoke" / "atari" if preset == "smoke" else WORK)


def readable(rows: pd.DataFrame, buttons: Mapping[str, int]) -> pd.DataFrame:
    """Models down, games across: mean over training seeds, and their range where there are several.

    The last line is chance: the logarithm of how many `buttons` the game has.
    """

    def text(values: pd.Series) -> str:
        spread = f" ({values.min():.3f} to {values.max():.3f})" if len(values) > 1 else ""
        return f"{values.mean():.3f}{spread}"

    shown = _named(rows).pivot_table(index="model", columns="game", values="nll", aggfunc=text).fillna("-")
    table = shown.loc[[name for name in NAMES.values() if name in shown.index], _games(rows)]
    table.loc["pressing at random"] = [f"{log(buttons[game]):.3f}" for game in table.columns]
    return table.rename_axis(index=None, columns=None)


def learned(rows: pd.DataFrame, buttons: Mapping[str, int]) -> str:
    """What each table learned about the buttons, beyond chance, as a share of what cloning learned; in words."""
    means = _named(rows).pivot_table(index="model", columns="game", values="nll")[_games(rows)]
    gain = means.rsub(pd.Series({game: log(buttons[game]) for game in means.columns}), axis=1)
    shares = gain.div(gain.loc["cloning"]).loc[[name for name in NAMES.values() if name in gain.index]]
    lines = (
        f"{name}: " + ", ".join(f"{game} {share:.0%}" for game, share in line.dropna().items())
        for name, line in shares.drop(index="cloning").iterrows()
    )
    return "; ".join(lines)


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    objectives = rows["objective"].astype(object).where(rows["objective"].notna(), None)
    names = [NAMES[pair] for pair in zip(rows["method"], objectives, strict=True)]
    return rows.assign(model=names, game=[_game(name) for name in rows["dataset"]])


def _games(rows: pd.DataFrame) -> list[str]:
    return [_game(name) for name in order_datasets(rows["dataset"])]


def _game(dataset: str) -> str:
    """A sample counts as its game."""
    return DatasetName.parse(dataset).world_name
