"""Figures of notebook 12: frames, returns, the joint table beside its frame, targets over a game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from brrcrl_lib.methods.br_rcrl_joint import JointTable
from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.study.figures.style import COLORS

TRAIL = np.array([0.55, 0.65, 0.8, 1.0])
"""How brightly the four frames of an observation are drawn on top of one another, oldest first."""


# -- frames ------------------------------------------------------------------------------------------------------


def draw_frame(axis: Axes, frame: np.ndarray, title: str = "") -> None:
    """One frame [height, width] of 0..255, without ticks."""
    axis.imshow(frame, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(visible=False)
    axis.set_title(title, weight="normal", fontsize=10, loc="center")


def draw_strip(axes: Sequence[Axes], frames: np.ndarray, titles: Sequence[str]) -> None:
    """Frames [n, height, width] side by side, a title each."""
    for axis, frame, title in zip(axes, frames, titles, strict=True):
        draw_frame(axis, frame, title)


def with_trail(stack: np.ndarray) -> np.ndarray:
    """The four frames of an observation [4, height, width] as one picture: what moves leaves a fading trail."""
    return (stack * TRAIL[:, None, None]).max(0)


# -- the data ----------------------------------------------------------------------------------------------------


def draw_ladder(axis: Axes, policies: np.ndarray, returns: np.ndarray) -> None:
    """Return of each game [n] against the policy that played it [n], untrained to best, with the policies' means."""
    checkpoints = np.unique(policies)
    axis.plot(policies, returns, "o", ms=4, color=COLORS["data"], mec="white", mew=0.3)
    means = [returns[policies == checkpoint].mean() for checkpoint in checkpoints]
    axis.plot(checkpoints, means, "D-", color=COLORS["ours"], ms=6, mec="black", lw=1.2)
    axis.set(xlabel="policy, in order of training", ylabel="return of a game")
    axis.locator_params(axis="x", integer=True)


def draw_tail(axis: Axes, rtg: Mapping[str, np.ndarray], marks: Mapping[str, float] | None = None) -> None:
    """Share of steps whose reward-to-go is at least r, on a logarithmic scale; one line per group of steps [n]."""
    lines = (("-", COLORS["exact"]), ("--", COLORS["vanilla"]), ("-.", COLORS["ours"]), (":", COLORS["good"]))
    lowest = 1.0
    for (name, values), (line, color) in zip(rtg.items(), lines, strict=False):
        ordered = np.sort(values)
        share = 1 - np.arange(len(ordered)) / len(ordered)
        axis.step(ordered, share, line, where="pre", color=color, lw=1.8, label=name)
        lowest = min(lowest, 1 / len(ordered))
    axis.set(yscale="log", ylim=(lowest / 1.5, 1.6), xlabel="r (reward-to-go)", ylabel="share of steps with R ≥ r")
    for name, value in (marks or {}).items():
        axis.axvline(value, color="0.4", lw=1.2, ls=(0, (4, 2)))
        axis.annotate(name, (value, 1.0), xytext=(-4, -2), textcoords="offset points", rotation=90, fontsize=9,
                      ha="right", va="top")  # fmt: skip


# -- the table ---------------------------------------------------------------------------------------------------


def draw_belief(
    figure: Figure | SubFigure,
    table: JointTable,
    buckets: ReturnBuckets,
    bucket: Tensor,
    stack: np.ndarray,
    actions: Sequence[str],
    title: str,
) -> None:
    """One state: its frames [4, height, width], its table p(a, R | s), and what follows at the `bucket` [1] of theta.

    `table` holds this one state.
    """
    grid = figure.add_gridspec(2, 3, width_ratios=(1.0, 1.9, 1.1), height_ratios=(0.45, 1))
    draw_frame(figure.add_subplot(grid[:, 0]), with_trail(stack), title)
    heat = figure.add_subplot(grid[1, 1])
    _draw_joint(heat, table, buckets, actions)
    above = figure.add_subplot(grid[0, 1], sharex=heat)
    _draw_returns(above, table, buckets, bucket)
    heat.axvline(float(buckets.lower_edges()[int(bucket)]), color=COLORS["vanilla"], lw=2, ls="--")
    bars = figure.add_subplot(grid[1, 2], sharey=heat)
    _draw_actions(bars, table, bucket)
    corner = figure.add_subplot(grid[0, 2])
    corner.axis("off")
    corner.legend(*bars.get_legend_handles_labels(), fontsize=10, loc="lower left")


def _draw_joint(axis: Axes, table: JointTable, buckets: ReturnBuckets, actions: Sequence[str]) -> None:
    joint = table.log_joint().exp()[0].numpy()  # [A, N]
    extent = (buckets.low, buckets.low + buckets.width * buckets.count, len(joint) - 0.5, -0.5)
    axis.imshow(joint, aspect="auto", extent=extent, cmap="Greys", norm=PowerNorm(0.5, vmin=0), interpolation="nearest")
    axis.set_yticks(range(len(actions)), [name.lower() for name in actions], fontsize=9)
    axis.set_xlabel("return R;  dark: p(a, R | s) is large", fontsize=10)
    axis.locator_params(axis="x", nbins=6)
    axis.grid(visible=False)


def _draw_returns(axis: Axes, table: JointTable, buckets: ReturnBuckets, bucket: Tensor) -> None:
    edges = buckets.lower_edges().numpy()
    chances = table.log_returns().exp()[0].numpy()
    good = np.arange(len(edges)) >= int(bucket)
    axis.bar(edges, chances, buckets.width, align="edge", color=np.where(good, COLORS["vanilla"], COLORS["data"]))
    theta = edges[int(bucket)]
    axis.axvline(theta, color=COLORS["vanilla"], lw=2, ls="--")
    left = theta > (buckets.low + buckets.high) / 2
    axis.annotate(f"θ = {theta:.2f}, P(R ≥ θ | s) = {chances[good].sum():.2g}", (theta, 1), fontsize=10,
                  xycoords=axis.get_xaxis_transform(), xytext=(-6 if left else 6, -1), textcoords="offset points",
                  ha="right" if left else "left", va="top")  # fmt: skip
    axis.set_ylim(0, 1.5 * chances.max())
    axis.set_ylabel("p(R | s)", fontsize=10)
    axis.tick_params(labelbottom=False)
    axis.locator_params(axis="y", nbins=3)


def _draw_actions(axis: Axes, table: JointTable, bucket: Tensor) -> None:
    prior = table.log_actions().exp()[0].numpy()
    wanted = table.log_actions_reaching(bucket).exp()[0].numpy()
    place = np.arange(len(prior))
    axis.barh(place - 0.19, prior, 0.36, color="white", edgecolor="black", label="p(a | s)")
    axis.barh(place + 0.19, wanted, 0.36, color=COLORS["ours"], edgecolor="black", label="p(a | s, R ≥ θ)")
    axis.tick_params(labelleft=False)
    axis.set_xlabel("probability of the action", fontsize=10)
    axis.set_xlim(0, max(0.5, 1.05 * max(prior.max(), wanted.max())))
    axis.locator_params(axis="x", nbins=4)
    axis.grid(visible=False, axis="y")


# -- targets -----------------------------------------------------------------------------------------------------


def draw_cumulative(axis: Axes, values: Mapping[str, np.ndarray], label: str) -> None:
    """Share of the states [n] whose value is at most x, one line per rule."""
    lines = (("-", COLORS["ours"]), ("--", COLORS["vanilla"]), ("-.", COLORS["schedule"]))
    for (name, found), (line, color) in zip(values.items(), lines, strict=False):
        sns.ecdfplot(x=found, ls=line, color=color, label=name, ax=axis)
    axis.set(xlabel=label, ylabel="share of states below", ylim=(0, 1.02))


def mark_at(axis: Axes, x: float, text: str) -> None:
    """A dotted line with a name at its foot."""
    axis.axvline(x, color=COLORS["exact"], lw=1.2, ls=":")
    axis.annotate(text, (x, 0.02), xytext=(-4, 2), textcoords="offset points", ha="right", fontsize=9)


def draw_game(axis: Axes, trace: pd.DataFrame, last: int = 300) -> None:
    """Target, observed and predicted return over the first steps of a game; triangles where it paid."""
    shown = trace[trace["step"] < last]
    styles = {"target": ("-", COLORS["ours"]), "observed": ("--", COLORS["vanilla"]), "predicted": (":", "0.35")}
    for column, (line, color) in styles.items():
        if column in shown:
            axis.plot(shown["step"], shown[column], line, color=color, lw=1.6, label=column)
    low, high = axis.get_ylim()
    for paid, marker, height in ((shown["reward"] > 0, "^", high), (shown["reward"] < 0, "v", low)):
        steps = shown.loc[paid, "step"]
        if len(steps):  # an empty line that is not clipped would pull the layout to the corner
            axis.plot(steps, np.full(len(steps), height), marker, ms=6, color="black", clip_on=False, ls="")
    axis.set(xlabel="step of the game", ylabel="return", ylim=(low, high))
