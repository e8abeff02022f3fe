"""The models that notebooks play: those that ship in data/models, or those trained where they are missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.data.open import open_source
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.methods.base import config_for
from brrcrl_lib.study.experiments.grids import BREAKOUT, PONG, Cell, cells
from brrcrl_lib.study.experiments.results import model_name
from brrcrl_lib.study.experiments.running import WORK, ship_models, train_directory
from brrcrl_lib.training import Run, fit, load_run

MODELS = Path(os.environ.get("BRRCRL_MODELS") or ROOT / "data" / "models")
SHIPPED_GAMES = (BREAKOUT, PONG)
"""The ladders whose Monte Carlo models ship."""


def available_models(folder: Path = MODELS) -> list[str]:
    """Names of the datasets whose models ship with both objectives."""
    names = [path.name.removesuffix("-authors.safetensors") for path in sorted(folder.glob("*-authors.safetensors"))]
    return [name for name in names if (folder / f"{name}-paper.safetensors").exists()]


def shipped_model(dataset: str, objective: str, folder: Path = MODELS) -> tuple[Run, pd.DataFrame]:
    """The model that ships for a dataset (its id, or its name here), on the CPU, and the metrics of its training."""
    path = folder / f"{model_name(dataset)}-{objective}.safetensors"
    if not path.exists():
        raise FileNotFoundError(
            f"no model ships for {dataset} with objective {objective} "
            f"(there are: {', '.join(available_models(folder)) or 'none'}); run with preset=laptop to train it"
        )
    metrics = path.with_name(f"{path.stem}-metrics.csv")
    return load_run(path, "cpu"), pd.read_csv(metrics) if metrics.exists() else pd.DataFrame()


def train_model(
    dataset: OfflineDataset, preset: str, device: str, out: Path | None, method: str = "br_rcrl", **settings: Any
) -> tuple[Run, pd.DataFrame]:
    """Train on `device` (a finished or interrupted run in `out` is continued); the model comes back on the CPU."""
    config = config_for(method, preset, "box", device=device, **settings)
    run = fit(config, dataset, out, resume=True, preset=preset)
    run.model.cpu().eval()
    return run, pd.DataFrame(run.metrics)


def load_or_train(dataset: OfflineDataset, preset: str, objective: str = "authors", device: str = "auto") -> Run:
    """The model that a notebook plays live: the shipped one, or one trained here and now at the preset's size."""
    if preset == "recorded":
        return shipped_model(dataset.id, objective)[0]
    out = None if preset == "smoke" else ROOT / "runs" / "notebooks" / f"{preset}-{model_name(dataset.id)}-{objective}"
    return train_model(dataset, preset, device, out, objective=objective)[0]


def trained_models(
    dataset: OfflineDataset, preset: str, device: str, seed: int
) -> tuple[dict[str, Run], dict[str, pd.DataFrame]]:
    """Both objectives by the names that a reader knows, and the metrics of their training: the shipped ones, or, with
    another preset than recorded, trained now (`smoke` keeps nothing), and then plain cloning too."""
    settings = {"released code": {"objective": "authors"}, "paper text": {"objective": "paper"}}
    if preset == "recorded":
        found = {name: shipped_model(dataset.id, setting["objective"]) for name, setting in settings.items()}
    else:
        folder = ROOT / "runs" / "notebooks" / f"05-{preset}-{model_name(dataset.id)}-{seed}"
        found = {
            name: train_model(
                dataset, preset, device, None if preset == "smoke" else folder / name, seed=seed, **setting
            )
            for name, setting in {**settings, "cloning": {"method": "cloning"}}.items()
        }
    return {name: run for name, (run, _) in found.items()}, {name: table for name, (_, table) in found.items()}


def describe(run: Run) -> str:
    """How the model was trained, in one line."""
    size = f"{run.about['step']:,} steps of {run.config.batch_size} transitions"
    negatives = f", {run.config.negatives} negatives" if hasattr(run.config, "negatives") else ""
    return f"{size}{negatives}, seed {run.config.seed}"


# -- games -------------------------------------------------------------------------------------------------------


def ship_game_models(folder: Path = MODELS, work: Path = WORK) -> list[Path]:
    """Export the finished seed-0 Monte Carlo models of SHIPPED_GAMES, in half precision, with their metrics."""
    return ship_models(
        "atari", folder, work, lambda cell: cell.dataset in SHIPPED_GAMES and _objective(cell) == "monte_carlo"
    )


def game_model(game: str, preset: str, device: str = "cpu", folder: Path = MODELS, work: Path = WORK) -> Run:
    """BR-RCRL for a game with the Monte Carlo objective, seed 0, ready to play on `device`.

    `recorded` loads what ships. The other presets take the grid's own training of that size, and train it if the
    grid has not; of `smoke`, on the shipped sample.
    """
    if preset == "recorded":
        return shipped_game_model(game, device, folder)
    wanted = (cell for cell in cells("atari", preset) if cell.dataset.endswith(f"/{game}") and cell.seed == 0)
    cell = next(cell for cell in wanted if _objective(cell) == "monte_carlo")
    run = train_directory(cell, work / "smoke" / "atari" if preset == "smoke" else work)
    fit(cell.config, open_source(cell.dataset), run, resume=True, preset=preset)
    return load_run(run, device)


def shipped_game_model(game: str, device: str = "cpu", folder: Path = MODELS) -> Run:
    """The Monte Carlo model that ships for a game."""
    path = folder / f"{model_name(f'ladder/{game}')}-monte_carlo.safetensors"
    if not path.exists():
        there = sorted(file.name.split("-ladder-")[0] for file in folder.glob("*-ladder-monte_carlo.safetensors"))
        raise FileNotFoundError(
            f"no model ships for {game} (there are: {', '.join(there) or 'none'}); preset=laptop trains it"
        )
    return load_run(path, device)


def _objective(cell: Cell) -> str | None:
    return cell.training.get("objective")
