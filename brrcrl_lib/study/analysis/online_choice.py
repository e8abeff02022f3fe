"""What choosing a knob online is worth: score against evaluation episodes spent, by a bandit over recorded episodes.

A method with a knob that is turned at test time (delta, the target, the rule) has one policy per setting. Who may play
a few episodes before deciding treats the settings as arms of a bandit, as Unifloral does ("A Clean Slate for Offline
Reinforcement Learning", Jackson et al. 2025): pull by UCB, then keep the arm with the best mean. Recorded returns stand
for the episodes, so the curve costs no new ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.benchmark import PAPER_TEXT, RELEASED, RULES
from brrcrl_lib.study.claims.scores import normalised_score
from brrcrl_lib.study.experiments.results import select

KNOBS: dict[str, tuple[dict[str, Any], str, Any]] = {
    RELEASED: ({"method": "br_rcrl", "objective": "authors", "target": "adaptive"}, "delta", 0.1),
    PAPER_TEXT: ({"method": "br_rcrl", "objective": "paper", "target": "adaptive"}, "delta", 0.1),
    "vanilla": ({"method": "vanilla"}, "target", RULES["adaptive"]["target"]),
    "RvS-R": ({"method": "rvs"}, "share", 1.0),
    "DT": ({"method": "dt"}, "share", 1.0),
    "IQL": ({"method": "iql"}, "target", None),
    "TD3+BC": ({"method": "td3_bc"}, "target", None),
}
"""Method: (which rows, the column that is its knob, its default). The last two have none at test time."""


def ucb_curve(
    arms: Sequence[np.ndarray], pulls: int, rng: np.random.Generator, *, default: int = 0, repeats: int = 200
) -> np.ndarray:
    """True mean of the arm that is kept after 0, 1, ..., `pulls` episodes, [pulls + 1], averaged over `repeats`.

    Each pull takes the arm with the largest mean + width sqrt(2 ln t / n), arms without a pull first and in random
    order (UCB1; width is the spread of all returns), and draws one of its recorded returns. The arm that is kept has
    the best mean so far; before the first pull it is the default.
    """
    truth = np.array([np.mean(arm) for arm in arms])
    width = float(np.ptp(np.concatenate([np.asarray(arm, float) for arm in arms])))
    counts, sums = np.zeros((repeats, len(arms))), np.zeros((repeats, len(arms)))
    order, every = rng.random((repeats, len(arms))), np.arange(repeats)
    curve = [truth[default]]
    for pull in range(pulls):
        with np.errstate(divide="ignore", invalid="ignore"):
            means = sums / counts
            bound = np.where(counts > 0, means + width * np.sqrt(2 * np.log(pull) / counts), np.inf)
        untried = np.where(counts > 0, -1.0, order)
        chosen = np.where((counts == 0).any(1), untried.argmax(1), bound.argmax(1))  # [repeats]
        drawn = np.array([arms[arm][rng.integers(len(arms[arm]))] for arm in chosen])
        counts[every, chosen] += 1
        sums[every, chosen] += drawn
        kept = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf).argmax(1)
        curve.append(truth[kept].mean())
    return np.array(curve)


def arms_of(rows: pd.DataFrame, knob: str, default: Any) -> tuple[list[np.ndarray], int]:
    """Normalised scores of the recorded episodes by setting of the knob, and which of them is the default."""
    settings = list(dict.fromkeys(rows[knob])) if knob in rows and default is not None else [None]
    chosen = [rows if value is None else rows[rows[knob] == value] for value in settings]
    env = str(rows["env"].iloc[0])
    arms = [np.concatenate([normalised_score(env, json.loads(text)) for text in part["returns"]]) for part in chosen]
    return arms, settings.index(default) if default in settings else 0


def choice_curves(
    rows: pd.DataFrame, pulls: int = 40, seed: int = 0, knobs: Mapping[str, tuple[dict[str, Any], str, Any]] = KNOBS
) -> pd.DataFrame:
    """Score after so many episodes spent on choosing, one column per method, averaged over trainings.

    A training takes part where its method was recorded with as many settings as anywhere, and a dataset where every
    method has one, so that all columns are over the same.
    """
    curves: dict[str, dict[str, list[np.ndarray]]] = {}
    for name, (wanted, knob, default) in knobs.items():
        trainings = {
            key: arms_of(part, knob, default) for key, part in select(rows, **wanted).groupby(["dataset", "train_seed"])
        }
        most = max((len(arms) for arms, _ in trainings.values()), default=0)
        for (dataset, _), (arms, place) in trainings.items():
            if len(arms) == most:
                curve = ucb_curve(arms, pulls, np.random.default_rng(seed), default=place)
                curves.setdefault(name, {}).setdefault(str(dataset), []).append(curve)
    shared = set.intersection(*(set(found) for found in curves.values())) if curves else set()
    averaged = {
        name: np.mean([np.mean(found[dataset], axis=0) for dataset in sorted(shared)], axis=0)
        for name, found in curves.items()
        if shared
    }
    return pd.DataFrame(averaged, index=pd.RangeIndex(pulls + 1, name="episodes"))
