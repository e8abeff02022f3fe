"""The experiment of notebook 02: every network under every target rule, before and after a slip, over seeds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.base.devices import track
from brrcrl_lib.base.files import ROOT, atomic_path, git_revision
from brrcrl_lib.study.toys.stairs import ACTIONS, BERRIES, Stairs
from brrcrl_lib.study.toys.stairs_agents import Episodes, StairsStudy, behave, learn, roll_out
from brrcrl_lib.study.toys.stairs_exact import RULES, Estimate, joint_distribution, table_shape, threshold

RESULTS = ROOT / "data" / "results"
DELTA_RULES = ("modest", "adaptive")
SUBTRACTING_RULES = ("schedule", "modest")


def episode_stream(seed: int, slip_at: int) -> np.random.Generator:
    """Random numbers of test episodes: the same for every agent, and never those of the data (`default_rng(seed)`).

    The closing 1 matters: NumPy pads seeds with zeros, so `default_rng([seed, 0])` would repeat the data's stream.
    """
    return np.random.default_rng([seed, slip_at + 1, 1])


def targets_for(stairs: Stairs, estimate: Estimate, rule: str, delta: float, best: int) -> np.ndarray:
    """What a rule asks for in each state, int [S] (the schedule uses the entry of the start and subtracts)."""
    return threshold(estimate.returns, delta) if rule in DELTA_RULES else np.full(table_shape(stairs), best)


def play(
    stairs: Stairs, estimate: Estimate, rule: str, delta: float, best: int, episodes: int, slip_at: int, seed: int
) -> Episodes:
    """Episodes of one agent: one estimate under one target rule."""
    targets = targets_for(stairs, estimate, rule, delta, best)
    policy, rng = estimate.policy_for(rule, delta), episode_stream(seed, slip_at)
    return roll_out(stairs, policy, targets, episodes, rng, slip_at, subtract=rule in SUBTRACTING_RULES)


def measure(stairs: Stairs, played: Episodes, slip_at: int, policy: np.ndarray | None = None) -> dict[str, float]:
    """Returns, action probabilities, and how often the impossible was asked for, over all episodes of one agent.

    With a forced slip everything but `mean_return` and `reached_top` counts the moves after it only.
    `off_support`: share of moves with p_d(R = target | s) = 0; `unreachable`: with P_d(R >= target | s) = 0.
    """
    after = slip_at + 1
    possible = joint_distribution(stairs).sum(-2)  # p_d(R | s), [S, B]
    at_least = possible[..., ::-1].cumsum(-1)[..., ::-1]
    alive, states = played.alive[after:], tuple(np.moveaxis(played.states[after:], -1, 0))
    asked = (*states, played.targets[after:])
    slipped = played.alive[max(slip_at, 0)]  # who was still climbing when the slip came
    row = {
        "mean_return": played.rewards.sum(0).mean(),
        "reached_top": (played.rewards.max(0) >= stairs.top_reward).mean(),
        "counted_return": played.rewards[after:].sum(0)[slipped].mean(),
    }
    if policy is not None:
        row |= {
            "off_support": (possible[asked] == 0)[alive].mean(),
            "unreachable": (at_least[asked] == 0)[alive].mean(),
        }
        row |= {f"p_{name}": share for name, share in zip(ACTIONS, policy[asked][alive].mean(0), strict=True)}
    return {name: round(float(value), 4) for name, value in row.items()}


def run_study(study: StairsStudy) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Everything the notebook's figures need: one row per agent, slip and seed; and counts of each return."""
    rows: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []

    def note(key: dict[str, Any], stairs: Stairs, played: Episodes, policy: np.ndarray | None) -> None:
        rows.append({**key, **measure(stairs, played, key["slip_at"], policy)})
        slipped = played.alive[max(key["slip_at"], 0)]
        values, times = np.unique(played.rewards[key["slip_at"] + 1 :].sum(0)[slipped], return_counts=True)
        counts.extend({**key, "counted_return": int(v), "episodes": int(n)} for v, n in zip(values, times, strict=True))

    agents = [(rule, delta) for rule in RULES for delta in (study.deltas if rule in DELTA_RULES else (0.0,))]
    for stairs in (Stairs(berries=place) for place in BERRIES):
        learnt, best = learn(stairs, study)
        for slip_at in track(study.slips, desc=f"episodes, berries {stairs.berries}"):
            for seed in range(study.seeds):
                key: dict[str, Any] = {"berries": stairs.berries, "slip_at": slip_at, "seed": seed}
                played = behave(stairs, study.episodes, episode_stream(seed, slip_at), slip_at)
                note({**key, "source": "behaviour", "rule": "none", "delta": 0.0}, stairs, played, None)
                for source, estimates in learnt.items():
                    estimate = estimates[seed]
                    for rule, delta in agents:
                        played = play(stairs, estimate, rule, delta, best[seed], study.episodes, slip_at, seed)
                        tag = {**key, "source": source, "rule": rule, "delta": delta}
                        note(tag, stairs, played, estimate.policy_for(rule, delta))
                        rows[-1]["p_berry_last"] = round(float(estimate.returns[0, 1, 1, 1]), 4)
    return pd.DataFrame(rows), pd.DataFrame(counts)


def record(preset: str = "laptop") -> None:
    """Write the tables that the notebook shows by default; of the counts only those that it draws."""
    rows, counts = run_study(with_preset(StairsStudy, preset))
    rows["preset"], rows["revision"] = preset, git_revision()
    counts = counts[(counts.berries == "beside") & (counts.source != "likelihood") & counts.slip_at.isin([-1, 4])]
    for table, name in ((rows, "stairs.csv"), (counts, "stairs_returns.csv")):
        with atomic_path(RESULTS / name) as temporary:
            table.to_csv(temporary, index=False)


def results(study: StairsStudy, delta: float, slip_at: int, recorded: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The recorded tables if they hold this delta, slip and training, else a run of the study with them."""
    if recorded and study == StairsStudy():
        rows, counts = pd.read_csv(RESULTS / "stairs.csv"), pd.read_csv(RESULTS / "stairs_returns.csv")
        if delta in set(counts.delta) and slip_at in set(counts.slip_at):
            return rows, counts
    if recorded:
        print("These values were not recorded: training and playing now, for some minutes.")
    deltas, slips = {*study.deltas, delta}, {*study.slips, slip_at}
    return run_study(dataclasses.replace(study, deltas=tuple(sorted(deltas)), slips=tuple(sorted(slips))))


def bootstrap_interval(values: np.ndarray, rng: np.random.Generator, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over seeds, [seeds] -> (low, high)."""
    means = rng.choice(values, (2000, len(values))).mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def select(rows: pd.DataFrame, berries: str, slip_at: int, source: str, rule: str, delta: float) -> pd.DataFrame:
    """The rows of one agent in one situation; delta is ignored by rules that have none."""
    wanted = delta if rule in DELTA_RULES else 0.0
    chosen = (rows.berries == berries) & (rows.slip_at == slip_at) & (rows.source == source) & (rows.rule == rule)
    found = rows[chosen & (rows.delta == wanted)]
    if found.empty:
        raise ValueError(f"no results for berries={berries}, slip_at={slip_at}, {source}, {rule}, delta={wanted}")
    return found


SOURCES = {"vanilla": "vanilla", "joint": "BR-RCRL", "likelihood": "BR-RCRL, likelihood", "exact": "exact table"}
"""The estimates in the recorded rows, and what the notebook calls them."""


def summary(rows: pd.DataFrame, column: str, berries: str, slip_at: int, delta: float) -> pd.DataFrame:
    """Means over seeds of one column: estimates down, target rules across."""
    cells = {
        rule: [select(rows, berries, slip_at, source, rule, delta)[column].mean() for source in SOURCES]
        for rule in RULES
    }
    return pd.DataFrame(cells, index=list(SOURCES.values()))
