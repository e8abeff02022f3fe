"""Exact finite MDPs: everything the paper's theory talks about, without sampling and without approximation.

Rewards are whole numbers, so returns live on the finite grid 0, 1, ..., G-1 and their distributions are plain arrays.
All functions work on a batch of M MDPs at once. Policies depend on time, since "state" in the paper's Theorem 1 means
all that the future depends on, and with a horizon that is the pair (s, t).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

TIE = 1e-9
"""Probabilities closer than this are equal: 0.1 + 0.2 should reach a delta of 0.3."""


@dataclass(frozen=True)
class TabularMDP:
    """M finite MDPs of one shape, with the behaviour policy beta that made the data."""

    transitions: Array  # (M, S, A, S) probability of the next state
    rewards: Integers  # (M, S, A, S) whole numbers, 0 or more, paid on arriving in the next state
    behaviour: Array  # (M, S, A) beta(a | s); 0 marks an action that does not exist
    horizon: int  # N, the number of decisions

    def __post_init__(self) -> None:
        shape = self.transitions.shape
        if len(shape) != 4 or shape[1] != shape[3] or self.rewards.shape != shape or self.behaviour.shape != shape[:3]:
            raise ValueError(
                "transitions and rewards need shape (M, S, A, S) and behaviour (M, S, A); got "
                f"{shape}, {self.rewards.shape}, {self.behaviour.shape}"
            )
        for name, table in (("transitions", self.transitions), ("behaviour", self.behaviour)):
            if not (np.all(table >= 0) and np.allclose(table.sum(-1), 1)):
                raise ValueError(f"{name} must be probabilities: 0 or more, summing to 1 along the last axis")
        if not np.issubdtype(self.rewards.dtype, np.integer) or self.rewards.min() < 0:
            raise ValueError("rewards must be whole numbers of 0 or more (shift and scale them: the theory allows it)")
        if self.horizon < 1:
            raise ValueError(f"horizon must be 1 or more; got {self.horizon}")

    @property
    def grid(self) -> int:
        """G: the possible returns are 0, 1, ..., G-1."""
        return self.horizon * int(self.rewards.max()) + 1

    @property
    def deterministic(self) -> bool:
        return bool(np.all(self.transitions.max(-1) > 1 - TIE))


# -- the returns of beta -------------------------------------------------------------------------------------------


def action_returns(mdp: TabularMDP) -> Array:
    """Distribution of Z^beta(s, a) at each time, by dynamic programming from the end: (N, M, S, A, G)."""
    size, states, actions, _ = mdp.transitions.shape
    result = np.empty((mdp.horizon, size, states, actions, mdp.grid))
    later = np.zeros((size, states, mdp.grid))  # distribution of Z^beta(s') one step later
    later[..., 0] = 1.0
    for time in reversed(range(mdp.horizon)):
        now = np.zeros((size, states * actions, mdp.grid))
        for reward in np.unique(mdp.rewards):
            paying = np.where(mdp.rewards == reward, mdp.transitions, 0.0).reshape(size, states * actions, states)
            now[..., reward:] += paying @ later[..., : mdp.grid - reward]
        result[time] = now.reshape(size, states, actions, mdp.grid)
        later = state_returns(mdp, result[time])
    return result


def state_returns(mdp: TabularMDP, returns: Array) -> Array:
    """Distribution of Z^beta(s): that of Z^beta(s, a), averaged over a ~ beta. (..., M, S, A, G) -> (..., M, S, G)."""
    return np.einsum("msa,...msag->...msg", mdp.behaviour, returns)


def tail(distribution: Array) -> Array:
    """P(Z >= r) for every r of the grid. (..., G) -> (..., G)"""
    return np.flip(np.cumsum(np.flip(distribution, -1), -1), -1)


def mean(distribution: Array) -> Array:
    """E[Z]. (..., G) -> (...)"""
    return distribution @ np.arange(distribution.shape[-1], dtype=float)


# -- the paper's policy --------------------------------------------------------------------------------------------


def threshold(mdp: TabularMDP, returns: Array, delta: float) -> Integers:
    """theta_delta(s) = max{r : P(Z^beta(s) >= r) >= delta} (Section 4.2), at each time: (N, M, S)."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1); got {delta}")
    return (tail(state_returns(mdp, returns)) >= delta - TIE).sum(-1) - 1  # the tail falls from 1: count, do not search


def chance(returns: Array, target: Integers, strict: bool = False) -> Array:
    """P(Z^beta(s, a) >= target(s)), or > with `strict`. (N, M, S, A, G), (N, M, S) -> (N, M, S, A)"""
    beyond = np.concatenate([tail(returns), np.zeros_like(returns[..., :1])], -1)  # (..., G + 1), P(Z >= G) = 0
    index = np.broadcast_to((target + strict)[..., None, None], (*returns.shape[:-1], 1))
    return np.take_along_axis(beyond, index, -1)[..., 0]


def adaptive_policy(mdp: TabularMDP, returns: Array, delta: float, strict: bool = False) -> Array:
    """pi^delta(a | s) = beta(a | Z^beta(s, a) >= theta_delta(s), s), at each time: (N, M, S, A).

    `strict` gives Proposition 1's wording instead, Z > theta: NaN where no return lies above the threshold.
    """
    joint = mdp.behaviour * chance(returns, threshold(mdp, returns, delta), strict)
    total = joint.sum(-1, keepdims=True)
    return np.divide(joint, total, out=np.full_like(joint, np.nan), where=total > 0)


def energy(mdp: TabularMDP, returns: Array, delta: float) -> Array:
    """E^delta(a | s) = -log beta(a | s) - log P(Z >= theta_delta(s) | s, a) (Proposition 1): (N, M, S, A), may be inf.

    Differs from the paper: >= where it prints >, because the policy it is about is defined with >=.
    """
    with np.errstate(divide="ignore"):
        return -np.log(mdp.behaviour) - np.log(chance(returns, threshold(mdp, returns, delta)))


def boltzmann(energies: Array) -> Array:
    """exp(-E) / sum exp(-E) over the last axis. (..., A) -> (..., A)"""
    weights = np.exp(energies.min(-1, keepdims=True) - energies)
    return weights / weights.sum(-1, keepdims=True)


# -- what a policy does --------------------------------------------------------------------------------------------


def policy_values(mdp: TabularMDP, policy: Array) -> Array:
    """V^pi(s) at each time. policy (N, M, S, A) -> (N, M, S)"""
    return _collect(mdp, policy, (mdp.transitions * mdp.rewards).sum(-1)[None] * policy)


def trajectory_kl(mdp: TabularMDP, policy: Array) -> Array:
    """KL[pi(T) || beta(T)] in nats, of trajectories that start in s at time t. policy (N, M, S, A) -> (N, M, S)

    The dynamics are the same on both sides, so only the logs of the actions' probabilities are left to add up.
    """
    ratio = np.divide(policy, mdp.behaviour[None], out=np.ones_like(policy), where=policy > 0)
    return _collect(mdp, policy, policy * np.log(ratio))


def _collect(mdp: TabularMDP, policy: Array, per_action: Array) -> Array:
    """Expected sum over the rest of the episode of `per_action` (N, M, S, A), already weighted by the policy."""
    totals = np.zeros(policy.shape[:-1])
    later = np.zeros(policy.shape[1:3])
    for time in reversed(range(mdp.horizon)):
        moves = np.einsum("msa,msap->msp", policy[time], mdp.transitions)
        later = totals[time] = per_action[time].sum(-1) + (moves @ later[..., None])[..., 0]
    return totals


# -- the pieces of the paper's proof, and of ours ------------------------------------------------------------------


def conditional_mean(mdp: TabularMDP, returns: Array, delta: float) -> Array:
    """E[Z^beta(s) | Z^beta(s) >= theta_delta(s)], the middle of the proof's second claim: (N, M, S)."""
    above = np.arange(mdp.grid) >= threshold(mdp, returns, delta)[..., None]
    kept = state_returns(mdp, returns) * above
    return mean(kept) / kept.sum(-1)


def alignment(mdp: TabularMDP, returns: Array, delta: float) -> Array:
    """Cov over a ~ beta of P(Z^beta >= theta_delta | s, a) and Q^beta(s, a): (N, M, S).

    pi^delta prefers the actions that often pass the threshold; this says whether those are also the valuable ones.
    """
    passing = chance(returns, threshold(mdp, returns, delta))
    worth = mean(returns)
    weighted = mdp.behaviour * passing
    return (weighted * worth).sum(-1) - weighted.sum(-1) * (mdp.behaviour * worth).sum(-1)


def commit_once(mdp: TabularMDP, returns: Array) -> tuple[Array, Array]:
    """Value and trajectory KL, (M, S, G) each, of an agent that starts in s_0 with target c and never re-thresholds.

    It acts by beta(a | Z^beta(s, a) >= c, s) and subtracts each reward from c: the Decision Transformer's schedule.
    Out of luck (no return of beta reaches c any more), it falls back on beta. Use `at` to start from theta_delta.
    """
    size, states, actions, _ = mdp.transitions.shape
    value = np.zeros((size, states, mdp.grid))  # by the target c that is left
    divergence = np.zeros_like(value)
    for time in reversed(range(mdp.horizon)):
        joint = mdp.behaviour[..., None] * tail(returns[time])  # (M, S, A, G) by c
        total = joint.sum(2, keepdims=True)
        fallback = np.broadcast_to(mdp.behaviour[..., None], joint.shape).copy()
        policy = np.divide(joint, total, out=fallback, where=total > 0)
        ratio = np.divide(policy, mdp.behaviour[..., None], out=np.ones_like(policy), where=policy > 0)
        gain = np.zeros((size, states * actions, mdp.grid))  # reward now and later
        drift = np.zeros_like(gain)  # KL later
        for reward in np.unique(mdp.rewards):
            paying = np.where(mdp.rewards == reward, mdp.transitions, 0.0).reshape(size, states * actions, states)
            left = np.maximum(np.arange(mdp.grid) - reward, 0)
            gain += paying @ (reward + value[..., left])
            drift += paying @ divergence[..., left]
        value = (policy * gain.reshape(policy.shape)).sum(2)
        divergence = (policy * (np.log(ratio) + drift.reshape(policy.shape))).sum(2)
    return value, divergence


def at(table: Array, target: Integers) -> Array:
    """Read a table over the grid at one target per state. (..., G), (...) -> (...)"""
    return np.take_along_axis(table, target[..., None], -1)[..., 0]
