"""The figures of the theory notebook: they draw what `theory.py` computed and decide nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brrcrl_lib.study.figures.style import COLORS
from brrcrl_lib.study.toys.tabular import (
    Array,
    action_returns,
    adaptive_policy,
    mean,
    policy_values,
    state_returns,
    threshold,
)
from brrcrl_lib.study.toys.theory import lucky_bandit, safe_or_gamble, wilson

FAMILY_STYLE = {
    "even": (COLORS["ours"], "o", "-"),
    "skewed": (COLORS["vanilla"], "s", "--"),
    "lucky": (COLORS["exact"], "^", "-."),
    "uniform beta": (COLORS["data"], "D", ":"),
}

BOLDER = r"$\delta$ (bolder to the right)"
"""Every axis over delta runs downward: the smaller, the more ambitious."""


def bandit_values(wins: Array, deltas: Array, safe: int = 5) -> tuple[Array, Array]:
    """V^pi (deltas, wins) and V^beta (wins) of the lucky bandit's start state."""
    mdp = lucky_bandit(wins, safe=safe)
    returns = action_returns(mdp)
    values = [policy_values(mdp, adaptive_policy(mdp, returns, delta))[0, :, 0] for delta in deltas]
    return np.array(values), mean(state_returns(mdp, returns))[0, :, 0]


def draw_bandit(ax: Axes, win: float, safe: int = 5) -> None:
    """V^pi against delta for one bandit, with V^beta, and the region where pi loses shaded."""
    deltas = np.linspace(0.005, 0.995, 397)
    values, beta = bandit_values(np.array([win]), deltas, safe)
    ax.plot(deltas, values[:, 0], color=COLORS["ours"], label=r"$V^\pi$: conditions on luck")
    ax.axhline(beta[0], color=COLORS["data"], ls=":", label=r"$V^\beta$: behaviour")
    ax.fill_between(deltas, values[:, 0], beta[0], where=values[:, 0] < beta[0] - 1e-9, color=COLORS["vanilla"],
                    alpha=0.3, hatch="//", step="mid", label=r"$V^\pi < V^\beta$")  # fmt: skip
    ax.set(xlabel=BOLDER, ylabel="expected reward", xlim=(1, 0), ylim=(0, 10))
    ax.legend(loc="upper left")


def draw_bandit_map(ax: Axes, safe: int = 5) -> None:
    """V^pi - V^beta over delta and the gamble's probability."""
    wins, deltas = np.linspace(0.01, 0.99, 99), np.linspace(0.01, 0.99, 99)
    values, beta = bandit_values(wins, deltas, safe)
    image = ax.pcolormesh(deltas, wins, (values - beta).T, cmap="RdBu", vmin=-3, vmax=3, rasterized=True)
    ax.contour(deltas, wins, (values - beta).T < -1e-9, levels=[0.5], colors="black", linewidths=1.5)
    ax.text(0.015, 0.42, "too bold", fontsize=10, weight="bold", ha="right")
    ax.text(0.57, 0.77, "too shy", fontsize=10, weight="bold", ha="center")
    ax.set(xlabel=BOLDER, ylabel="chance that the gamble pays 10")
    ax.invert_xaxis()
    ax.grid(False)
    ax.figure.colorbar(image, ax=ax, label=r"$V^\pi - V^\beta$")


def draw_tree(ax: Axes, delta: float, gamble: float = 0.5, win: float = 0.4, prize: int = 3) -> None:
    """The deterministic counter-example as a tree: edges carry beta and pi^delta, boxes carry values."""
    mdp = safe_or_gamble(gamble, win, prize)
    returns = action_returns(mdp)
    policy = adaptive_policy(mdp, returns, delta)
    value, beta_value = policy_values(mdp, policy), mean(state_returns(mdp, returns))
    places = {"root": (0.0, 0.0), "choice": (1.0, 0.55), "prize": (2.1, 1.0), "zero": (2.1, 0.1), "safe": (2.1, -0.75)}
    edges = {
        ("root", "choice"): ("gamble", gamble, policy[0, 0, 0, 0]),
        ("choice", "prize"): ("win", win, policy[1, 0, 1, 0]),
        ("choice", "zero"): ("miss", 1 - win, policy[1, 0, 1, 1]),
        ("root", "safe"): ("safe", 1 - gamble, policy[0, 0, 0, 1]),
    }
    for (start, end), (name, before, after) in edges.items():
        (x0, y0), (x1, y1) = places[start], places[end]
        ax.plot([x0, x1], [y0, y1], color=COLORS["ours"], lw=1 + 5 * after, zorder=1, solid_capstyle="round")
        label = f"{name}: " + rf"$\beta$ {before:.2f}, $\pi$ {after:.2f}"
        ax.text((x0 + x1) / 2, (y0 + y1) / 2, label, ha="center", va="center", zorder=2,
                bbox={"fc": "white", "ec": "none", "pad": 1.5})  # fmt: skip
    box = {"boxstyle": "round,pad=0.5", "fc": "#eef4f8", "ec": "black"}
    theta = threshold(mdp, returns, delta)
    for name, (time, state) in {"root": (0, 0), "choice": (1, 1)}.items():
        where = (time, 0, state)
        lines = [
            rf"$\theta_\delta$ = {theta[where]}",
            rf"$V^\beta$ = {beta_value[where]:.2f}",
            rf"$V^\pi$ = {value[where]:.2f}",
        ]
        ax.text(*places[name], "\n".join(lines), ha="center", va="center", bbox=box, zorder=3)
    for name, payoff in {"prize": prize, "zero": 0, "safe": 1}.items():
        ax.text(*places[name], f"pays {payoff}", ha="center", va="center", zorder=3, bbox={**box, "fc": "white"})
    ax.set(xlim=(-0.3, 2.4), ylim=(-0.92, 1.15))
    ax.axis("off")


def draw_kl(figure: Figure, survey: pd.DataFrame) -> None:
    """KL / bound over delta: median, quartiles, 5-95% and the maximum, for deterministic and stochastic MDPs."""
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (kind, rows) in zip(axes, survey.groupby("transitions"), strict=True):
        table = rows.groupby("delta").mean(numeric_only=True)
        x = table.index
        ax.fill_between(x, table.kl_ratio_p05, table.kl_ratio_p95, color=COLORS["ours"], alpha=0.2, label="5 to 95%")
        ax.fill_between(x, table.kl_ratio_p25, table.kl_ratio_p75, color=COLORS["ours"], alpha=0.4, label="25 to 75%")
        ax.plot(x, table.kl_ratio_p50, color=COLORS["ours"], marker="o", label="median")
        ax.plot(x, rows.groupby("delta").kl_ratio_p100.max(), color=COLORS["vanilla"], ls="--", marker="s",
                label="largest seen")  # fmt: skip
        ax.axhline(1, color="black", lw=1.5, label="the bound (attained by the chain)")
        ax.set(xlabel=BOLDER, ylim=(0, 1.08))
        ax.invert_xaxis()
        ax.set_title(f"{kind} transitions", weight="normal", fontsize=11)
    axes[0].set_ylabel(r"KL / $(-N \log \delta)$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=10)


def draw_violations(figure: Figure, survey: pd.DataFrame) -> None:
    """Share of MDPs with V^pi < V^beta somewhere, with 95% intervals; hollow marks are upper limits of "none seen"."""
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (kind, rows) in zip(axes, survey.groupby("transitions"), strict=True):
        for place, (family, cell) in enumerate(rows.groupby("family")):
            color, marker, line = FAMILY_STYLE[str(family)]
            counts = cell.groupby("delta")[["violated", "mdps"]].sum()
            low, high = 100 * np.array([wilson(*row) for row in counts.itertuples(index=False)]).T
            share = 100 * (counts.violated / counts.mdps).to_numpy()
            share[share == 0] = np.nan
            x = counts.index.to_numpy() + 0.008 * (place - 1)  # side by side, so that no interval hides another
            bars = np.maximum([share - low, high - share], 0)
            ax.errorbar(x, share, bars, color=color, marker=marker, ls=line, capsize=3, label=family)
            none = np.isnan(share)
            ax.plot(x[none], high[none], color=color, marker="v", ls="", mfc="white", label="none seen (upper limit)")
        ax.set(xlabel=BOLDER, yscale="log")
        ax.invert_xaxis()
        ax.set_title(f"{kind} transitions", weight="normal", fontsize=11)
        ax.yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel(r"% of MDPs with $V^\pi(s) < V^\beta(s)$ somewhere")
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    handles["none seen (upper limit)"] = handles.pop("none seen (upper limit)")  # to the end
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=10)


def draw_gains(figure: Figure, survey: pd.DataFrame) -> None:
    """Left: the usual gain at the start. Right: the size of the losses in violating states."""
    gains, losses = figure.subplots(1, 2)
    for kind, rows in survey.groupby("transitions"):
        color, marker, line = FAMILY_STYLE["even" if kind == "deterministic" else "skewed"]
        table = 100 * rows.groupby("delta").mean(numeric_only=True)
        gains.fill_between(table.index, table.gain_p05, table.gain_p95, color=color, alpha=0.15)
        gains.plot(table.index, table.gain_p50, color=color, marker=marker, ls=line, label=f"{kind}: median")
        worst, usual = (100 * rows.groupby("delta")[name].agg(how) for name, how in
                        (("worst_loss", "max"), ("median_loss", "median")))  # fmt: skip
        seen = worst > 1e-6
        losses.plot(worst.index[seen], worst[seen], color=color, marker=marker, ls=line, label=f"{kind}: worst")
        losses.plot(usual.index[seen], usual[seen], color=color, marker=marker, ls=line, mfc="white", alpha=0.7,
                    label=f"{kind}: median")  # fmt: skip
    gains.set(xlabel=BOLDER, ylabel="gain (% of the state's span)", ylim=(0, None))
    gains.invert_xaxis()
    gains.set_title(r"$V^\pi - V^\beta$ at the start (band: 5 to 95%)", weight="normal", fontsize=11)
    losses.set(xlabel=BOLDER, ylabel="loss (% of the state's span)", ylim=(0, None), xlim=gains.get_xlim())
    losses.set_title(r"$V^\beta - V^\pi$ where it is positive", weight="normal", fontsize=11)
    gains.legend()
    losses.legend(fontsize=9)


def draw_alignment(ax: Axes, worst_alignment: Array, worst_gain: Array) -> None:
    """One dot per MDP, (M,) each: the smallest covariance of any state against the smallest gain of any state."""
    edge = 1.05 * np.abs(worst_alignment).max() + 1e-6
    bottom, top = 1.15 * min(worst_gain.min(), -0.05), 1.15 * max(worst_gain.max(), 0.05)
    ax.fill_between([0, edge], bottom, 0, color="0.88", zorder=0)
    lost = worst_gain < -1e-9
    for mask, color, marker, label in ((~lost, "ours", "o", "holds"), (lost, "vanilla", "x", "violated")):
        ax.scatter(worst_alignment[mask], worst_gain[mask], s=18, color=COLORS[color], marker=marker, alpha=0.6,
                   label=f"{label} ({mask.sum():,})")  # fmt: skip
    ax.axvline(0, color="black", lw=1)
    ax.axhline(0, color="black", lw=1)
    ax.set(xlim=(-edge, edge), ylim=(bottom, top), xlabel="smallest covariance of any state (reward)")
    ax.set_ylabel(r"smallest $V^\pi - V^\beta$ (reward)")
    ax.legend(title=r"$V^\pi \geq V^\beta$ everywhere", loc="lower right")
