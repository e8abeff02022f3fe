"""`brrcrl film`: adaptive targets against Max on the same robot, as a GIF for notebook 07 and the README.

Nothing is picked for its looks, everything is fixed beforehand: the shipped model (training seed 0), the first start
of its recorded evaluation, and, unless a dataset is named, the one where recorded rows of the two rules differ most.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.limits import whole
from brrcrl_lib.base.settings import OutPath, Seed, number
from brrcrl_lib.methods.br_rcrl import BrRcrlAct
from brrcrl_lib.study.analysis.shipped_models import available_models, shipped_model
from brrcrl_lib.study.claims import target_rules
from brrcrl_lib.study.claims.rows import newest
from brrcrl_lib.study.experiments.results import model_name, read_grid, short_name
from brrcrl_lib.study.figures import robot_film
from brrcrl_lib.study.figures.style import FIGURES
from brrcrl_lib.training import Run, load_run

FILM = FIGURES / "film07_adaptive_max.gif"


@dataclass(frozen=True)
class FilmConfig:
    """Film adaptive targets beside Max: the same weights, the same start."""

    dataset: str | None = None
    """Whose shipped model plays; if left out, the dataset on which the recorded rows of the two rules differ most."""
    run: Path | None = None
    """A run directory, or a model's file, in place of a shipped model."""
    delta: Annotated[float, number(1e-6, 1 - 1e-6)] = 0.1
    """Share of outcomes that the adaptive rule may hope for."""
    seed: Seed = 1000
    """The start: env.reset(seed=1000) is the first that recorded evaluations of training seed 0 play."""
    steps: Annotated[int, whole(1, 1000)] = 200
    """How many steps to show; the episodes are played to their end."""
    out: OutPath = FILM
    """The GIF."""


def differing_most(rows: pd.DataFrame) -> str:
    """Of the datasets whose models ship, the one with the largest mean difference between the two rules, up or down."""
    effects = target_rules.decisions(rows)["max"].effects
    shipped = {short_name(name): name for name in newest(rows)["dataset"] if model_name(name) in available_models()}
    known = [name for name in effects if name in shipped]
    if not known:
        raise KitError("no model ships for any dataset with recorded rows of both rules; name one with --run")
    return shipped[max(known, key=lambda name: abs(effects[name].estimate))]


def told(run: Run, takes: list[robot_film.Take], rows: pd.DataFrame) -> str:
    """What the film shows, and what the recorded rows of all seeds and datasets say, in words."""
    name = short_name(run.facts.dataset)
    returns = ", ".join(f"{take.played.returns[0]:,.0f} ({take.rule})" for take in takes)
    text = f"{name}, one model and one start under two target rules; returns of the whole episodes: {returns}."
    decision = target_rules.decisions(rows)["max"]
    if name not in decision.effects:
        return text
    others = [found for where, found in decision.findings.items() if where != name]
    counts = ", ".join(f"{word} on {others.count(word)}" for word in dict.fromkeys(others))
    found = f"{decision.describe(name)}; other datasets: {counts}"
    return f"{text} Recorded rows of all seeds, adaptive over max in points of score: {found}."


def film(config: FilmConfig) -> int:
    """Play, render, write."""
    rows = read_grid("targets")
    if config.run is not None:
        run = load_run(config.run, "cpu")
    else:
        run = shipped_model(config.dataset or differing_most(rows), "authors")[0]
    if run.about["method"] != "br_rcrl":
        raise KitError(f"only br_rcrl has both rules as filmed here; this model is {run.about['method']}")
    acts = {f"adaptive, δ = {config.delta:g}": BrRcrlAct(delta=config.delta), "max": BrRcrlAct(target="max")}
    steps = robot_film.moments(config.steps)
    takes = [robot_film.shoot(run, rule, act, config.seed, steps) for rule, act in acts.items()]
    story = told(run, takes, rows)
    size = robot_film.write_film(config.out, takes, steps, story)
    print(f"{story}\nwrote {config.out} ({size / 1000:.0f} kB)")
    if config.out == FILM:
        print("`brrcrl claims readme` and `brrcrl notebooks refresh 07` put its words where it is shown")
    return 0
