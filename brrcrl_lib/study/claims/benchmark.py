"""Table 1 with every method trained on the same data: from rows of the grid `table1` to scores and aggregates.

Everything is in normalised scores, the unit is a training seed, and partial grids are welcome: whatever is averaged
says over how many seeds and datasets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from brrcrl_lib.data.registry import data_root, read_metadata
from brrcrl_lib.study.claims.decisions import Decision, decide
from brrcrl_lib.study.claims.scores import Interval, has_score, iqm_interval, normalised_score
from brrcrl_lib.study.claims.statistics import (
    difference,
    mean_interval,
    performance_profile,
    probability_of_improvement,
)
from brrcrl_lib.study.experiments.results import order_datasets, select, short_name
from brrcrl_lib.worlds import world_of

RELEASED, PAPER_TEXT, VANILLA = "BR-RCRL (released code)", "BR-RCRL (paper's text)", "vanilla, best rule"
_ADAPTIVE = {"target": "adaptive", "delta": 0.1}
METHODS: dict[str, dict[str, Any]] = {
    RELEASED: {"method": "br_rcrl", "objective": "authors", **_ADAPTIVE},
    PAPER_TEXT: {"method": "br_rcrl", "objective": "paper", **_ADAPTIVE},
    "RvS-R": {"method": "rvs", "share": 1.0},
    "DT": {"method": "dt", "share": 1.0},
    "IBC": {"method": "ibc"},
    "BC": {"method": "cloning", "top_share": None},
    "10% BC": {"method": "cloning", "top_share": 0.1},
    "20% BC": {"method": "cloning", "top_share": 0.2},
    "TD3+BC": {"method": "td3_bc"},
    "IQL": {"method": "iql"},
    "CQL": {"method": "cql"},
}
"""Each method as the table has it; vanilla is played by its best rule (`best_rule`)."""
RULES: dict[str, dict[str, Any]] = {
    "adaptive": _ADAPTIVE,
    "max": {"target": "max"},
    "DT scheduler": {"target": "dt_schedule"},
}
MATTERS = 5.0
"""The smallest difference of normalised scores that we call one."""


def best_rule(rows: pd.DataFrame) -> str | None:
    """The rule under which vanilla scores most, on average over the datasets and seeds that have all; None: no rows."""
    found = {name: select(rows, method="vanilla", **rule) for name, rule in RULES.items()}
    scores = {name: part.set_index(["dataset", "train_seed"])["score"] for name, part in found.items() if len(part)}
    if not scores:
        return None
    return str(pd.concat(scores, axis=1).dropna().mean().idxmax()) if len(scores) > 1 else next(iter(scores))


def lines(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per method of the table, dataset and seed: score, what it cost to train, and to choose an action."""
    rows = rows[rows["env"].astype(str).map(has_score).astype(bool)]
    rule = best_rule(rows)
    settings = {**METHODS, **({VANILLA: {"method": "vanilla", **RULES[rule]}} if rule else {})}
    order = [RELEASED, PAPER_TEXT, VANILLA, *METHODS]
    found = []
    for name in dict.fromkeys(order):
        chosen = select(rows, **settings[name]) if name in settings else rows.iloc[:0]
        for row in chosen.to_dict("records"):
            found.append(
                {
                    "method": name,
                    "dataset": short_name(row["dataset"]),
                    "id": row["dataset"],
                    "seed": int(row["train_seed"]),
                    "score": float(normalised_score(str(row["env"]), row["return_mean"])),
                    "updates": int(row["train_steps"]),
                    "core-minutes": row["train_seconds"] / 60,
                    "ms per action": 1e3 * row["seconds"] / max(1.0, row["episodes"] * row["length_mean"]),
                }
            )
    columns = ["method", "dataset", "id", "seed", "score", "updates", "core-minutes", "ms per action"]
    return pd.DataFrame(found, columns=columns)


def table(found: pd.DataFrame, made_by: bool = True) -> pd.DataFrame:
    """Methods down, datasets across: `mean ± half of the 95% interval (seeds)`, and the policy that made the data."""
    datasets = order_datasets(found["id"])
    shown: dict[str, dict[str, str]] = {}
    if made_by:
        shown["policy that made the data"] = {short_name(name): _number(data_score(name)) for name in datasets}
    for method in dict.fromkeys(found["method"]):
        of_method = found[found["method"] == method]
        shown[method] = {short_name(name): _cell(of_method[of_method["id"] == name]["score"]) for name in datasets}
    return pd.DataFrame(shown).T


def _cell(scores: Sequence[float] | pd.Series) -> str:
    if len(scores) == 0:
        return "-"
    interval = mean_interval(np.asarray(scores))
    spread = f" ± {interval.high - interval.estimate:.1f}" if interval else ""
    return f"{np.mean(scores):.1f}{spread} ({len(scores)})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def data_score(dataset: str) -> float | None:
    """Mean score of the dataset's own episodes, as its card says; None where it is not installed or says nothing."""
    folder = data_root() / dataset / "data"
    if not (folder / "metadata.json").is_file():
        return None
    mean, env = read_metadata(folder).get("card", {}).get("return_mean"), world_of(dataset).env_id
    return None if mean is None or env is None else float(normalised_score(env, mean))


# -- over datasets -----------------------------------------------------------------------------------------------


def common(found: pd.DataFrame, methods: Iterable[str] | None = None) -> list[str]:
    """The datasets on which every method (of those that have any rows) has rows: what may be averaged over."""
    chosen = list(dict.fromkeys(found["method"])) if methods is None else list(methods)
    datasets = list(dict.fromkeys(short_name(name) for name in order_datasets(found["id"])))
    having = found.groupby("dataset")["method"].agg(set)
    return [name for name in datasets if set(chosen) <= having[name]]


def matrix(found: pd.DataFrame, method: str, datasets: Sequence[str]) -> np.ndarray:
    """Scores [seeds, datasets] of a method, of as many seeds as it has on each of them."""
    of_method = found[found["method"] == method].sort_values("seed")
    columns = [of_method[of_method["dataset"] == name]["score"].to_numpy() for name in datasets]
    seeds = min(map(len, columns))
    return np.stack([column[:seeds] for column in columns], axis=1)


def aggregate(found: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Interquartile mean over seeds and common datasets, with a stratified bootstrap; best method first."""
    datasets, made = common(found), {}
    for method in dict.fromkeys(found["method"]) if datasets else ():
        scores = matrix(found, method, datasets)
        made[method] = (*iqm_interval(scores, np.random.default_rng(seed)), len(scores), len(datasets))
    columns = ["IQM", "low", "high", "seeds", "datasets"]
    return pd.DataFrame.from_dict(made, orient="index", columns=columns).sort_values("IQM", ascending=False)


def profiles(found: pd.DataFrame, thresholds: Any) -> pd.DataFrame:
    """The share of runs above each threshold, on the common datasets: thresholds down, methods across."""
    datasets = common(found)
    methods = dict.fromkeys(found["method"]) if datasets else ()
    curves = {name: performance_profile(matrix(found, name, datasets), thresholds) for name in methods}
    return pd.DataFrame(curves, index=pd.Index(np.asarray(thresholds, float), name="score"))


def improvement(found: pd.DataFrame, ours: str = RELEASED, repetitions: int = 1000) -> pd.DataFrame:
    """P(a run of ours beats one of theirs) against each rival, with a bootstrap over seeds within each dataset."""
    made = {}
    for method in dict.fromkeys(found["method"]):
        datasets = common(found, (ours, method))
        if method == ours or not datasets:
            continue
        sides = matrix(found, ours, datasets), matrix(found, method, datasets)
        rng = np.random.default_rng(0)
        drawn = [probability_of_improvement(*(_redrawn(side, rng) for side in sides)) for _ in range(repetitions)]
        interval = Interval(probability_of_improvement(*sides), *map(float, np.quantile(drawn, [0.025, 0.975])))
        made[method] = (*interval, len(datasets))
    return pd.DataFrame.from_dict(made, orient="index", columns=["P", "low", "high", "datasets"])


def _redrawn(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Scores [seeds, datasets] with seeds drawn anew within each dataset."""
    return np.take_along_axis(scores, rng.integers(len(scores), size=scores.shape), axis=0)


def verdict(found: pd.DataFrame, theirs: str, ours: str = RELEASED) -> Decision:
    """The decision on "ours scores more than theirs", by dataset; seeds are paired, they share their starts."""
    effects = {}
    for dataset in common(found, (ours, theirs)):
        of_dataset = found[found["dataset"] == dataset]
        both = of_dataset[of_dataset["method"].isin((ours, theirs))].pivot(
            index="seed", columns="method", values="score"
        )
        both = both.dropna()
        if len(both):
            effects[dataset] = difference(both[ours].to_numpy(), both[theirs].to_numpy(), paired=True)
    return decide(f"{ours} scores more than {theirs}", effects, matters=MATTERS, decimals=1)
