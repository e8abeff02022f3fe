"""The states right after a point was won or lost, and which returns ever followed them.

The paper's example of an impossible target is a game of Pong that is nearly lost. With a discount the argument needs
no lost game: the next point is so far away that hardly any return is left to be had.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def after_points(rewards: Any, lengths: Any, within: int = 10) -> dict[str, np.ndarray]:
    """Steps 1 to `within` after a point `lost` (a reward below zero) or `won`, in the same game: indices [n] each.

    rewards: [steps], games one after another; lengths: [games].
    """
    values, counts = np.asarray(rewards), np.asarray(lengths, dtype=np.int64)
    game = np.repeat(np.arange(len(counts)), counts)
    found = {}
    for name, hit in (("lost", values < 0), ("won", values > 0)):
        later = (np.flatnonzero(hit)[:, None] + np.arange(1, within + 1)).ravel()
        origin = np.repeat(np.flatnonzero(hit), within)
        inside = later < len(values)
        later, origin = later[inside], origin[inside]
        found[name] = np.unique(later[game[later] == game[origin]])
    return found


def share_reaching(rtg: Any, target: float) -> float:
    """Share of the steps whose reward-to-go [n] is at least `target`."""
    values = np.asarray(rtg)
    return float((values >= target).mean()) if len(values) else 0.0


def reach_table(rtg: Any, places: dict[str, np.ndarray], targets: dict[str, float]) -> pd.DataFrame:
    """How often each target was ever reached: targets down, `places` (indices into `rtg` [steps]) across, as shares."""
    values = np.asarray(rtg)
    return pd.DataFrame(
        {
            place: {name: share_reaching(values[steps], value) for name, value in targets.items()}
            for place, steps in places.items()
        }
    )


def earliest_next_point(rewards: Any, lengths: Any) -> int | None:
    """The fewest steps between two points of one game; None if no game has two."""
    values, counts = np.asarray(rewards), np.asarray(lengths, dtype=np.int64)
    scored = np.flatnonzero(values)
    game = np.repeat(np.arange(len(counts)), counts)[scored]
    gaps = np.diff(scored)[np.diff(game) == 0]
    return int(gaps.min()) if len(gaps) else None
