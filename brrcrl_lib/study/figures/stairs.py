"""The figures of notebook 02."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from brrcrl_lib.study.figures.style import COLORS, LINES, MARKERS
from brrcrl_lib.study.toys.stairs import ACTIONS, BERRIES, MEDIOCRE, PALETTE, PICK, STEP, Stairs, State, draw
from brrcrl_lib.study.toys.stairs_agents import Episodes
from brrcrl_lib.study.toys.stairs_exact import Estimate, exact_estimate, threshold
from brrcrl_lib.study.toys.stairs_study import bootstrap_interval, select

AGENTS = {  # label: (source, rule, style)
    "vanilla, maximum": ("vanilla", "max", "vanilla"),
    "vanilla, schedule": ("vanilla", "schedule", "schedule"),
    "vanilla, modest schedule": ("vanilla", "modest", "accent"),
    "vanilla, adaptive": ("vanilla", "adaptive", "good"),
    "BR-RCRL, adaptive": ("joint", "adaptive", "ours"),
    "exact table, adaptive": ("exact", "adaptive", "exact"),
    "behaviour (the data)": ("behaviour", "none", "data"),
}
GREYS = ListedColormap(plt.get_cmap("Greys")(np.linspace(0.15, 1, 256)))  # even the rarest return is not white
PLACES = {"beside": "berries beside the stairs", "on": "berries on the stairs"}


def headline(figure: Figure, finding: str, holds: bool, otherwise: str) -> Figure:
    """Title a figure with its finding if the drawn numbers bear it out, else with what it shows."""
    figure.suptitle(finding if holds else otherwise, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def scenes(stairs: Stairs, states: dict[str, State]) -> Figure:
    """The world in pictures, one panel per named state, and what its colours mean."""
    figure, axes = plt.subplots(1, len(states), figsize=(3.6 * len(states), 3.2))
    for axis, (title, state) in zip(axes, states.items(), strict=True):
        axis.imshow(draw(stairs, state))
        axis.set_title(title, fontsize=11)
        axis.axis("off")
    berry = {"beside": "berry, in a bush beside the stair", "on": "berry, on the stair"}[stairs.berries]
    meanings = {"climber": "climber", "hurt": "hurt climber", "berry": berry, "flag": "top", "left": "move left",
                "used": "move used"}  # fmt: skip
    handles = [
        Patch(color="#{:02x}{:02x}{:02x}".format(*PALETTE[name]), label=meaning) for name, meaning in meanings.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=10)
    return figure


def step_through(stairs: Stairs, walks: Mapping[str, Episodes], move: int) -> Figure:
    """Where each agent stands before a move of its first episode, what can still happen there, and what it asks for.

    Below the scene: p_d(R | s), exact, and the agent's target, hollow where it has no probability left.
    """
    exact = exact_estimate(stairs).returns
    figure, axes = plt.subplots(2, len(walks), figsize=(4.6 * len(walks), 4.6), sharey="row", height_ratios=(3, 2))
    for (scene, below), (name, walk) in zip(axes.T, walks.items(), strict=True):
        now = min(move, int(walk.alive[:, 0].sum()) - 1)  # who is at the top stays there
        state, asked = State(*walk.states[now, 0].tolist()), int(walk.targets[now, 0])
        possible = exact[state][asked] > 0
        scene.imshow(draw(stairs, state))
        scene.axis("off")
        earned, action = int(walk.rewards[:now, 0].sum()), ACTIONS[walk.actions[now, 0]]
        scene.set_title(f"{name}\nmove {now}: has {earned}, will {action}", fontsize=11)
        below.bar(np.arange(len(exact[state])), exact[state], color=COLORS["data"], width=0.9)
        face = COLORS["ours"] if possible else "white"
        below.plot([asked, asked], [0, 0.55], color=COLORS["ours"], lw=1.5)
        below.plot(asked, 0.58, "v", ms=11, mfc=face, mec=COLORS["ours"], mew=2)
        below.text(asked, 0.74, f"asks for {asked}" + ("" if possible else ": impossible"), ha="center", fontsize=10)
        below.set(xlabel="return still to come, R", xlim=(-4, len(exact[state]) + 3), ylim=(0, 1))
    axes[1, 0].set_ylabel("$p_d(R|s)$")
    return figure


def scripted_path(stairs: Stairs, slip_at: int) -> tuple[list[State], list[int]]:
    """One plain walk, the same for every target rule: two berries, then steps; after a slip, berries only."""
    state, states, rewards = stairs.start, [], []
    while not stairs.is_over(state):
        now = stairs.budget - state.left
        states.append(state)
        action = PICK if now < 2 or state.hurt else STEP
        outcome = stairs.outcomes(state, action)[0]
        state = stairs.slipped(state) if now == slip_at else outcome.state
        rewards.append(0 if now == slip_at else outcome.reward)
    return states, rewards


def targets_along(
    states: Sequence[State], rewards: Sequence[int], estimate: Estimate, delta: float, best: int
) -> dict[str, np.ndarray]:
    """What each rule asks for at each move of one walk."""
    collected = np.cumsum([0, *rewards[:-1]])
    thetas = threshold(np.stack([estimate.returns[state] for state in states]), delta)
    return {"max": np.full(len(states), best), "schedule": best - collected, "adaptive": thetas}


def target_map(axis: Axes, stairs: Stairs, slip_at: int, estimate: Estimate, delta: float, best: int) -> None:
    """p_d(R | s) along the scripted walk as a heat map, white where it is zero, with each rule's target on it."""
    states, rewards = scripted_path(stairs, slip_at)
    exact = np.stack([exact_estimate(stairs).returns[state] for state in states], 1)  # [B, moves]
    masked = np.ma.masked_equal(exact, 0)
    axis.imshow(masked, origin="lower", aspect="auto", cmap=GREYS, norm=PowerNorm(0.4, 0, 1), interpolation="none")
    for rule, style in (("max", "vanilla"), ("schedule", "schedule"), ("adaptive", "ours")):
        asked = targets_along(states, rewards, estimate, delta, best)[rule]
        impossible = exact[asked, np.arange(len(states))] == 0
        axis.plot(asked, color=COLORS[style], linestyle=LINES[style], label=rule, zorder=3)
        for where, face in ((impossible, "white"), (~impossible, COLORS[style])):
            moves, edge = np.flatnonzero(where), COLORS[style]
            axis.scatter(moves, asked[where], 42, face, marker=MARKERS[style], edgecolors=edge, zorder=4)
    if slip_at >= 0:
        axis.axvline(slip_at + 0.5, color="black", linestyle=":", linewidth=1.5)
        axis.text(slip_at + 0.6, 29.5, "slip", fontsize=11)
    axis.set(xlabel="move", xlim=(-0.5, stairs.budget - 0.5), ylim=(-0.7, len(exact) - 0.5))
    axis.grid(False)


def target_maps(stairs: Stairs, slip_at: int, estimate: Estimate, delta: float, best: int) -> Figure:
    """Figure 2 of the paper, measured: the same walk without and with a slip."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), sharey=True)
    for axis, slip, title in zip(axes, (-1, slip_at), ("No slip", f"A slip at move {slip_at}"), strict=True):
        target_map(axis, stairs, slip, estimate, delta, best)
        axis.set_title(title, fontsize=11)
    _explain_targets(figure, axes[0], rf"$\theta_\delta(s)$, $\delta$ = {delta:g}")
    return figure


def target_maps_by_delta(
    stairs: Stairs, slip_at: int, estimate: Estimate, deltas: Sequence[float], best: int
) -> Figure:
    """The same walk with the same slip, one panel per delta."""
    figure, axes = plt.subplots(1, len(deltas), figsize=(10, 4.0), sharey=True)
    for axis, delta in zip(axes, deltas, strict=True):
        target_map(axis, stairs, slip_at, estimate, delta, best)
        axis.set_title(rf"$\delta$ = {delta:g}", fontsize=11)
    _explain_targets(figure, axes[0], r"$\theta_\delta(s)$")
    return figure


def _explain_targets(figure: Figure, first: Axes, adaptive: str) -> None:
    """The legend of target maps."""
    first.set_ylabel("return still to come, R")
    first.plot([], [], "o", color="black", label="filled: in the support")
    first.plot([], [], "o", markerfacecolor="white", color="black", label=r"hollow: $p_d(R|s)=0$")
    handles, labels = first.get_legend_handles_labels()
    names = [{"max": "maximum", "adaptive": adaptive}.get(name, name) for name in labels]
    figure.legend(handles, names, loc="outside lower center", ncols=5, fontsize=10)


def _rows(axes: Sequence[Axes], labels: Sequence[str]) -> None:
    for axis in axes:
        axis.set_yticks(range(len(labels)), labels)
        axis.set_ylim(len(labels) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)


def action_bars(rows: pd.DataFrame, slip_at: int, delta: float) -> Figure:
    """Mean action probabilities over all moves after the slip, for both places of the berries."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.0), sharey=True)
    colours, hatches = (COLORS["good"], COLORS["sky"], "0.45"), ("", "//", "")
    for axis, berries in zip(axes, BERRIES, strict=True):
        for row, (source, rule, _) in enumerate(AGENTS.values()):
            found = select(rows, berries, slip_at, source, rule, delta)
            shares = MEDIOCRE if source == "behaviour" else [found[f"p_{name}"].mean() for name in ACTIONS]
            lefts = np.cumsum([0, *shares[:-1]])
            for share, left, colour, hatch, name in zip(shares, lefts, colours, hatches, ACTIONS, strict=True):
                axis.barh(
                    row,
                    share,
                    0.7,
                    left,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    label=name if row == 0 else None,
                )
        axis.set(title=PLACES[berries], xlabel="mean probability after the slip", xlim=(0, 1))
        axis.title.set_fontsize(11)
    _rows(axes, list(AGENTS))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def return_bubbles(counts: pd.DataFrame, slip_at: int, delta: float) -> Figure:
    """Distribution of returns over all episodes and seeds: area is share, the bar is the mean."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, width_ratios=(3, 2))
    for axis, slip in zip(axes, (-1, slip_at), strict=True):
        for row, (source, rule, style) in enumerate(AGENTS.values()):
            found = select(counts, "beside", slip, source, rule, delta).groupby("counted_return").episodes.sum()
            share = found / found.sum()
            axis.scatter(share.index, [row] * len(share), 900 * share, COLORS[style], alpha=0.55, linewidths=0)
            axis.plot([(share.index * share).sum()] * 2, [row - 0.4, row + 0.4], color="black", linewidth=2.5)
    axes[0].set_title("No forced slip: return of the episode", fontsize=11)
    axes[1].set_title(f"Return after a slip at move {slip_at}", fontsize=11)
    for axis in axes:
        axis.set_xlabel("return (black bar: mean)")
    _rows(axes, list(AGENTS))
    return figure


def impossible_shares(rows: pd.DataFrame, slip_at: int, delta: float) -> Figure:
    """How often each agent asks for a return with p_d(R | s) = 0; one dot per seed, bar: 95% interval of the mean."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    labels = [name for name, (source, *_) in AGENTS.items() if source != "behaviour"]
    for axis, slip in zip(axes, (-1, slip_at), strict=True):
        for row, label in enumerate(labels):
            source, rule, style = AGENTS[label]
            values = select(rows, "beside", slip, source, rule, delta).off_support.to_numpy()
            low, high = bootstrap_interval(values, np.random.default_rng(0))
            axis.plot(values, np.full(len(values), row), "o", color=COLORS[style], alpha=0.35, markersize=5)
            axis.plot([low, high], [row, row], color=COLORS[style], linewidth=6, alpha=0.5)
            axis.plot(values.mean(), row, "|", color="black", markersize=16, markeredgewidth=2.5)
        axis.set(xlim=(-0.03, 1.03), xlabel="share of moves that ask for the impossible")
    axes[0].set_title("No forced slip, all moves", fontsize=11)
    axes[1].set_title(f"After a slip at move {slip_at}", fontsize=11)
    _rows(axes, labels)
    return figure


def delta_lines(rows: pd.DataFrame, slip_at: int) -> Figure:
    """Return after the slip against delta, where the berries lie beside the stairs and where they lie on them."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True)
    deltas = sorted(rows.delta[rows.delta > 0].unique())
    for axis, berries in zip(axes, BERRIES, strict=True):
        for label, (source, rule, style) in AGENTS.items():
            if rule == "modest":
                continue
            values = np.stack(
                [select(rows, berries, slip_at, source, rule, delta).counted_return.to_numpy() for delta in deltas]
            )  # [deltas, seeds]
            band = np.array([bootstrap_interval(row, np.random.default_rng(0)) for row in values])
            marker = MARKERS.get(style, "v") if rule == "adaptive" else ""
            line = LINES.get(style, (0, (1, 1)))
            axis.plot(deltas, values.mean(1), color=COLORS[style], linestyle=line, marker=marker, label=label)
            axis.fill_between(deltas, *band.T, color=COLORS[style], alpha=0.15, linewidth=0)
        axis.set(xscale="log", xlabel=r"$\delta$ (bolder to the right)")
        axis.set_xticks(deltas, [f"{delta:g}" for delta in deltas])
        axis.minorticks_off()
        axis.invert_xaxis()
        axis.set_title(PLACES[berries], fontsize=11)
    axes[0].set(ylabel="mean return after the slip", ylim=(0, None))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=10)
    return figure
