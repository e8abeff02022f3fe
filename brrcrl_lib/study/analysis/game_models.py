"""The models that play in notebook 12: those that ship, or those that the grid `atari` has trained."""

from __future__ import annotations

from pathlib import Path

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.discrete.sources import open_discrete, prepare
from brrcrl_lib.discrete.train import DiscreteRun, fit_discrete, load_discrete_run
from brrcrl_lib.study.experiments.grids import BREAKOUT, PONG, Cell, cells
from brrcrl_lib.study.experiments.results import model_name
from brrcrl_lib.study.experiments.running import WORK, ship_models, train_directory

SHIPPED = (BREAKOUT, PONG)
"""The ladders whose Monte Carlo models ship."""
MODELS = ROOT / "data" / "models"


def ship_atari_models(folder: Path = MODELS, work: Path = WORK) -> list[Path]:
    """Export the finished seed-0 Monte Carlo models of SHIPPED, in half precision, with their metrics."""
    return ship_models(
        "atari", folder, work, lambda cell: cell.dataset in SHIPPED and cell.training.get("learner") == "monte_carlo"
    )


def game_model(game: str, preset: str, device: str = "cpu", folder: Path = MODELS, work: Path = WORK) -> DiscreteRun:
    """BR-RCRL for a game with the Monte Carlo learner, seed 0, ready to play on `device`.

    `recorded` loads what ships. The other presets take the grid's own training of that size, and train it if the
    grid has not; of `smoke`, on the shipped sample.
    """
    if preset == "recorded":
        return shipped_game_model(game, device, folder)
    cell = _cell(game, preset)
    run = train_directory(cell, work / "smoke" / "atari" if preset == "smoke" else work)
    prepare(cell.dataset)
    fit_discrete(cell.config, open_discrete(cell.dataset, cell.config.bootstraps), run, resume=True, preset=preset)
    return load_discrete_run(run, device)


def shipped_game_model(game: str, device: str = "cpu", folder: Path = MODELS) -> DiscreteRun:
    """The Monte Carlo model that ships for a game."""
    path = folder / f"{model_name(f'ladder/{game}')}-monte_carlo.safetensors"
    if not path.exists():
        there = sorted(file.name.split("-ladder-")[0] for file in folder.glob("*-ladder-monte_carlo.safetensors"))
        raise FileNotFoundError(
            f"no model ships for {game} (there are: {', '.join(there) or 'none'}); preset=laptop trains it"
        )
    return load_discrete_run(path, device)


def _cell(game: str, preset: str) -> Cell:
    wanted = (
        cell
        for cell in cells("atari", preset)
        if cell.dataset.endswith(f"/{game}") and cell.seed == 0 and cell.training.get("learner") == "monte_carlo"
    )
    return next(wanted)
