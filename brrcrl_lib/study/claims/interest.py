"""The smallest effect of interest of every claim, and the paper's own effect, both stated before any row is read.

Where the paper reports an effect, half of it would be worth reporting again, so that is what we look for; but never
more than a common cap. Where it reports none, the cap itself. A difference below it is "too small", however
significant: +16 between two robots that stand still says nothing about walking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from brrcrl_lib.study.claims.paper_tables import TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_TOP_SHARES
from brrcrl_lib.study.claims.scores import normalised_std, reference

ROBOT_CAP = 5.0
"""Points of normalised score: a twentieth of the way from a random policy to D4RL's expert, and about as much as two
runs of a published method differ on D4RL."""
GAME_CAP = 2.0
"""Points of human-normalised score. Games are smaller: the kit's players reach 1 to 45 of 100 points, so five would be
all there is to see in two of the four."""
RANGE_CAP = 10.0
"""Per cent of the range of targets and returns in the traces: the width of a line in the paper's Figure 5."""
TOY_CAP = 2.0
"""Per cent: of total variation in notebook 01, of the return that is left after a slip in notebook 02."""


@dataclass(frozen=True)
class Interest:
    """What would matter, in points or per cent, and the effect that the paper reports per dataset (None: no number)."""

    points: float
    reason: str
    paper: pd.Series | None = None

    def unit(self, names: list[str]) -> float | None:
        """The paper's mean effect on those of our datasets that it has too, else on all of its own."""
        if self.paper is None:
            return None
        shared = self.paper[[name for name in self.paper.index if name in names]]
        return float((shared if len(shared) else self.paper).mean())


def half_of(paper: pd.Series, cap: float, where: str) -> Interest:
    """Half of the paper's mean effect, at most `cap`."""
    mean = float(paper.mean())
    points = min(cap, mean / 2)
    limit = f"; no more than {cap:g} is asked for" if mean / 2 > cap else ""
    return Interest(points, f"half of the paper's own effect ({where}: {mean:+.1f} on average){limit}", paper)


def _over(table: Any, ours: str, theirs: str) -> pd.Series:
    """What one line of a table is above another, per dataset."""
    return table.loc[ours] - table.loc[theirs]


def _game_points(ours: str, theirs: list[str]) -> pd.Series:
    """Table 2's effect over the best of some rivals, from its units (Mnih's human scores) to ours (Wang's)."""
    table: Any = TABLE_2
    points = table.loc[ours] - table.loc[theirs].max()
    found: dict[str, float] = {}
    for game in map(str, TABLE_2):
        low, high, _ = reference(game, paper=True)
        found[game] = float(normalised_std(game, points[game] / 100 * (high - low)))
    return pd.Series(found)


def _removed(model: str) -> pd.Series:
    """What all trajectories earn over the best 20% of them, medium-replay."""
    table: Any = TABLE_TOP_SHARES.loc[model]
    return (table.loc["100%"] - table.loc["20%"]).rename(lambda world: f"{world} medium-replay")


_NO_NUMBER = "the paper gives no number"

INTERESTS: dict[str, Interest] = {
    "sampling bias": Interest(TOY_CAP, f"{_NO_NUMBER}; 2% of total variation is what 3 more rare samples buy"),
    "causal": Interest(TOY_CAP, f"{_NO_NUMBER}; 2% of total variation, as for rare returns"),
    "after a slip": Interest(TOY_CAP, f"{_NO_NUMBER}; 2% of the return that is left is less than one berry in seven"),
    "imitation": half_of(_over(TABLE_1, "BR-RCRL", "10% BC"), ROBOT_CAP, "Table 1, over 10% BC"),
    "vanilla": half_of(_over(TABLE_1, "BR-RCRL", "DT"), ROBOT_CAP, "Table 1, over DT"),
    "games": half_of(_game_points("BR-RCRL", ["BC", "DT"]), GAME_CAP, "Table 2, over the better of BC and DT"),
    "max": half_of(_over(TABLE_3, "adaptive, δ = 0.1", "max"), ROBOT_CAP, "Table 3"),
    "DT scheduler": half_of(_over(TABLE_3, "adaptive, δ = 0.1", "DT scheduler"), ROBOT_CAP, "Table 3"),
    "delta": Interest(ROBOT_CAP, f"{_NO_NUMBER} (Figure 4 is a plot); 5 points of score"),
    "delta in games": Interest(GAME_CAP, f"{_NO_NUMBER} (Figure 4 is a plot); 2 points of human-normalised score"),
    "impossible targets": Interest(GAME_CAP, f"{_NO_NUMBER}; 2 points of human-normalised score"),
    "match": Interest(RANGE_CAP, f"{_NO_NUMBER}; a tenth of the range of targets and returns"),
    "rise": Interest(RANGE_CAP, f"{_NO_NUMBER}; a tenth of the range of targets and returns"),
    "middle": Interest(40.0, "the first target lies between the 10th and the 90th percentile: 50% give or take 40"),
    "without L1": half_of(_over(TABLE_4, "full model", "without L1"), ROBOT_CAP, "Table 4"),
    "uniform negatives": half_of(_over(TABLE_4, "full model", "uniform negatives"), ROBOT_CAP, "Table 4"),
    "without the reparameterisation": half_of(
        _over(TABLE_4, "full model", "without the reparameterisation"), ROBOT_CAP, "Table 4"
    ),
    "low returns": half_of(_removed("BR-RCRL"), ROBOT_CAP, "appendix, all trajectories over the best 20%"),
    "low returns, rivals": Interest(ROBOT_CAP, "the paper's DT changes by less than 1 point; alike within 5 points"),
    "choices": Interest(ROBOT_CAP, "choices that the paper does not mention; 5 points of score"),
}


def table() -> pd.DataFrame:
    """All of them, for a reader."""
    return pd.DataFrame(
        {name: {"smallest effect of interest": f"{found.points:.1f}", "why": found.reason}
         for name, found in INTERESTS.items()}
    ).T  # fmt: skip
