"""The figure of notebook 01's last section: a new behaviour policy, an old p(R|s,a)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from brrcrl_lib.study.claims.statistics import mean_interval
from brrcrl_lib.study.figures.style import COLORS

LOOKS = {  # answer: (colour, line, marker, label)
    "vanilla": ("vanilla", "--", "s", "vanilla"),
    "bayes, kept": ("sky", ":", "v", "Bayes, kept"),
    "bayes, cloned": ("good", "-.", "^", "Bayes, cloned"),
    "bayes, known": ("ours", "-", "o", "Bayes, known"),
    "retrained": ("accent", "-", "D", "retrained"),
    "policy alone": ("data", "-", "x", "new policy alone"),
    "exact vanilla": ("exact", ":", "", "vanilla without any learning error"),
}


def _intervals(groups: list[pd.DataFrame], answer: str) -> np.ndarray:
    """Mean, low and high end of Student's interval over worlds, per group: [3, groups]."""
    return np.array([mean_interval(group[answer]) or (np.nan,) * 3 for group in groups]).T


def draw_shift(axis: Axes, rows: pd.DataFrame) -> None:
    """Error of every answer against the strength of the shift, in one scenario."""
    strengths, groups = zip(*rows.groupby("strength"), strict=True)
    for answer, (color, line, marker, label) in LOOKS.items():
        mean, low, high = _intervals(list(groups), answer)
        axis.plot(strengths, mean, line, marker=marker, color=COLORS[color], label=label)
        axis.fill_between(strengths, low, high, color=COLORS[color], alpha=0.15, linewidth=0)
    axis.set(xlabel="strength of the shift", xticks=strengths)


def draw_unseen(axis: Axes, rows: pd.DataFrame, answers: tuple[str, ...]) -> None:
    """Error by part of the state space and scenario; scenarios are lettered in the order of the rows."""
    letters = dict(zip(rows["scenario"].unique(), "ABC", strict=False))
    names, groups = zip(*rows.groupby(["part", "scenario"], sort=False), strict=True)
    order = sorted(range(len(names)), key=lambda place: (names[place][0] != "seen", place))
    for shift, answer in zip((-0.2, 0, 0.2), answers, strict=True):
        color, _, marker, _ = LOOKS[answer]
        mean, low, high = _intervals([groups[place] for place in order], answer)
        where = np.arange(len(order)) + shift
        axis.errorbar(where, mean, [mean - low, high - mean], fmt=marker, color=COLORS[color], capsize=3)
    axis.set_xticks(range(len(order)), [letters[names[place][1]] for place in order])
    axis.axvline(len(letters) - 0.5, color="black", linewidth=1)
    axis.set_xlabel("up was seen here  |  up was never seen here")
    axis.grid(visible=False, axis="x")
