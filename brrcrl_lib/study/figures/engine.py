"""Figures of notebooks 05 and 06: what training does, and how an action is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from torch import Tensor

from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.study.analysis.held_out import Forecast
from brrcrl_lib.study.analysis.regimes import METHODS, OVERFITS, plain
from brrcrl_lib.study.claims.objectives import NAMES, POLICIES
from brrcrl_lib.study.experiments.results import short_name
from brrcrl_lib.study.figures.style import COLORS

OURS, CLONING = (COLORS["ours"], "o", "-"), (COLORS["data"], "D", ":")
PAPER_TEXT, VANILLA = (COLORS["sky"], "^", "--"), (COLORS["vanilla"], "s", "-.")
STYLES = {"released code": OURS, "paper text": PAPER_TEXT, "cloning": CLONING}
"""Colour, marker and line of each objective, by the name that a reader knows."""
METHOD_STYLES = dict(zip(METHODS.values(), (OURS, PAPER_TEXT, VANILLA, CLONING), strict=True))
PARTS = {"contrast": "contrast", "prior_nll": "−log p(a|s)", "return_nll": "−log p(R|s,a)", "value_nll": "−log p(R|s)"}


# -- training ----------------------------------------------------------------------------------------------------


def draw_curves(axes: Sequence[Axes], metrics: Mapping[str, pd.DataFrame], ignorant: Mapping[str, float]) -> None:
    """One panel per part of the loss, one line per objective, and what a model that knows nothing would score."""
    for axis, (part, title) in zip(axes, PARTS.items(), strict=True):
        for objective, table in metrics.items():
            if part in table:
                color, _, line = STYLES[objective]
                axis.plot(table["step"], table[part], line, color=color, label=objective)
        axis.axhline(ignorant[part], color=COLORS["exact"], lw=1.2, ls=":", label="knows nothing")
        axis.set(xlabel="gradient step", ylabel="nats")
        axis.set_title(title, weight="normal", fontsize=11)
    axes[0].legend(fontsize=9)


def draw_reliability(axis: Axes, tables: Mapping[str, pd.DataFrame]) -> None:
    """Mean outcome against mean prediction, with bootstrap bars over episodes; the diagonal is perfect."""
    ends = [min(t.predicted.min() for t in tables.values()), max(t.predicted.max() for t in tables.values())]
    axis.plot(ends, ends, color=COLORS["exact"], lw=1.2, ls=":", label="perfect")
    for objective, table in tables.items():
        bars = np.abs(np.stack([table.actual - table.low, table.high - table.actual]))
        color, marker, line = STYLES[objective]
        axis.errorbar(table.predicted, table.actual, yerr=bars, capsize=3, lw=1.4, label=objective, color=color,
                      ls=line, marker=marker)  # fmt: skip
    axis.set(xlabel="predicted mean return E[R|s,a]", ylabel="mean return that followed")
    axis.legend(fontsize=9)


def draw_coverage(axis: Axes, forecasts: Mapping[str, Forecast]) -> None:
    """Share of outcomes below each predicted quantile; a line above the diagonal means too high a forecast."""
    levels = np.linspace(0, 1, 101)
    axis.plot(levels, levels, color=COLORS["exact"], lw=1.2, ls=":", label="perfect")
    for objective, forecast in forecasts.items():
        below = np.searchsorted(np.sort(forecast.pit.numpy()), levels, side="right") / len(forecast.pit)
        color, _, line = STYLES[objective]
        axis.plot(levels, below, line, color=color, label=objective)
    axis.set(xlabel="predicted quantile", ylabel="share of returns below it", aspect="equal")
    axis.legend(fontsize=9)


def forecasts_figure(tables: Mapping[str, pd.DataFrame], forecasts: Mapping[str, Forecast], title: str) -> Figure:
    """Reliability and coverage side by side."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), width_ratios=(1.25, 1))
    draw_reliability(left, tables)
    draw_coverage(right, forecasts)
    figure.suptitle(title, weight="bold", fontsize=12)
    return figure


def draw_prior(left: Axes, right: Axes, shapes: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Cumulative shares of the prior's standard deviations, and of the distance from its mode to the data."""
    for objective, values in shapes.items():
        color, _, line = STYLES[objective]
        for axis, value in zip((left, right), values, strict=True):
            sns.ecdfplot(x=value.flatten().numpy(), ls=line, color=color, label=objective, ax=axis)
    left.set(xlabel="standard deviation of p(a|s), per joint", ylabel="share of states and joints below")
    right.set(xlabel="|mode − recorded action|, per joint", ylabel="share of states and joints below")
    highest = max(float(np.quantile(std.numpy(), 0.99)) for std, _ in shapes.values())
    left.set_xlim(0, 1.05 * highest)
    left.legend(fontsize=9)


def draw_results(axis: Axes, table: pd.DataFrame) -> None:
    """Mean return of every training seed as a point, a bar at the policy's mean; columns policy and return_mean."""
    for name, rows in table.groupby("policy"):
        color, marker, _ = STYLES[NAMES[str(name).split(",")[0]]]
        where = {"x": "policy", "y": "return_mean", "order": POLICIES, "color": color, "ax": axis}
        sns.barplot(rows, **where, alpha=0.25, errorbar=None)
        sns.swarmplot(rows, **{**where, "color": "white"} if "mode" in str(name) else where, size=6, linewidth=1,
                      edgecolor="black", marker=marker)  # fmt: skip
    axis.set_xticks(range(len(POLICIES)), [NAMES[name].replace(" ", "\n", 1).replace(", ", ",\n") for name in POLICIES],
                    fontsize=9)  # fmt: skip
    axis.set(xlabel="", ylabel="", xlim=(-0.6, len(POLICIES) - 0.4))
    low, high = min(0.0, table["return_mean"].min()), max(0.0, table["return_mean"].max())
    axis.set_ylim(low - 0.04 * (high - low), high + 0.08 * (high - low))
    axis.grid(visible=False, axis="x")


def results_figure(table: pd.DataFrame, label: str, title: str) -> Figure:
    """One panel of `draw_results` per dataset."""
    panels = list(table.groupby("dataset", sort=False))
    size = (max(7.5, 4.6 * len(panels)), 4)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False)
    for axis, (dataset, rows) in zip(axes[0], panels, strict=True):
        draw_results(axis, rows)
        axis.set_title(short_name(str(dataset)), weight="normal", fontsize=11)
    axes[0][0].set_ylabel(label)
    figure.suptitle(title, weight="bold", fontsize=12)
    return figure


def regimes_figure(table: pd.DataFrame, headline: str) -> Figure:
    """The whole figure: one column per dataset."""
    count = table["dataset"].nunique()
    figure, axes = plt.subplots(2, count, figsize=(1 + 5 * count, 6.4), sharex=True, sharey="row", squeeze=False)
    draw_regimes(axes, table)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle(headline, weight="bold", fontsize=12)
    return figure


def draw_regimes(axes: np.ndarray, table: pd.DataFrame) -> None:
    """Score (upper row) and held-out loss above its best (lower row) against training steps, one column per dataset.

    `table` from `regimes.tidy`: plain trainings, each method under the target rule that earns most at that length.
    White points are training seeds.
    """
    shown_lines = plain(table)
    lengths = sorted(shown_lines["steps"].unique())
    for (top, bottom), (dataset, lines) in zip(axes.T, shown_lines.groupby("dataset", sort=False), strict=True):
        for method, ours in lines.groupby("method", sort=False):
            color, marker, line = METHOD_STYLES[str(method)]
            means = ours.groupby(["steps", "target"])[["score", "loss"]].mean()
            best = means.loc[means.groupby("steps")["score"].idxmax()].reset_index("target")
            shown = ours[ours["target"] == best["target"].reindex(ours["steps"]).to_numpy()]
            top.plot(shown["steps"], shown["score"], marker, ms=3, mfc="white", mec=color, mew=0.8)
            top.plot(best.index, best["score"], line, color=color, marker=marker, ms=6, label=method)
            bottom.plot(best.index, best["loss"] - best["loss"].min(), line, color=color, marker=marker, label=method)
        bottom.axhline(OVERFITS, color=COLORS["exact"], lw=1.2, ls=":")
        top.set_title(dataset, weight="normal", fontsize=11)
        top.set(xscale="log")
        bottom.set(xscale="log", xlabel="training steps")
        bottom.set_xticks(lengths, [f"{steps:,}" for steps in lengths], rotation=30, fontsize=9)
        bottom.minorticks_off()
        bottom.set_yscale("symlog", linthresh=OVERFITS, linscale=0.5)
        bottom.set_ylim(bottom=-OVERFITS / 4)
    axes[0][0].set_ylabel("normalised score")
    axes[1][0].set_ylabel("held-out loss\nabove its best (nats)")


# -- inference ---------------------------------------------------------------------------------------------------

SOURCE_STYLES = {
    "prior_samples": ("mixture over prior samples", COLORS["ours"], "-"),
    "value_model": ("value model", COLORS["good"], "--"),
    "prior_samples_logits": ("averaged logits", COLORS["schedule"], "-."),
}


def draw_threshold(
    left: Axes, right: Axes, buckets: ReturnBuckets, distributions: Mapping[str, Tensor], delta: float
) -> None:
    """p(R|s) from each source [buckets], and the tail P(R >= r|s) from which theta_delta is read."""
    edges = buckets.lower_edges().numpy()
    for source, probabilities in distributions.items():
        label, color, line = SOURCE_STYLES[source]
        left.step(edges, probabilities.numpy(), where="post", color=color, ls=line, lw=1.6, label=label)
        right.step(edges, buckets.tail(probabilities).numpy(), where="pre", color=color, ls=line, lw=1.6)
        theta = edges[int(buckets.threshold(probabilities, delta))]
        right.plot([theta, theta], [0, delta], color=color, ls=line, lw=1.2)
        right.plot(theta, delta, "o", color=color, ms=7, mec="black")
    right.axhline(delta, color=COLORS["exact"], lw=1.2, ls=":")
    right.annotate(f"δ = {delta:g}", (buckets.low, delta), xytext=(4, 4), textcoords="offset points")
    left.set(xlabel="return R", ylabel="p(R|s), per bucket")
    right.set(xlabel="return r", ylabel="P(R ≥ r|s)", ylim=(0, 1.05))
    left.legend(fontsize=9)


def draw_energy(
    axis: Axes, grid: tuple[Tensor, Tensor, Tensor], names: tuple[str, str], depth: float = 2.0
) -> QuadContourSet:
    """Energy above the lowest point of the slice, in nats, cut off at `depth`; dark is likely."""
    x, y, energy = (values.numpy() for values in grid)
    shading = axis.contourf(x, y, np.minimum(energy - energy.min(), depth), levels=np.linspace(0, depth, 17),
                            cmap="Blues_r")  # fmt: skip
    axis.contour(x, y, energy - energy.min(), levels=[0.5, 2], colors="black", linewidths=0.7, alpha=0.6)
    axis.set(xlabel=names[0], ylabel=names[1], aspect="equal", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    axis.locator_params(nbins=4)
    axis.grid(visible=False)
    return shading


def mark(axis: Axes, action: Tensor, label: str, marker: str, color: str) -> None:
    """One action [2] in a slice."""
    axis.plot(*action.numpy(), marker, color=color, ms=10, mec="black", label=label, clip_on=False, zorder=5, ls="")


def draw_samples(axis: Axes, actions: Tensor) -> None:
    """An optimiser's candidates [N, 2] in a slice."""
    axis.plot(*actions.numpy().T, "o", ms=4, color=COLORS["schedule"], mec="black", mew=0.3, alpha=0.8)


def draw_race(axis: Axes, table: pd.DataFrame) -> None:
    """Mean energy against time, one point per optimiser (columns optimizer, energy, ms): lower left is better."""
    lowest = table["energy"].min()
    excess = np.maximum(table["energy"] - lowest, 1e-4)  # a logarithmic axis has no zero
    for (_, row), above in zip(table.iterrows(), excess, strict=True):
        ours, literal = "cem" in row["optimizer"], "literal" in row["optimizer"]
        axis.plot(row["ms"], above, "o" if ours else ("^" if "langevin" in row["optimizer"] else "s"), ms=9,
                  color=COLORS["ours"] if ours else COLORS["vanilla"], mfc="white" if literal else None)  # fmt: skip
        beside = ((0, -18), "right", "baseline") if literal else ((9, 0), "left", "center")
        axis.annotate(row["optimizer"], (row["ms"], above), textcoords="offset points", size=9,
                      xytext=beside[0], ha=beside[1], va=beside[2])  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="milliseconds per action", ylabel="mean energy above the best (nats)")
    axis.margins(x=0.2, y=0.2)
