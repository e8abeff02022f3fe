"""Theorem 1 put to the test: hand-made counter-examples, a search for the smallest, and a survey of random MDPs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.devices import track
from brrcrl_lib.base.files import ROOT, git_revision, write_csv
from brrcrl_lib.study.toys.tabular import (
    TIE,
    Array,
    Integers,
    TabularMDP,
    action_returns,
    adaptive_policy,
    alignment,
    at,
    chance,
    commit_once,
    conditional_mean,
    mean,
    policy_values,
    state_returns,
    threshold,
    trajectory_kl,
)

RECORDED = ROOT / "data" / "results" / "theory_audit.csv"

# -- MDPs with a message -------------------------------------------------------------------------------------------


def lucky_bandit(win: float | Array = 0.1, prize: int = 10, safe: int = 5) -> TabularMDP:
    """One decision, two arms, uniform beta. Arm 0 pays `safe`; arm 1 pays `prize` with probability `win`, else 0.

    win: one probability, or (M,) for a batch.
    """
    chances = np.atleast_1d(np.asarray(win, dtype=float))
    transitions = np.zeros((len(chances), 4, 2, 4))  # states: start, safe, won, lost
    transitions[:, 1:, :, 3] = 1.0
    transitions[:, 0, 0, 1] = 1.0
    transitions[:, 0, 1, 2], transitions[:, 0, 1, 3] = chances, 1 - chances
    rewards = np.zeros(transitions.shape, dtype=np.int64)
    rewards[..., 1], rewards[..., 2] = safe, prize
    return TabularMDP(transitions, rewards, np.full((len(chances), 4, 2), 0.5), horizon=1)


def trees(leaves: Sequence[int], payoffs: Integers, weights: Sequence[Array]) -> TabularMDP:
    """M deterministic two-step MDPs. The first action i leads to branch i, the second takes one of its `leaves[i]`.

    payoffs: (M, sum of leaves). weights: beta at the root (M, branches), then in each branch (M, leaves[i]).
    States: 0 the root, 1 + i branch i, the last one the end.
    """
    size, branches = len(payoffs), len(leaves)
    states, actions = branches + 2, max(branches, *leaves)
    transitions = np.zeros((size, states, actions, states))
    transitions[..., -1] = 1.0
    rewards = np.zeros(transitions.shape, dtype=np.int64)
    behaviour = np.zeros((size, states, actions))
    behaviour[:, -1, 0] = 1.0
    behaviour[:, 0, :branches] = weights[0]
    for branch, count in enumerate(leaves):
        transitions[:, 0, branch] = np.eye(states)[1 + branch]
        behaviour[:, 1 + branch, :count] = weights[1 + branch]
        first = sum(leaves[:branch])
        rewards[:, 1 + branch, :count] = payoffs[:, first : first + count, None]
    return TabularMDP(transitions, rewards, behaviour, horizon=2)


def safe_or_gamble(gamble: float = 0.5, win: float = 0.4, prize: int = 3) -> TabularMDP:
    """Deterministic: the first action is safe (pays 1) or, with beta = `gamble`, opens a second choice of beta's.

    There beta takes the `prize` with probability `win` and 0 otherwise. For win < delta <= 1 - gamble (1 - win):
    V^pi - V^beta = -gamble (1-gamble) (1-win) (win prize - 1) / (1 - gamble (1-win)), negative if win prize > 1.
    """
    weights = [np.array([[gamble, 1 - gamble]]), np.array([[win, 1 - win]]), np.ones((1, 1))]
    return trees((2, 1), np.array([[prize, 0, 1]]), weights)


def tight_chain(length: int, delta: float) -> TabularMDP:
    """At each step beta takes a good action with probability delta; it pays more than all that can follow."""
    transitions = np.zeros((1, length + 1, 2, length + 1))
    transitions[0, np.arange(length), :, np.arange(1, length + 1)] = 1.0
    transitions[0, length, :, length] = 1.0
    rewards = np.zeros(transitions.shape, dtype=np.int64)
    rewards[0, :length, 0] = 2 ** np.arange(length)[::-1, None]
    behaviour = np.broadcast_to([delta, 1 - delta], (1, length + 1, 2))
    return TabularMDP(transitions, rewards, behaviour, horizon=length)


# -- the smallest deterministic counter-example --------------------------------------------------------------------


def search_smallest(delta: float, leaves: Sequence[int], top: int, tenths: bool) -> Iterator[dict[str, Any]]:
    """All violating two-step trees of one shape with payoffs 0..top; beta uniform, or any multiples of 0.1.

    Rewards on the first step need no search of their own: they shift a branch's payoffs, thresholds follow.
    """
    payoffs = np.array(list(product(range(top + 1), repeat=sum(leaves))), dtype=np.int64)
    grids = [_simplex(count, tenths) for count in (len(leaves), *leaves)]
    for chosen in product(*grids):
        mdp = trees(leaves, payoffs, [np.broadcast_to(row, (len(payoffs), len(row))) for row in chosen])
        returns = action_returns(mdp)
        gain = policy_values(mdp, adaptive_policy(mdp, returns, delta)) - mean(state_returns(mdp, returns))
        for index in np.flatnonzero(gain[0, :, 0] < -TIE):
            yield {"payoffs": payoffs[index].tolist(), "beta": [row.tolist() for row in chosen],
                   "gain": float(gain[0, index, 0])}  # fmt: skip


def _simplex(count: int, tenths: bool) -> list[Array]:
    """Distributions over `count` actions that use all of them: the uniform one, or all in steps of 0.1."""
    if not tenths:
        return [np.full(count, 1 / count)]
    steps = product(range(1, 11), repeat=count)
    return [np.array(parts) / 10 for parts in steps if sum(parts) == 10]


# -- another weight of the prior ------------------------------------------------------------------------------------


def weighted_policy(mdp: TabularMDP, returns: Array, delta: float, alpha: float) -> Array:
    """pi_alpha(a | s), proportional to beta(a | s)^alpha P(Z^beta(s, a) >= theta_delta(s)), at each time: (N, M, S, A).

    alpha = 1 is pi^delta. Actions that beta never takes stay out, whatever alpha is.
    """
    reaching = chance(returns, threshold(mdp, returns, delta))
    joint = np.where(mdp.behaviour > 0, mdp.behaviour, 1.0) ** alpha * (mdp.behaviour > 0) * reaching
    return joint / joint.sum(-1, keepdims=True)


def kl_bound(alpha: float, delta: float, prior: Array) -> Array:
    """The largest KL(pi_alpha || beta) in nats that a state can have: exact, attained. prior (..., A) -> (...)

    Write b(a) for the prior, g(a) = P(Z >= theta | s, a) and c = sum_a b(a) g(a) = P(Z >= theta | s), which the
    choice of theta_delta makes at least delta. Then pi(a) = b(a)^alpha g(a) / z with z = sum_a b(a)^alpha g(a), and

        KL(pi || b) = E_pi[log g] - log z + (1 - alpha) E_pi[-log b].

    At alpha = 1, z = c, and log g <= 0 leaves -log c <= -log delta: the step of Theorem 1. For another alpha, which g
    is the worst? Policies pi that some g in [0, 1] with c >= delta leads to are those with

        delta pi(a) <= b(a)^alpha sum_b' b(b')^(1 - alpha) pi(b')   for every a

    (the sum is c / z, so this says delta g(a) <= c; g may be scaled until c = delta). These conditions are linear in
    pi and KL is convex in it, so the largest KL lies in a corner of that polytope: g is 1 on a set of actions, a
    fraction on one more action so that c = delta, and 0 elsewhere. All such corners are tried here: A 2^(A-1) of them.

    So for alpha other than 1 no bound in delta alone exists; the prior must be known, or what `loose_kl_bound` needs of
    it. For trajectories of N decisions add up the largest bounds of the states on the way, as Theorem 1 does.
    """
    prior = np.asarray(prior, dtype=float)
    size, worst = prior.shape[-1], np.zeros(prior.shape[:-1])
    powered = np.where(prior > 0, prior, 1.0) ** alpha * (prior > 0)
    for partly in range(size):
        others = [action for action in range(size) if action != partly]
        for wholly in (list(chosen) for count in range(size) for chosen in combinations(others, count)):
            left, own = delta - prior[..., wholly].sum(-1), prior[..., partly]
            corner = (left >= -TIE) & (left <= own + TIE) & (own > 0)
            reaching = np.zeros_like(prior)
            reaching[..., wholly] = 1.0
            reaching[..., partly] = np.divide(left, own, out=np.zeros_like(left), where=corner).clip(0, 1)
            joint = powered * reaching
            policy = np.divide(joint, joint.sum(-1, keepdims=True), out=np.zeros_like(joint), where=corner[..., None])
            ratio = np.divide(policy, prior, out=np.ones_like(policy), where=policy > 0)
            worst = np.maximum(worst, (policy * np.log(ratio)).sum(-1))
    return worst


def loose_kl_bound(alpha: float, delta: float, prior: Array) -> Array:
    """What is left of -log delta, in terms of a few numbers of the prior; never below `kl_bound`. (..., A) -> (...)

    With K actions that the prior takes, h its largest and l its smallest probability among them, the least of

        -log delta + |1 - alpha| log(h / l)                     (i)    every alpha
        [-log delta + (1 - alpha) log(K h)] / alpha             (ii)   0 < alpha <= 1
        -log l                                                  (iii)  every alpha, and every policy

    (i): pi_alpha is pi_1 = b g / c tilted by b^(alpha - 1), so KL(pi_alpha || b) = KL(pi_alpha || pi_1) + E[log g]
    - log c, and by Jensen a tilt costs at most |1 - alpha| times the range of log b. (ii): z >= c h^(alpha - 1), and
    E_pi[-log b] = KL + entropy of pi <= KL + log K; solve for KL. A box of actions has (ii) with its volume for K and
    the largest density for h, while (i) and (iii) may be infinite. (i) and (ii) are -log delta at alpha = 1, and (i) is
    so for a uniform prior, which alpha does not touch. Nothing in delta alone can hold for alpha < 1: spread a mass r
    over ever more actions, all of which reach theta; pi_alpha ends up on them for any r > 0, and KL = -log r.
    """
    prior = np.asarray(prior, dtype=float)
    count, high = (prior > 0).sum(-1), prior.max(-1)
    low = np.where(prior > 0, prior, 1.0).min(-1)
    least = np.minimum(-np.log(delta) + abs(1 - alpha) * np.log(high / low), -np.log(low))
    if 0 < alpha <= 1:
        least = np.minimum(least, (-np.log(delta) + (1 - alpha) * np.log(count * high)) / alpha)
    return least


# -- the survey of random MDPs -------------------------------------------------------------------------------------

FAMILIES = {
    "even": "r(s,a) uniform on 0..9",
    "skewed": "r(s,a) is 0, 1 or 10 with probability 0.6, 0.3, 0.1",
    "lucky": "as skewed, but drawn for each (s,a,s'): chance decides the reward",
    "uniform beta": "as even, with a uniform behaviour policy",
}


@dataclass(frozen=True)
class SurveyConfig:
    """How much of the space of small MDPs to visit."""

    mdps: int = 2000
    """random MDPs per cell and seed"""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """each seed draws its own MDPs"""
    deltas: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
    """all deltas judge the same MDPs"""
    presets: ClassVar[dict[str, Any]] = {"smoke": {"mdps": 40, "seeds": (0,)}, "paper": {"seeds": tuple(range(25))}}


def random_mdps(rng: np.random.Generator, size: int, family: str, deterministic: bool, states: int = 4,
                actions: int = 3, horizon: int = 4) -> TabularMDP:  # fmt: skip
    """MDPs with next states uniform (deterministic) or Dirichlet(1), beta Dirichlet(1), rewards by `family`."""
    if family not in FAMILIES:
        raise ValueError(f"unknown family of MDPs '{family}'{did_you_mean(family, FAMILIES)}")
    shape = (size, states, actions)
    if deterministic:
        transitions = np.eye(states)[rng.integers(states, size=shape)]
    else:
        transitions = rng.dirichlet(np.ones(states), size=shape)
    if family in ("even", "uniform beta"):
        rewards = rng.integers(10, size=(*shape, 1))
    else:
        rewards = rng.choice([0, 1, 10], p=[0.6, 0.3, 0.1], size=(*shape, states if family == "lucky" else 1))
    if family == "uniform beta":
        behaviour = np.full(shape, 1 / actions)
    else:
        behaviour = rng.dirichlet(np.ones(actions), size=shape[:2])
    return TabularMDP(transitions, np.broadcast_to(rewards, transitions.shape), behaviour, horizon)


def audit(mdp: TabularMDP, deltas: Sequence[float]) -> Iterator[dict[str, Any]]:
    """One row of facts about Theorem 1 per delta, over all MDPs of the batch. Losses and gains in spans of return.

    The span of a state is the distance between the best and the worst return that beta can get from it.
    """
    returns = action_returns(mdp)
    overall = state_returns(mdp, returns)  # (N, M, S, G)
    beta_value = mean(overall)
    possible = overall > TIE
    span = mdp.grid - 1 - np.argmax(possible[..., ::-1], -1) - np.argmax(possible, -1)
    committed_value, committed_kl = commit_once(mdp, returns)
    for delta in deltas:
        policy = adaptive_policy(mdp, returns, delta)
        value = policy_values(mdp, policy)
        gain = (value - beta_value) / np.maximum(span, 1)
        bad = value < beta_value - TIE
        broken_step = value < conditional_mean(mdp, returns, delta) - TIE
        aligned = np.all(alignment(mdp, returns, delta) >= -TIE, axis=(0, 2))
        ratio = trajectory_kl(mdp, policy)[0] / (-mdp.horizon * np.log(delta))
        target = threshold(mdp, returns, delta)[0]
        committed_gain = at(committed_value, target) - beta_value[0]
        yield {
            "delta": delta,
            "mdps": len(mdp.behaviour),
            "violated": int(bad.any((0, 2)).sum()),
            "violated_at_start": int(bad[0].any(-1).sum()),
            "first_inequality_fails": int(broken_step.any((0, 2)).sum()),
            "aligned": int(aligned.sum()),
            "aligned_but_violated": int((bad.any((0, 2)) & aligned).sum()),
            "committed_violated": int((committed_gain < -TIE).any(-1).sum()),
            "committed_kl_ratio_max": float(at(committed_kl, target).max() / -np.log(delta)),
            "strict_undefined": int(np.isnan(adaptive_policy(mdp, returns, delta, strict=True)).any((0, 2, 3)).sum()),
            "worst_loss": float(max(0.0, -gain.min())),
            "median_loss": float(np.median(-gain[bad])) if bad.any() else float("nan"),
            "strictly_better": float((gain[0] > TIE).mean()),
            **{f"gain_p{q:02d}": float(np.percentile(gain[0], q)) for q in (5, 50, 95)},
            "committed_gain_p50": float(np.median(committed_gain / np.maximum(span[0], 1))),
            **{f"kl_ratio_p{q:02d}": float(np.percentile(ratio, q)) for q in (5, 25, 50, 75, 95, 100)},
        }


def survey(config: SurveyConfig, preset: str) -> list[dict[str, Any]]:
    """The audit over families x transitions x seeds x deltas, one row each."""
    cells = [(f, d, s) for f in FAMILIES for d in (True, False) for s in config.seeds if not (f == "lucky" and d)]
    rows = []
    for family, deterministic, seed in track(cells, desc="random MDPs"):
        mdp = random_mdps(np.random.default_rng(seed), config.mdps, family, deterministic)
        where = {"preset": preset, "family": family, "transitions": "deterministic" if deterministic else "stochastic"}
        rows += [{**where, "seed": seed, **row, "revision": git_revision()} for row in audit(mdp, config.deltas)]
    return rows


def record(path: Path = RECORDED) -> None:
    """Write the results that the notebook shows by default (about two minutes on one core)."""
    write_csv(path, survey(SurveyConfig(), "laptop"))


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """95% confidence interval of a proportion (Wilson's score), sensible for 0 successes too."""
    share = successes / trials
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))
