"""Figures of notebook 13: methods side by side, what choosing online is worth, what each method costs."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from brrcrl_lib.study.claims.benchmark import PAPER_TEXT, RELEASED, VANILLA
from brrcrl_lib.study.figures.style import COLORS

STYLES: Mapping[str, tuple[str, str, str]] = {
    RELEASED: (COLORS["ours"], "o", "-"),
    PAPER_TEXT: (COLORS["sky"], "o", "--"),
    VANILLA: (COLORS["vanilla"], "s", "--"),
    "vanilla": (COLORS["vanilla"], "s", "--"),
    "RvS-R": (COLORS["vanilla"], "v", ":"),
    "DT": (COLORS["schedule"], "^", "-."),
    "IBC": (COLORS["accent"], "P", ":"),
    "BC": (COLORS["data"], "D", ":"),
    "10% BC": (COLORS["data"], "d", "--"),
    "20% BC": (COLORS["data"], "X", "-."),
    "TD3+BC": (COLORS["good"], "<", "-"),
    "IQL": (COLORS["good"], ">", "--"),
    "CQL": (COLORS["accent"], "*", "-."),
}
_OTHER = (COLORS["exact"], ".", "-")


def draw_paper(axis: Axes, table: pd.DataFrame) -> None:
    """Mean over datasets of the paper's Table 1, best on top, its own method marked."""
    means = table.mean(axis=1).sort_values()
    for place, (method, mean) in enumerate(means.items()):
        ours = method == "BR-RCRL"
        axis.plot(table.loc[str(method)], [place] * table.shape[1], "|", color="0.6", ms=7)
        axis.plot(mean, place, "D" if ours else "o", color=COLORS["ours" if ours else "data"], mec="black", ms=8)
    axis.set_yticks(range(len(means)), list(means.index))
    axis.set(xlabel="normalised score", ylim=(-0.6, len(means) - 0.4))
    axis.grid(visible=False, axis="y")


def say_nothing_yet(axis: Axes) -> None:
    """An empty panel that says so."""
    axis.text(0.5, 0.5, "no rows recorded yet", color="0.5", ha="center", va="center", transform=axis.transAxes)
    axis.set_xticks([])
    axis.set_yticks([])


def draw_aggregate(axis: Axes, found: pd.DataFrame, table: pd.DataFrame) -> None:
    """Interquartile mean and its interval, best on top, every run a small point (lines and `aggregate` of claims)."""
    if table.empty:
        return say_nothing_yet(axis)
    for place, (method, line) in enumerate(table.iloc[::-1].iterrows()):
        color, marker, _ = STYLES.get(str(method), _OTHER)
        runs = found[found["method"] == method]["score"]
        axis.plot(runs, [place] * len(runs), "|", color="0.6", ms=7)
        axis.plot([line["low"], line["high"]], [place] * 2, color=color, lw=6, alpha=0.4, solid_capstyle="butt")
        axis.plot(line["IQM"], place, marker, color=color, mec="black", ms=8)
    axis.set_yticks(range(len(table)), list(table.index[::-1]))
    axis.set(xlabel="normalised score", ylim=(-0.6, len(table) - 0.4))
    axis.grid(visible=False, axis="y")


def draw_curves(axis: Axes, curves: pd.DataFrame) -> None:
    """One line per method: shares of runs above a score, or scores after so many episodes."""
    if curves.empty or not curves.shape[1]:
        return say_nothing_yet(axis)
    for method in curves:
        color, marker, line = STYLES.get(str(method), _OTHER)
        every = max(1, len(curves) // 8)
        axis.plot(curves.index, curves[method], line, color=color, marker=marker, markevery=every, ms=5, label=method)
    axis.set_xlabel(str(curves.index.name))
    axis.legend(fontsize=8)


def draw_improvement(axis: Axes, table: pd.DataFrame) -> None:
    """P(ours beats theirs) and its interval; right of the middle line ours is the likelier winner."""
    if table.empty:
        return say_nothing_yet(axis)
    axis.axvline(0.5, color=COLORS["exact"], lw=1.2, ls=":")
    for place, (method, line) in enumerate(table.iloc[::-1].iterrows()):
        color, marker, _ = STYLES.get(str(method), _OTHER)
        axis.plot([line["low"], line["high"]], [place] * 2, color=color, lw=3)
        axis.plot(line["P"], place, marker, color=color, mec="black", ms=8)
    axis.set_yticks(range(len(table)), list(table.index[::-1]))
    axis.set(xlabel="probability that a run of ours scores more", xlim=(-0.03, 1.03), ylim=(-0.6, len(table) - 0.4))
    axis.grid(visible=False, axis="y")


def draw_cost(axis: Axes, found: pd.DataFrame, cost: str) -> None:
    """Mean score of each method against what it costs: `core-minutes` of training or `ms per action`."""
    if found.empty:
        return say_nothing_yet(axis)
    means = found.groupby("method", sort=False)[[cost, "score"]].mean()
    for method, line in means.iterrows():
        color, marker, _ = STYLES.get(str(method), _OTHER)
        axis.plot(line[cost], line["score"], marker, color=color, mec="black", ms=9)
        axis.annotate(str(method), (line[cost], line["score"]), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axis.set(xscale="log", xlabel=cost, ylabel="normalised score")
    axis.margins(x=0.25, y=0.15)
