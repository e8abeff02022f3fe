"""The causal perspective (the paper's Section 4.4): the behaviour policy p(a|s) changes, and p(R|s,a) stays.

In the causal order s -> a -> R a new policy replaces one factor, p(a|s), and leaves p(R|s,a) alone. So what was learned
about the old policy's data (worlds of rare_worlds.py) can be carried over to the new one's answer p(a|s,R=1):

    vanilla        p(a|s,R) has no factor to replace, and stays as it was
    bayes, kept    both factors stay as they were: nobody said that the policy changed
    bayes, cloned  p(a|s) is replaced by a network trained on the new policy's actions; p(R|s,a) stays
    bayes, known   p(a|s) is replaced by the new policy itself; p(R|s,a) stays
    retrained      vanilla again from scratch, on the new policy's own returns: what transfer could save
    policy alone   the new policy itself, whatever R is: what the old p(R|s,a) must beat to be worth anything

Random worlds are the units: each has its own habit, reward, new habit, data and networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.base.devices import generator, track
from brrcrl_lib.base.files import ROOT, git_revision, write_csv
from brrcrl_lib.study.toys.rare_worlds import SCENARIOS, Function, World, draw_dataset, make_world, random_wave
from brrcrl_lib.study.toys.sampling_bias import METHODS, Model, SamplingBias, estimated_posterior, fit
from brrcrl_lib.study.toys.tabular import Array, TabularMDP, action_returns, adaptive_policy, chance, threshold

RESULTS = ROOT / "data" / "results" / "causal_shift.csv"
ANSWERS = ("vanilla", "bayes, kept", "bayes, cloned", "bayes, known", "retrained")
NEVER = -30.0
"""Log-odds of an action that no dataset will ever hold."""


@dataclass(frozen=True)
class CausalShift:
    """How many worlds, how many rare samples, and which shifts."""

    worlds: int = 20
    """Random worlds per scenario."""
    rare_samples: int = 300
    """R=1 samples in each dataset."""
    strengths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """How far the habit moves towards another one: 0 is the old policy, 1 an unrelated one."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"worlds": 3, "rare_samples": 30, "strengths": (0.0, 1.0)},
        "paper": {"worlds": 100},
    }


def shifted(world: World, other: Function, strength: float) -> World:
    """The same reward under another behaviour policy, whose log-odds lie between the old habit and `other`."""
    return replace(world, habit=lambda states: (1 - strength) * world.habit(states) + strength * other(states))


def never_up(world: World) -> World:
    """The same reward under a policy that never goes up where the first feature is positive."""
    return replace(world, habit=lambda states: torch.where(states[..., 0] > 0, NEVER, world.habit(states)))


def twin(world: World) -> World:
    """Another reward for `up` where `never_up` never goes up: no data of that policy tells the two worlds apart.

    There the log-odds u = level + lift of `up` turn into -u, while d = level - lift of `down` stays.
    """

    def change(before: Function, otherwise: Function) -> Function:
        return lambda states: torch.where(states[..., 0] > 0, -otherwise(states), before(states))

    return replace(world, level=change(world.level, world.lift), lift=change(world.lift, world.level))


def answers(old: dict[str, Model], retrained: dict[str, Model], new: World, states: Tensor) -> dict[str, Tensor]:
    """p(up|s,R=1) under the new policy, as each method answers it. Models by method; [D, n, dims] -> [D, n] each."""
    bayes = old["bayes"]
    swapped: Model = {**bayes, "prior": retrained["bayes"]["prior"]}
    return {
        "vanilla": estimated_posterior(old["vanilla"], states),
        "bayes, kept": estimated_posterior(bayes, states),
        "bayes, cloned": estimated_posterior(swapped, states),
        "bayes, known": estimated_posterior(bayes, states, new.habit(states)),
        "retrained": estimated_posterior(retrained["vanilla"], states),
    }


def run_shifts(config: CausalShift, preset: str) -> pd.DataFrame:
    """Total variation to the exact new answer: one row per world, shift and part of the state space."""
    training = with_preset(SamplingBias, preset, datasets=config.worlds)
    rows = []
    for scenario in track(list(SCENARIOS), desc="shifts of the policy"):
        for place, errors in _of_scenario(scenario, config, training):
            columns = {name: [round(x, 4) for x in error.tolist()] for name, error in errors.items()}
            for world in range(config.worlds):
                row = {"scenario": scenario, **place, "seed": world, **{name: x[world] for name, x in columns.items()}}
                rows.append(row | {"preset": preset, "revision": git_revision()})
    return pd.DataFrame(rows)


def _of_scenario(
    scenario: str, config: CausalShift, training: SamplingBias
) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """Where (shift, strength, part of the states) and the mean error there of every answer, [D] each.

    Two more need no learning: `exact vanilla`, the old policy's exact answer, and `policy alone`.
    """
    g = generator(0)
    world = make_world(scenario, config.worlds, training.state_dims, training.gap, training.roughness, g)
    other = random_wave(config.worlds, training.state_dims, training.roughness, g)
    states = torch.randn(config.worlds, training.test_states, training.state_dims, generator=g)

    def learn(world: World) -> dict[str, Model]:
        data = draw_dataset(world, config.worlds, training.samples, config.rare_samples, g)
        return {method: fit(method, data, training, g) for method in METHODS}

    unseen = states[..., 0] > 0  # [D, n]
    everywhere = torch.ones_like(unseen)
    old, blind = learn(world), learn(never_up(world))
    for strength in config.strengths:
        new = shifted(world, other, strength)
        retrained = learn(new)
        cases = [("habit", world, old, "all", everywhere)]
        if strength == config.strengths[-1]:
            cases += [("unseen", never_up(world), blind, "seen", ~unseen)]
            cases += [("unseen", never_up(world), blind, "never seen", unseen)]
        for shift, before, models, part, where in cases:
            exact = {"exact vanilla": before.posterior(states), "policy alone": torch.sigmoid(new.habit(states))}
            found = {**answers(models, retrained, new, states), **exact}
            gaps = {name: (answer - new.posterior(states)).abs() for name, answer in found.items()}
            errors = {name: (gap * where).sum(1) / where.sum(1) for name, gap in gaps.items()}
            yield {"shift": shift, "strength": strength, "part": part}, errors


# -- more than one decision ----------------------------------------------------------------------------------------


def stale_returns(old: TabularMDP, new: TabularMDP, delta: float) -> dict[str, Array]:
    """Total variation to pi^delta of the new policy where p(R|s,a) comes from the old one's episodes: (N, M, S) each.

    R counts the rest of the episode, so p(R|s,a) contains the policy's later decisions. Only at the last decision is it
    the world's alone. `old` and `new` differ in `behaviour`; theta_delta is the new policy's.
    """
    before, after = action_returns(old), action_returns(new)
    exact = adaptive_policy(new, after, delta)
    reaching = chance(before, threshold(new, after, delta))  # P(R >= theta|s,a) in the old episodes
    joints = {"vanilla": old.behaviour * reaching, "bayes, known": new.behaviour * reaching}
    return {name: np.abs(joint / joint.sum(-1, keepdims=True) - exact).sum(-1) / 2 for name, joint in joints.items()}


# -- recording -----------------------------------------------------------------------------------------------------


def record(path: Path = RESULTS) -> None:
    """Recompute the recorded results (preset `laptop`) and write them: about a minute on one core."""
    write_csv(path, run_shifts(CausalShift(), "laptop").to_dict("records"))  # type: ignore[arg-type]
