"""Menus over recorded rows: choose a dataset, a method, a rule; see every training seed, and the rows themselves."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from IPython.display import display
from matplotlib.figure import Figure

from brrcrl_lib.study.claims.objectives import NAMES as OBJECTIVES
from brrcrl_lib.study.claims.rows import newest
from brrcrl_lib.study.experiments.results import AS_PLAYED, order_datasets, short_name
from brrcrl_lib.study.figures.interactive import explore
from brrcrl_lib.study.figures.showing import show_with_alt_text
from brrcrl_lib.study.figures.style import COLORS, METHOD_COLORS, METHOD_NAMES

ALL = "all"
NONE = "-"
MENUS = ("dataset", "method", "objective", "rule", "delta", "variant", "seed")
LINES = ("method", "objective", "rule", "delta", "variant")
"""What distinguishes the lines of the figure; its panels are datasets, its points seeds."""
RULES = {"dt_schedule": "DT scheduler"}
NAMED = {"method", "objective", "target", "delta", "quantile", "clone"}
"""Settings that have a menu of their own, or a word in one."""
MOST_ROWS = 20


def in_words(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of each dataset's newest version as a reader knows them: a column per menu, then `score` and `return`."""
    rows = newest(rows)
    shown = pd.DataFrame([_in_words(row) for row in rows.to_dict("records")], columns=[*MENUS, "score", "return"])
    order = {short_name(name): place for place, name in enumerate(order_datasets(rows["dataset"]))}
    shown = shown.assign(order=shown["dataset"].map(order), changed=shown["variant"] != NONE)
    return shown.sort_values(["order", "method", "changed"], kind="stable")[list(shown.columns[:-2])]


def _in_words(row: Mapping[Any, Any]) -> dict[str, Any]:
    said = {name: value for name, value in row.items() if not (isinstance(value, float) and pd.isna(value))}
    usual = AS_PLAYED.get(said["method"], {}) | {"share": None}
    acts = {name: said[name] for name in usual if said.get(name) is not None and said[name] != usual[name]}
    changes = {name: value for name, value in (acts | json.loads(said["variant"])).items() if name not in NAMED}
    adaptive = said.get("target") == "adaptive" and not said.get("clone")
    return {
        "dataset": short_name(said["dataset"]),
        "method": METHOD_NAMES.get(said["method"], said["method"]),
        "objective": OBJECTIVES.get(said.get("objective", NONE), said.get("objective", NONE)),
        "rule": _rule(said),
        "delta": f"{said['delta']:g}" if adaptive else NONE,
        "variant": ", ".join(f"{name} = {_plain(value)}" for name, value in changes.items()) or NONE,
        "seed": int(said["train_seed"]),
        "score": said.get("score"),
        "return": said["return_mean"],
    }


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rule(said: Mapping[str, Any]) -> str:
    """Which return the agent asked for."""
    if said.get("clone"):
        return "prior alone"
    target = said.get("target", NONE)
    return f"fixed: {said['quantile']:.0%}" if target == "fixed" else RULES.get(target, target)


def chosen(shown: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """The rows (of `in_words`) with the wanted values, `all` standing for any."""
    for column, value in wanted.items():
        if value != ALL:
            shown = shown[shown[column] == value]
    return shown


def draw_rows(found: pd.DataFrame) -> Figure:
    """One panel per dataset, one line per setting: every row (a training seed) a point, their mean a stroke.

    In points of normalised score, or in returns where an environment has no reference score.
    """
    value = "return" if found["score"].isna().any() else "score"
    varying = [name for name in LINES if found[name].nunique() > 1] or ["method"]
    if len(set(found["delta"]) - {NONE}) == 1 and len(varying) > 1:
        varying = [name for name in varying if name != "delta"]  # the rule says it already
    words = found.assign(delta=found["delta"].map(lambda delta: NONE if delta == NONE else f"δ = {delta}"))[varying]
    lines = words.apply(lambda row: ", ".join(word for word in row if word != NONE) or "as played", axis=1)
    model = found["method"] + found["objective"].map(lambda name: ", paper text" if name == "paper text" else "")
    found = found.assign(line=lines, model=model)
    names, datasets = [*dict.fromkeys(lines)], [*dict.fromkeys(found["dataset"])]
    size = (max(7.0, 2.6 * len(datasets) + 0.08 * max(map(len, names))), 0.26 * len(names) + 1.5)
    figure, axes = plt.subplots(1, len(datasets), figsize=size, squeeze=False, sharey=True, sharex=value == "score")
    palette = dict.fromkeys(model, COLORS["exact"]) | METHOD_COLORS
    for axis, dataset in zip(axes[0], datasets, strict=True):
        rows = found[found["dataset"] == dataset]
        where = {"x": value, "y": "line", "order": names, "orient": "h", "ax": axis}
        sns.stripplot(rows, **where, hue="model", palette=palette, jitter=False, size=6, legend=False,
                      alpha=0.6, linewidth=0.5, edgecolor="black")  # fmt: skip
        sns.pointplot(rows, **where, errorbar=None, linestyle="none", marker="|", color="black", markersize=13)
        axis.set(xlabel={"score": "normalised score"}.get(value, value), ylabel="")
        axis.set_title(dataset, weight="normal", fontsize=11)
        axis.grid(visible=False, axis="y")
    figure.suptitle(f"{len(found)} recorded rows: every training seed a point, their mean a stroke", fontsize=12,
                    weight="bold")  # fmt: skip
    return figure


def explore_rows(rows: pd.DataFrame) -> None:
    """A menu for everything that differs among the rows, a figure of those chosen, and their table."""
    if rows.empty:
        print("No row is recorded yet, so there is nothing to choose from.")
        return
    shown = in_words(rows)
    menus = {name: [ALL, *dict.fromkeys(shown[name])] for name in MENUS if shown[name].nunique() > 1}

    def show(**wanted: Any) -> None:
        found = chosen(shown, **wanted)
        if found.empty:
            print("No row is recorded for this combination.")
            return
        show_with_alt_text(draw_rows(found), "recorded rows")
        plt.show()
        listed = f"; the table lists the first {MOST_ROWS}" if len(found) > MOST_ROWS else ""
        print(f"{len(found)} of {len(shown)} rows{listed}.")
        display(found.head(MOST_ROWS).round({"score": 1, "return": 0}).reset_index(drop=True))

    show.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=ALL) for name in menus]
    )
    explore(show, **menus)
