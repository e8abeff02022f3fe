"""Exact return distributions on the stairs, the threshold theta_delta, and what a target asks for.

Tables are indexed by state: the first three axes, written [S], are (height, steps left, hurt). A is the number of
actions, B the number of return buckets 0, 1, ..., B - 1. Returns are whole numbers here, so buckets are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.study.toys.stairs import ACTIONS, MEDIOCRE, Stairs, State

RULES = {
    "max": "always ask for the best return in the data",
    "schedule": "Decision Transformer: start there, subtract each reward received",
    "modest": "the same schedule, started at theta_delta of the first state",
    "adaptive": "BR-RCRL: ask for R >= theta_delta(s), anew in every state",
}


def table_shape(stairs: Stairs) -> tuple[int, int, int]:
    return stairs.height + 1, stairs.budget + 1, 2


def living_states(stairs: Stairs) -> Iterator[State]:
    """Every state in which a move is due, fewest steps left first (the order of dynamic programming)."""
    for left, height, hurt in product(range(1, stairs.budget + 1), range(stairs.height), range(2)):
        yield State(height, left, hurt)


@lru_cache
def joint_distribution(stairs: Stairs, behaviour: tuple[float, ...] = MEDIOCRE) -> np.ndarray:
    """p_d(a, R | s) under the behaviour policy, by dynamic programming over the steps left: [S, A, B].

    The distribution of a return is that of the next return, shifted by the reward. Over states: all R = 0.
    """
    if len(behaviour) != len(ACTIONS) or min(behaviour) < 0 or not np.isclose(sum(behaviour), 1):
        raise ValueError(
            f"behaviour needs one probability for each of {', '.join(ACTIONS)}, summing to 1; got {behaviour}"
        )
    buckets = stairs.top_reward + 2 * stairs.budget + 1  # no return can be larger: at most two berries a step
    returns = np.zeros((*table_shape(stairs), buckets))  # p(R | s)
    returns[..., 0] = 1.0
    joint = np.zeros((*table_shape(stairs), len(ACTIONS), buckets))
    for state in living_states(stairs):
        for action, probability in enumerate(behaviour):
            for outcome in stairs.outcomes(state, action):
                shifted = np.roll(returns[outcome.state], outcome.reward)
                joint[state][action] += probability * outcome.probability * shifted
        returns[state] = joint[state].sum(0)
    largest = np.flatnonzero(returns.reshape(-1, buckets).any(0))[-1]
    joint = joint[..., : largest + 1]
    joint.setflags(write=False)
    return joint


def threshold(return_distribution: np.ndarray, delta: float) -> np.ndarray:
    """theta_delta(s) = max {r : P(R >= r | s) >= delta} (paper, 'Adaptive Inference'). [..., B] -> int [...].

    The tolerance keeps ties such as P = 0.1 at delta = 0.1 independent of rounding.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1); got {delta}")
    at_least = np.cumsum(return_distribution[..., ::-1], axis=-1)[..., ::-1]  # P(R >= r), falling in r
    return (at_least >= delta - 1e-9).sum(-1) - 1


@dataclass(frozen=True)
class Estimate:
    """What an agent believes about every state; where it comes from (table, network) no longer matters."""

    policy: np.ndarray
    """p(a | s, R): [S, B, A]."""
    returns: np.ndarray
    """p(R | s): [S, B]."""

    def adaptive_policy(self, delta: float) -> np.ndarray:
        """pi^delta(a | s) = p(a | R >= theta_delta(s), s) (paper, 'Adaptive Inference'): [S, A].

        Summing p(a | s, R) p(R | s) over R >= theta is the joint p(a, R >= theta | s), then normalised.
        """
        buckets = np.arange(self.returns.shape[-1])
        hoped_for = self.returns * (buckets >= threshold(self.returns, delta)[..., None])  # [S, B]
        joint = np.einsum("...b,...ba->...a", hoped_for, self.policy)
        return joint / joint.sum(-1, keepdims=True)

    def policy_for(self, rule: str, delta: float) -> np.ndarray:
        """Action probabilities by state and current target, [S, B, A], for one of RULES."""
        if rule not in RULES:
            raise ValueError(f"unknown target rule '{rule}'{did_you_mean(rule, RULES)}")
        if rule == "adaptive":
            return np.broadcast_to(self.adaptive_policy(delta)[..., None, :], self.policy.shape)
        return self.policy


def exact_estimate(stairs: Stairs, behaviour: tuple[float, ...] = MEDIOCRE) -> Estimate:
    """The oracle: no network, no sampling error.

    Where p_d(R | s) = 0 the condition contradicts the state and p(a | s, R) is 0/0. The data then say nothing, and
    the oracle falls back on the behaviour policy; a network gives some answer, without saying that it guesses.
    """
    joint = joint_distribution(stairs, behaviour)
    return estimate_from_joint(joint, fallback=np.asarray(behaviour))


def estimate_from_joint(joint: np.ndarray, fallback: np.ndarray) -> Estimate:
    """Condition a joint table p(a, R | s), [S, A, B], on the return."""
    returns = joint.sum(-2)  # [S, B]
    by_return = np.moveaxis(joint, -2, -1)  # [S, B, A]
    possible = returns[..., None] > 0
    policy = np.where(possible, by_return / np.where(possible, returns[..., None], 1.0), fallback)
    over = returns.sum(-1) == 0  # states in which no move is due
    returns = np.where(over[..., None], np.eye(returns.shape[-1])[0], returns)
    return Estimate(policy, returns)


def pong_return_distribution(mine: int, theirs: int, points: int, win: float) -> dict[int, float]:
    """p(RTG | score) in a game to `points`, if each point is won independently with probability `win`."""
    if not (0 <= mine < points and 0 <= theirs < points and 0 <= win <= 1):
        raise ValueError(f"need scores from 0 to {points - 1} and win in [0, 1]; got {mine}, {theirs}, {win}")
    ways = np.zeros((points + 1, points + 1))  # probability of passing through a score
    ways[mine, theirs] = 1.0
    for me, they in product(range(mine, points), range(theirs, points)):
        ways[me + 1, they] += win * ways[me, they]
        ways[me, they + 1] += (1 - win) * ways[me, they]
    finals = [(points, they) for they in range(theirs, points)] + [(me, points) for me in range(mine, points)]
    return {(me - mine) - (they - theirs): float(ways[me, they]) for me, they in finals}
