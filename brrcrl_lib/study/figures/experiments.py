"""Figures of notebooks 07 to 11 and 14: settings side by side, sweeps, target against observed return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection

from brrcrl_lib.study.claims.objectives import NAMES as OBJECTIVES
from brrcrl_lib.study.claims.paper_claims import Judged
from brrcrl_lib.study.claims.statistics import Effect
from brrcrl_lib.study.figures.style import COLORS
from brrcrl_lib.worlds import TIME_LIMIT

STYLES = {
    "authors": (COLORS["ours"], "o", "-"),
    "paper": (COLORS["sky"], "^", "--"),
    "Monte Carlo": (COLORS["ours"], "o", "-"),
    "distributional TD": (COLORS["vanilla"], "s", "--"),
}
METHOD_STYLES = {
    "BR-RCRL": (COLORS["ours"], "o", "-"),
    "vanilla, DT scheduler": (COLORS["vanilla"], "s", "--"),
    "vanilla, adaptive": (COLORS["schedule"], "^", "-."),
    "cloning": (COLORS["data"], "D", ":"),
}


def finding(text: str, shown: bool, recorded: bool) -> str:
    """A headline that a person wrote about the recorded rows; refused where they do not show it, neutral elsewhere."""
    if not recorded:
        return "This run's own numbers"
    if not shown:
        raise ValueError(f"the rows no longer show what this headline says; write another: {text}")
    return text


def draw_settings(axis: Axes, lines: pd.DataFrame, names: Sequence[str], ours: int = 1) -> None:
    """Mean return and 95% interval of each setting, its training seeds as white points.

    `lines` are those of one dataset from `claims.summary.summarise`. `names` lists the settings from top to bottom;
    the first `ours` are marked, and one without a line leaves a gap.
    """
    for _, line in lines.iterrows():
        position, marked = names.index(line["setting"]), line["setting"] in names[:ours]
        color = COLORS["ours" if marked else "data"]
        axis.plot([line["low"], line["high"]], [position] * 2, color=color, lw=6, alpha=0.35, solid_capstyle="butt")
        axis.plot(line["return"], position, "D" if marked else "o", color=color, ms=8, mec="black")
    sns.stripplot(lines.explode("seeds"), x="seeds", y="setting", order=names, orient="h", jitter=False, size=4,
                  color="white", edgecolor="black", linewidth=0.8, ax=axis)  # fmt: skip
    axis.set(xlabel="return", ylabel="", ylim=(len(names) - 0.4, -0.6))
    axis.grid(visible=False, axis="y")


def delta_axis(axis: Axes) -> None:
    """A logarithmic axis for delta; ambition grows to the right, in every figure."""
    axis.set(xscale="log", xlabel="δ (smaller asks for more)", xlim=(1.2, 0.0008))
    axis.set_xticks([0.9, 0.3, 0.1, 0.01, 0.001], ["0.9", "0.3", "0.1", "0.01", "0.001"])
    axis.minorticks_off()


def draw_sweep(axis: Axes, summary: pd.DataFrame, objective: str) -> None:
    """Return against delta (ambition grows to the right), 95% interval as a band, seeds as points."""
    color, marker, line = STYLES[objective]
    delta = summary["setting"].astype(float).to_numpy()
    axis.fill_between(delta, summary["low"], summary["high"], color=color, alpha=0.15, lw=0)
    axis.plot(delta, summary["return"], line, color=color, marker=marker, ms=5,
              label=OBJECTIVES.get(objective, objective))  # fmt: skip
    for position, seeds in zip(delta, summary["seeds"], strict=True):
        axis.plot([position] * len(seeds), seeds, marker, ms=3, mfc="white", mec=color, mew=0.8)
    delta_axis(axis)


def draw_match(axis: Axes, trace: pd.DataFrame, most: int = 1500) -> PathCollection:
    """Target against observed return, coloured by timestep; points near a cut are hollow triangles."""
    chosen = trace.iloc[np.linspace(0, len(trace) - 1, min(most, len(trace))).round().astype(int)]
    calm, ending = chosen[~chosen["near_cut"]], chosen[chosen["near_cut"]]
    both = chosen[["observed", "target"]].to_numpy()
    ends = [both.min(), both.max()]
    axis.plot(ends, ends, color=COLORS["exact"], lw=1.2, ls=":", label="observed = target")
    dots = axis.scatter(calm["observed"], calm["target"], c=calm["step"], s=7, cmap="viridis", vmin=0, vmax=TIME_LIMIT)
    axis.scatter(
        ending["observed"],
        ending["target"],
        s=14,
        marker="^",
        facecolors="none",
        lw=0.6,
        edgecolors=COLORS["vanilla"],
        label="near the time limit, where the observed return is cut off",
    )
    axis.set(xlabel="observed return", ylabel="target")
    return dots


def draw_course(axis: Axes, trace: pd.DataFrame, most: int = TIME_LIMIT) -> None:
    """Mean target and mean observed return at every timestep, while a fifth of the episodes or more are running."""
    running = trace.groupby("step").size() / trace.groupby(["seed", "episode"]).ngroups
    steps = trace[trace["step"] < most].groupby("step")[["target", "observed"]].mean()
    steps = steps[running[steps.index] >= 0.2]
    axis.plot(steps.index, steps["target"], color=COLORS["ours"], label="target")
    axis.plot(steps.index, steps["observed"], "--", color=COLORS["vanilla"], label="observed")
    axis.set(xlabel="timestep")
    share = axis.twinx()
    axis.fill_between([], [], color=COLORS["data"], alpha=0.3, lw=0, label="share of episodes running")
    share.fill_between(running.index, running, color=COLORS["data"], alpha=0.15, lw=0)
    share.set_ylim(0, 1)
    share.set_yticks([])
    share.grid(visible=False)
    share.spines["right"].set_visible(False)


def draw_effects(
    axis: Axes, effects: Mapping[str, Effect], names: Sequence[str], signs: Mapping[str, int] | None = None
) -> None:
    """Change of normalised score with its 95% interval, one line per change; a dash where it was not measured.

    Filled triangles are significant: `signs` has 1 or -1 for them.
    """
    axis.axvline(0, color=COLORS["exact"], lw=1.2, ls=":")
    for position, name in enumerate(reversed(names)):
        if name not in effects:
            axis.text(0.5, position, "–", size=9, color="0.6", va="center", ha="center",
                      transform=axis.get_yaxis_transform())  # fmt: skip
            continue
        effect, sign = effects[name], (signs or {}).get(name, 0)
        color = {1: COLORS["good"], -1: COLORS["vanilla"], 0: COLORS["data"]}[sign]
        if effect.low is not None and effect.high is not None:
            axis.plot([effect.low, effect.high], [position] * 2, color=color, lw=3)
        axis.plot(effect.estimate, position, {1: ">", -1: "<", 0: "o"}[sign], color=color, ms=9, mec="black",
                  mfc=color if sign else "white")  # fmt: skip
    axis.set_yticks(range(len(names)), list(reversed(names)))
    axis.set_ylim(-0.6, len(names) - 0.4)
    axis.grid(visible=False, axis="y")


def draw_shares(axis: Axes, summary: pd.DataFrame, methods: Sequence[str], shares: Sequence[str]) -> None:
    """Return against the share of trajectories kept, one line per method with its 95% interval and seeds."""
    for offset, method in zip(np.linspace(-0.12, 0.12, len(methods)), methods, strict=True):
        color, marker, line = METHOD_STYLES[method]
        rows = summary.set_index("setting")
        known = [share for share in shares if f"{method}, {share}" in rows.index]
        chosen = rows.loc[[f"{method}, {share}" for share in known]]
        place = np.array([shares.index(share) for share in known]) + offset
        bars = np.abs(np.stack([chosen["return"] - chosen["low"], chosen["high"] - chosen["return"]]))
        axis.errorbar(place, chosen["return"], yerr=bars, color=color, marker=marker, ls=line, capsize=3, lw=1.6,
                      label=method)  # fmt: skip
        for x, seeds in zip(place, chosen["seeds"], strict=True):
            axis.plot([x] * len(seeds), seeds, marker, ms=3, mfc="white", mec=color, mew=0.8)
    axis.set_xticks(range(len(shares)), list(shares))
    axis.set(xlabel="best trajectories kept", xlim=(-0.4, len(shares) - 0.6))


VERDICT_STYLES = {
    "holds": (COLORS["ours"], "o"),
    "does not hold": (COLORS["vanilla"], "s"),
    "mixed": (COLORS["accent"], "D"),
    "not decided": ("0.45", "o"),
    "not tested yet": ("0.7", "x"),
}
"""Colour and marker of each verdict; a hollow grey circle decides nothing."""


def draw_verdicts(axis: Axes, judged: Sequence[Judged], reach: float = 4.0) -> None:
    """Every claim on a line: its effect in units of the paper's own, with its 95% interval, coloured by verdict.

    Effects beyond `reach` are drawn at the edge with an arrow. A claim without an effect has its verdict in words; one
    whose paper effect is not a number is marked with a star: its unit is twice the smallest effect of interest.
    """
    axis.axvline(0, color=COLORS["exact"], lw=1.0)
    axis.axvline(1, color=COLORS["exact"], lw=1.2, ls="--")
    for position, found in enumerate(judged):
        color, marker = VERDICT_STYLES[found.word]
        if found.relative is None:
            how = "exact: " if found.exact else ""
            axis.plot(0.94 * -reach, position, marker, color=color, ms=8, mec=color, mfc=_face(found.word, color))
            axis.text(0.9 * -reach, position, f"{how}{found.word}", va="center", fontsize=9, color="0.25")
            continue
        low, high = (float(np.clip(value, -reach, reach)) for value in (found.relative.low, found.relative.high))
        axis.plot([low, high], [position] * 2, color=color, lw=4, alpha=0.45, solid_capstyle="butt")
        for end, value, tip in ((-reach, found.relative.low, "<"), (reach, found.relative.high, ">")):
            if abs(value) > reach and np.sign(value) == np.sign(end):
                axis.plot(end, position, tip, color=color, ms=6, clip_on=False)
        place = float(np.clip(found.relative.estimate, -reach, reach))
        axis.plot(place, position, marker, color=color, ms=9, mec=color, mew=1.5, mfc=_face(found.word, color))
    stars = ["" if found.paper_effect is not None or found.relative is None else " *" for found in judged]
    axis.set_yticks(range(len(judged)), [f"{f.claim.short}{star}" for f, star in zip(judged, stars, strict=True)])
    axis.set(xlim=(-reach, reach), ylim=(len(judged) - 0.4, -0.6))
    axis.set_xlabel("effect: 0 is none, 1 (dashed) is the paper's own")
    axis.grid(visible=False, axis="y")
    for name in dict.fromkeys(found.word for found in judged):
        color, marker = VERDICT_STYLES[name]
        axis.plot([], [], marker, color=color, mec=color, mfc=_face(name, color), ms=8, label=name)
    axis.legend(loc="upper right", bbox_to_anchor=(1.02, -0.09), ncols=5, fontsize=9, columnspacing=1.0)


def _face(word: str, color: str) -> str:
    return "white" if word == "not decided" else color
