"""Figures of notebook 09: is what the agent gets what it asked for?"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brrcrl_lib.study.claims.delivered import Match, calibration
from brrcrl_lib.study.figures.style import COLORS


def draw_calibration(axis: Axes, table: pd.DataFrame) -> None:
    """Mean observed return against mean target in groups of equally many steps, with 95% intervals over seeds."""
    ends = [table[["target", "observed"]].min().min(), table[["target", "observed"]].max().max()]
    axis.plot(ends, ends, color=COLORS["exact"], lw=1.2, ls=":", label="observed = target")
    axis.fill_between(table["target"], table["low"], table["high"], color=COLORS["ours"], alpha=0.2, lw=0,
                      label="95% interval over training seeds")  # fmt: skip
    axis.plot(table["target"], table["observed"], "o-", color=COLORS["ours"], ms=5, label="a tenth of the steps")
    axis.set(xlabel="target", ylabel="observed return")


def calibration_figure(traces: Mapping[str, pd.DataFrame], matches: Mapping[str, Match], title: str) -> Figure:
    """One panel per dataset, three in a row."""
    rows = -(-len(traces) // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(12, 3.5 * rows + 0.4), squeeze=False)
    for axis in axes.flat[len(traces) :]:
        axis.set_visible(False)
    for axis, (name, trace) in zip(axes.flat, traces.items(), strict=False):
        found = matches[name]
        draw_calibration(axis, calibration(trace))
        summary = f"error {found.error.estimate:.0f}%, RMSE {found.rmse:.0f}%, reached {found.reached.estimate:.0f}%"
        axis.set_title(f"{name}\n{summary}", weight="normal", fontsize=10)
    for axis in axes[:, 1:].flat:
        axis.set_ylabel("")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle(title, weight="bold", fontsize=12)
    return figure
