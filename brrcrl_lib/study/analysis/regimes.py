"""The rule of docs/regimes.md: how long each method trains, with which settings, and how it is played.

Works on rows of the grid `regimes`. Each method is judged by itself: first by what it models on held-out episodes
(`loss`), then by its normalised score, both averaged over the tuning seeds on each of the two datasets of the rule.
Settings that not every tuning seed has measured on both datasets are not judged yet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.methods.br_rcrl import BrRcrlAct
from brrcrl_lib.study.experiments.grids import LENGTHS, TUNING_DATA, TUNING_SEEDS
from brrcrl_lib.study.experiments.results import RESULTS, order_datasets, read_grid, short_name

OVERFITS = 0.02
"""Nats above the best held-out loss, past its place, from which a length is out."""
LOWERS = 0.01
"""Nats by which a setting of training must lower the mean loss, and may raise it on one dataset."""
POINTS = 2.0
"""Points of normalised score within which the shorter training, or the paper's own value, wins."""

MODELLED = {"br_rcrl": "return_nll", "vanilla": "conditional_nll", "cloning": "prior_nll"}
"""The part of the loss that says how well a method knows what it models."""
METHODS = {
    ("br_rcrl", "authors"): "BR-RCRL, released code",
    ("br_rcrl", "paper"): "BR-RCRL, paper text",
    ("vanilla", None): "vanilla",
    ("cloning", None): "cloning",
}
WAY = ["method", "steps", "setting", "target", "alpha", "source"]
"""What a training and the way it is played are told apart by."""
FIGURE = "fig05_regimes"
DATASETS = [short_name(name) for name in order_datasets(TUNING_DATA)]


# -- rows --------------------------------------------------------------------------------------------------------


def recorded(folder: Path = RESULTS) -> pd.DataFrame | None:
    """The recorded rows of the grid as `tidy` lines; None where there are none yet."""
    return tidy(read_grid("regimes", folder)) if (folder / "regimes.csv").exists() else None


def tidy(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per row, with its WAY, `dataset`, `seed`, `loss`, `score` and `minutes` of training, by dataset.

    `setting` says what differs from the method's plain training ("" if nothing), `source` where p(R|s) came from.
    """
    order = order_datasets(rows["dataset"])
    return pd.DataFrame([_line(row) for name in order for row in rows[rows["dataset"] == name].to_dict("records")])


def _line(row: dict[Hashable, Any]) -> dict[str, Any]:
    def given(name: str, otherwise: Any) -> Any:
        value = row.get(name)
        return otherwise if value is None or value != value else value  # NaN: the method has no such setting

    method, objective = str(row["method"]), given("objective", None)
    variant = {name: value for name, value in json.loads(str(row["variant"])).items() if name != "steps"}
    source = BrRcrlAct(source=row["source"]).source_for(str(objective)) if method == "br_rcrl" else ""
    return {
        "method": METHODS[method, objective],
        "steps": int(row["train_steps"]),
        "setting": ", ".join(f"{name} {value}" for name, value in sorted(variant.items())),
        "target": given("target", ""),
        "alpha": float(given("prior_weight", 1.0)),
        "source": source,
        "dataset": short_name(str(row["dataset"])),
        "seed": int(row["train_seed"]),
        "loss": float(json.loads(str(row["held_out"]))[MODELLED[method]]),
        "score": float(row["score"]),
        "minutes": float(row["train_seconds"]) / 60,
    }


def usual_source(method: str) -> str:
    """Where p(R|s) comes from by default: the value network for the released code, the mixture for the paper's text."""
    objective = {name: objective for (_, objective), name in METHODS.items()}[method]
    return "" if objective is None else BrRcrlAct(source="auto").source_for(objective)


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """The lines on which lengths are compared: no setting, and played as the paper has it."""
    usual = table["source"] == table["method"].map(usual_source)
    return table[(table["setting"] == "") & (table["alpha"] == 1) & usual]


def averages(table: pd.DataFrame) -> pd.DataFrame:
    """Every WAY that all tuning seeds have measured on both datasets: means over seeds (`minutes`: medians), and over
    datasets.

    Columns `loss`, `score` and `minutes`, and with the `spread` of the score over seeds as `loss, hopper ...`.
    """
    parts = []
    for dataset in DATASETS:
        groups = table[(table["dataset"] == dataset) & table["seed"].isin(TUNING_SEEDS)].groupby(WAY)
        means = groups[["loss", "score"]].mean().assign(spread=groups["score"].std(ddof=1))
        means["minutes"] = groups["minutes"].median()  # a mean would show what else the machine did
        parts.append(means[groups["seed"].nunique() == len(TUNING_SEEDS)].add_suffix(f", {dataset}"))
    found = pd.concat(parts, axis="columns", join="inner")
    return found.assign(**{name: by_dataset(found, name).mean(axis=1) for name in ("loss", "score", "minutes")})


def by_dataset(lines: pd.DataFrame, name: str) -> pd.DataFrame:
    """One of the columns of `averages`, for each dataset."""
    return lines[[f"{name}, {dataset}" for dataset in DATASETS]].set_axis(DATASETS, axis="columns")


def lines_of(table: pd.DataFrame, by: str, **wanted: Any) -> pd.DataFrame:
    """The averages that are as `wanted`, by the values of `by`; of several target rules the one that earns more."""
    found = averages(table).reset_index()
    for name, value in wanted.items():
        found = found[found[name] == value]
    best = found.sort_values("score", ascending=False, kind="stable").drop_duplicates(by)
    return best.set_index(by).sort_index()


# -- the three steps of the rule ---------------------------------------------------------------------------------


def overfitted(losses: pd.DataFrame) -> pd.DataFrame:
    """Where held-out losses [steps, dataset] lie more than OVERFITS above the dataset's best, past its place."""
    best = losses.min()
    past = pd.DataFrame({name: losses.index > losses[name].idxmin() for name in losses}, index=losses.index)
    return (losses - best > OVERFITS) & past


def choose_steps(lines: pd.DataFrame) -> int:
    """Step 1: of the lengths at which no dataset is overfitted, the shortest within POINTS of the best score."""
    kept = lines["score"][~overfitted(by_dataset(lines, "loss")).any(axis=1)]
    return int(kept.index[kept >= kept.max() - POINTS].min())


def choose_settings(lines: pd.DataFrame) -> list[str]:
    """Step 2: the settings (index of `lines`, "" among them) that are taken; of two values of one, the lower loss."""
    losses, spreads = by_dataset(lines, "loss"), by_dataset(lines, "spread")
    change = losses - losses.loc[""]
    lowers = (change.mean(axis=1) <= -LOWERS) & (change.max(axis=1) <= LOWERS)
    steadier = (change.mean(axis=1).abs() < LOWERS) & (spreads < spreads.loc[""]).all(axis=1)
    averaged = lines.index.str.startswith("ema ")
    taken = lines.index[lowers | (steadier & averaged)]
    lowest = {name.split()[0]: name for name in lines["loss"][taken].sort_values(ascending=False).index}
    return sorted(lowest.values())


def choose_nearest(scores: pd.Series, distance: Callable[[Any], float]) -> Any:
    """Step 3: of the values (index of `scores`) within POINTS of the best, the nearest to the paper's; of two, the
    better."""
    close = scores[scores >= scores.max() - POINTS].sort_values(ascending=False, kind="stable")
    return min(close.index, key=distance)


def from_one(alpha: float) -> float:
    """How far a weight of the prior is from the paper's 1, in factors of e."""
    return abs(math.log(alpha))


# -- what comes of it --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What the rule chooses for one method, as far as rows allow; None where there are none yet."""

    steps: int
    target: str
    setting: str
    alpha: float | None
    source: str | None
    score: float
    """What it earned on the tuning seeds, all of it together where that was measured, else the plain training."""
    minutes: float
    table: pd.DataFrame
    """Every alternative: what it gave, what it cost, and what the rule says of it."""


def choose(table: pd.DataFrame, method: str) -> Choice | None:
    """Apply the rule to one method's lines of `tidy`."""
    ours = table[table["method"] == method]
    usual = usual_source(method)
    lengths = lines_of(plain(ours), "steps")
    if lengths.empty:
        return None
    steps = choose_steps(lengths)
    settings = lines_of(ours, "setting", steps=steps, alpha=1.0, source=usual)
    single = settings[["," not in name for name in settings.index]]
    setting = ", ".join(choose_settings(single))
    chosen = {"steps": steps, "setting": setting}
    alphas = lines_of(ours, "alpha", **chosen, source=usual)
    sources = lines_of(ours, "source", **chosen, alpha=1.0)
    alpha = choose_nearest(alphas["score"], from_one) if len(alphas) > 1 else None
    source = choose_nearest(sources["score"], lambda name: name != usual) if len(sources) > 1 else None
    parts = (
        _say("1 steps", lengths, steps, _of_lengths(lengths), "{:,}"),
        _say("2 training", single.drop(index=""), None, _of_settings(single, setting), "{}"),
        _say("3 alpha", alphas if alpha is not None else alphas[:0], alpha, {}, "{:g}"),
        _say("3 source", sources if source is not None else sources[:0], source, {}, "{}"),
    )
    together = lines_of(ours, "steps", **chosen, alpha=1.0 if alpha is None else alpha, source=source or usual)
    earned = (together if len(together) else lengths).loc[[steps]].iloc[0]
    score, minutes = float(earned["score"]), float(earned["minutes"])
    return Choice(steps, str(earned["target"]), setting, alpha, source, score, minutes, pd.concat(parts))


def _of_lengths(lines: pd.DataFrame) -> dict[Any, str]:
    past = overfitted(by_dataset(lines, "loss"))
    return {steps: "overfits on " + " and ".join(past.columns[row]) for steps, row in past.iterrows() if row.any()}


def _of_settings(lines: pd.DataFrame, setting: str) -> dict[Any, str]:
    return {name: "taken" if name in setting.split(", ") else "not taken" for name in lines.index}


def _say(step: str, lines: pd.DataFrame, chosen: Any, words: dict[Any, str], form: str) -> pd.DataFrame:
    """One line per alternative of one step of the rule."""
    rule = [words.get(value, "chosen" if value == chosen else "") for value in lines.index]
    columns = [f"{name}, {dataset}" for name in ("loss", "score") for dataset in DATASETS]
    shown = lines[[*columns, "score", "minutes"]].assign(**{"the rule": rule})
    shown.index = pd.MultiIndex.from_tuples([(step, form.format(value)) for value in lines.index], names=[None, None])
    return shown


def choices(table: pd.DataFrame) -> dict[str, Choice]:
    """The choice of every method that has enough rows."""
    return {method: found for method in METHODS.values() if (found := choose(table, method)) is not None}


def headline(found: dict[str, Choice]) -> str:
    """What the figure of the study says."""
    if not found:
        return "Too few rows yet for the rule to choose a length"
    steps = (f"{method.removeprefix('BR-RCRL, ')} {choice.steps:,}" for method, choice in found.items())
    all_measured = all(len(choice.table.loc["1 steps"]) == len(LENGTHS) for choice in found.values())
    return f"Training steps by the rule{'' if all_measured else ', so far'}: {', '.join(steps)}"


def chosen_table(found: dict[str, Choice]) -> pd.DataFrame:
    """One line per method: what the rule chooses, what that costs and what it earned; "-" where no rows tell."""
    lines = {
        method: {
            "steps": f"{choice.steps:,}",
            "settings": choice.setting or "plain",
            "target": choice.target or "-",
            "alpha": "-" if choice.alpha is None else f"{choice.alpha:g}",
            "source": choice.source or "-",
            "minutes": f"{choice.minutes:.1f}",
            "score": f"{choice.score:.1f}",
        }
        for method, choice in found.items()
    }
    return pd.DataFrame(lines).T


def alternatives(found: dict[str, Choice]) -> pd.DataFrame:
    """Everything that the rule compared, method by method."""
    tables = {method: choice.table for method, choice in found.items()}
    return pd.concat(tables).round(2) if tables else pd.DataFrame()
