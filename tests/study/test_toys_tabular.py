"""The exact engine against enumeration of all trajectories, and the statements that the theory notebook makes."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brrcrl_lib.study.toys import tabular as tab
from brrcrl_lib.study.toys import theory

DELTAS = st.floats(0.01, 0.99)
SEEDS = st.integers(0, 10**6)
quickly = settings(max_examples=40, deadline=None)


def small(seed, deterministic=False, family="lucky", size=1, horizon=3):
    return theory.random_mdps(np.random.default_rng(seed), size, family, deterministic, 3, 2, horizon)


# -- oracle: every trajectory, one by one ---------------------------------------------------------------------------


def trajectories(mdp, start, time, policy=None):
    """(steps ((s, a), ...), rewards, probability) of all trajectories from `start`, under beta or `policy`."""
    states, actions = mdp.behaviour.shape[1:]
    for moves in itertools.product(itertools.product(range(actions), range(states)), repeat=mdp.horizon - time):
        state, probability, steps, rewards = start, 1.0, [], []
        for step, (action, following) in enumerate(moves):
            acting = mdp.behaviour[0, state] if policy is None else policy[time + step, 0, state]
            probability *= acting[action] * mdp.transitions[0, state, action, following]
            rewards.append(int(mdp.rewards[0, state, action, following]))
            steps.append((state, action))
            state = following
        if probability > 0:
            yield steps, rewards, probability


def expectation(mdp, start, time, function, policy=None):
    return sum(p * function(steps, rewards) for steps, rewards, p in trajectories(mdp, start, time, policy))


def oracle_threshold(mdp, state, time, delta):
    outcomes = [(sum(rewards), p) for _, rewards, p in trajectories(mdp, state, time)]
    return max(r for r, _ in outcomes if sum(p for z, p in outcomes if z >= r) >= delta - 1e-9)


def oracle_policy(mdp, state, time, delta):
    theta = oracle_threshold(mdp, state, time, delta)
    weights = [
        expectation(mdp, state, time, lambda steps, rewards, a=a: (sum(rewards) >= theta) * (steps[0][1] == a))
        for a in range(mdp.behaviour.shape[2])
    ]
    return np.array(weights) / sum(weights)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("delta", [0.05, 0.3, 0.5, 0.8])
def test_everything_agrees_with_enumeration(deterministic, delta):
    mdp = small(7, deterministic)
    returns = tab.action_returns(mdp)
    policy = tab.adaptive_policy(mdp, returns, delta)
    for time, state in itertools.product(range(mdp.horizon), range(3)):
        distribution = tab.state_returns(mdp, returns)[time, 0, state]
        for r in range(mdp.grid):
            assert distribution[r] == pytest.approx(expectation(mdp, state, time, lambda _, rs, r=r: sum(rs) == r))
        assert tab.threshold(mdp, returns, delta)[time, 0, state] == oracle_threshold(mdp, state, time, delta)
        np.testing.assert_allclose(policy[time, 0, state], oracle_policy(mdp, state, time, delta), atol=1e-12)
        value = expectation(mdp, state, time, lambda _, rewards: sum(rewards), policy)
        assert tab.policy_values(mdp, policy)[time, 0, state] == pytest.approx(value)

        def log_ratio(steps, _, time=time):
            moves = [(policy[time + i, 0, s, a], mdp.behaviour[0, s, a]) for i, (s, a) in enumerate(steps)]
            return sum(math.log(new / old) for new, old in moves)

        kl = expectation(mdp, state, time, log_ratio, policy)
        assert tab.trajectory_kl(mdp, policy)[time, 0, state] == pytest.approx(kl, abs=1e-12)


@pytest.mark.parametrize("deterministic", [True, False])
def test_commit_once_agrees_with_recursion(deterministic):
    mdp = small(3, deterministic)
    returns = tab.action_returns(mdp)
    value, kl = tab.commit_once(mdp, returns)

    def follow(state, time, target):
        if time == mdp.horizon:
            return 0.0, 0.0
        passing = mdp.behaviour[0, state] * returns[time, 0, state, :, max(target, 0) :].sum(-1)
        policy = passing / passing.sum() if passing.sum() > 0 else mdp.behaviour[0, state]
        total = np.zeros(2)
        for action, following in itertools.product(range(2), range(3)):
            p = policy[action] * mdp.transitions[0, state, action, following]
            if p > 0:
                reward = int(mdp.rewards[0, state, action, following])
                later = follow(following, time + 1, target - reward)
                total += p * np.array([reward + later[0], later[1]])
        moved = policy > 0
        log_ratio = np.log(policy[moved] / mdp.behaviour[0, state][moved])
        return total[0], total[1] + (policy[moved] * log_ratio).sum()

    for state, target in itertools.product(range(3), range(0, mdp.grid, 3)):
        assert (value[0, state, target], kl[0, state, target]) == pytest.approx(follow(state, 0, target))


def test_a_batch_is_the_same_as_one_by_one():
    mdp = small(0, size=6)
    together = tab.adaptive_policy(mdp, tab.action_returns(mdp), 0.3)
    for i in range(6):
        one = tab.TabularMDP(
            *(table[i : i + 1] for table in (mdp.transitions, mdp.rewards, mdp.behaviour)), mdp.horizon
        )
        np.testing.assert_allclose(together[:, i : i + 1], tab.adaptive_policy(one, tab.action_returns(one), 0.3))


# -- Proposition 1 --------------------------------------------------------------------------------------------------


@quickly
@given(SEEDS, DELTAS, st.sampled_from(["even", "lucky"]))
def test_policy_is_the_boltzmann_distribution_of_its_energy(seed, delta, family):
    mdp = small(seed, family=family)
    returns = tab.action_returns(mdp)
    boltzmann = tab.boltzmann(tab.energy(mdp, returns, delta))
    np.testing.assert_allclose(boltzmann, tab.adaptive_policy(mdp, returns, delta), atol=1e-10)


@quickly
@given(SEEDS, DELTAS)
def test_strictly_above_the_threshold_is_always_rarer_than_delta(seed, delta):
    mdp = small(seed)
    returns = tab.action_returns(mdp)
    passing = tab.chance(returns, tab.threshold(mdp, returns, delta), strict=True)
    above = (mdp.behaviour * passing).sum(-1)
    assert np.all(above < delta)
    undefined = np.isnan(tab.adaptive_policy(mdp, returns, delta, strict=True)).any(-1)
    np.testing.assert_array_equal(undefined, above == 0)


# -- Theorem 1 ------------------------------------------------------------------------------------------------------


@quickly
@given(SEEDS, DELTAS, st.booleans())
def test_what_is_true_about_theorem_1(seed, delta, deterministic):
    mdp = small(seed, deterministic, size=20)
    returns = tab.action_returns(mdp)
    overall = tab.state_returns(mdp, returns)
    beta_value = tab.mean(overall)
    policy = tab.adaptive_policy(mdp, returns, delta)
    left = np.arange(mdp.horizon, 0, -1)[:, None, None]
    assert np.all(tab.trajectory_kl(mdp, policy) <= -left * np.log(delta) + 1e-7)  # the first claim
    assert np.all(tab.conditional_mean(mdp, returns, delta) >= beta_value - 1e-9)  # the lemma
    aligned = np.all(tab.alignment(mdp, returns, delta) >= 0, axis=(0, 2))
    value = tab.policy_values(mdp, policy)
    assert np.all(value[:, aligned] >= beta_value[:, aligned] - 1e-9)  # the repaired second claim
    if deterministic:  # commit to one threshold: exactly the conditional mean, at a KL of -log P(Z >= theta)
        target = tab.threshold(mdp, returns, delta)[0]
        committed_value, committed_kl = (tab.at(table, target) for table in tab.commit_once(mdp, returns))
        np.testing.assert_allclose(committed_value, tab.conditional_mean(mdp, returns, delta)[0])
        np.testing.assert_allclose(committed_kl, -np.log(tab.at(tab.tail(overall[0]), target)), atol=1e-9)
        best = np.where(overall > 0, np.arange(mdp.grid), -1).max(-1)
        if delta <= tab.at(overall, best).min():  # a delta that small conditions on the best return everywhere
            np.testing.assert_allclose(value, best)


@quickly
@given(SEEDS, DELTAS)
def test_success_or_failure_never_violates(seed, delta):
    mdp = small(seed, size=20, horizon=4)
    absorbing = mdp.transitions.copy()
    absorbing[:, 2] = np.eye(3)[2]  # reaching state 2 is success, paid once
    rewards = np.zeros(absorbing.shape, dtype=np.int64)
    rewards[:, :2, :, 2] = 1
    mdp = tab.TabularMDP(absorbing, rewards, mdp.behaviour, 4)
    returns = tab.action_returns(mdp)
    value = tab.policy_values(mdp, tab.adaptive_policy(mdp, returns, delta))
    assert np.all(value >= tab.mean(tab.state_returns(mdp, returns)) - 1e-9)


def values(mdp, delta):
    returns = tab.action_returns(mdp)
    policy_value = tab.policy_values(mdp, tab.adaptive_policy(mdp, returns, delta))
    return policy_value[0, 0, 0], tab.mean(tab.state_returns(mdp, returns))[0, 0, 0]


def test_the_bandit_earns_1_against_3():
    assert values(theory.lucky_bandit(), 0.05) == pytest.approx((1.0, 3.0))
    assert values(theory.lucky_bandit(), 0.06) == pytest.approx(
        (51 / 11, 3.0)
    )  # threshold 5: plays safe 10 times in 11


@quickly
@given(st.floats(0.1, 0.9), st.floats(0.05, 0.9), st.integers(2, 30), DELTAS)
def test_the_tree_follows_its_closed_form(gamble, win, prize, delta):
    if not win + 1e-6 < delta < 1 - gamble * (1 - win) - 1e-6:
        return
    loss = gamble * (1 - gamble) * (1 - win) * (win * prize - 1) / (1 - gamble * (1 - win))
    policy_value, beta_value = values(theory.safe_or_gamble(gamble, win, prize), delta)
    assert beta_value - policy_value == pytest.approx(loss, abs=1e-9)


@pytest.mark.parametrize("delta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("length", [1, 4])
def test_the_chain_attains_the_kl_bound(delta, length):
    mdp = theory.tight_chain(length, delta)
    policy = tab.adaptive_policy(mdp, tab.action_returns(mdp), delta)
    assert tab.trajectory_kl(mdp, policy)[0, 0, 0] == pytest.approx(-length * math.log(delta))


ALPHAS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)


@pytest.mark.parametrize("delta", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("family", ["even", "skewed", "lucky"])
def test_no_state_of_any_mdp_leaves_the_prior_further_than_the_bound(family, delta):
    """Every state and time of 200 random MDPs, for every weight of the prior."""
    mdp = theory.random_mdps(np.random.default_rng(3), 200, family, deterministic=False)
    returns = tab.action_returns(mdp)
    for alpha in ALPHAS:
        policy = theory.weighted_policy(mdp, returns, delta, alpha)
        ratio = np.divide(policy, mdp.behaviour, out=np.ones_like(policy), where=policy > 0)
        divergence = (policy * np.log(ratio)).sum(-1)  # (N, M, S)
        exact = theory.kl_bound(alpha, delta, mdp.behaviour)
        assert (divergence <= exact + 1e-9).all()
        assert (exact <= theory.loose_kl_bound(alpha, delta, mdp.behaviour) + 1e-9).all()
        assert (tab.trajectory_kl(mdp, policy) <= mdp.horizon * exact.max(-1)[None, :, None] + 1e-9).all()
        if alpha == 1:
            assert (exact <= -np.log(delta) + 1e-9).all()  # Theorem 1
            np.testing.assert_allclose(policy, tab.adaptive_policy(mdp, returns, delta), atol=1e-12)
    assert (theory.kl_bound(0.25, delta, mdp.behaviour) > -np.log(delta)).any()  # which a smaller alpha breaks


def bandits(prior, reaching):
    """One decision: action a, taken with prior[a], pays 1 with probability reaching[..., a]."""
    size, actions = reaching.shape
    transitions = np.zeros((size, 3, actions, 3))  # states: start, won, lost
    transitions[:, 0, :, 1], transitions[:, 0, :, 2] = reaching, 1 - reaching
    transitions[:, 1:, :, 2] = 1.0
    rewards = np.zeros(transitions.shape, dtype=np.int64)
    rewards[:, 0, :, 1] = 1
    return tab.TabularMDP(transitions, rewards, np.broadcast_to(prior, (size, 3, actions)), horizon=1)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_kl_bound_is_attained_and_random_search_finds_nothing_above(alpha):
    rng, delta = np.random.default_rng(0), 0.2
    for prior in rng.dirichlet(np.ones(4), size=5):
        bound = theory.kl_bound(alpha, delta, prior)
        reaching = [rng.random((4000, 4)) ** power for power in (0.1, 1, 5, 30)]
        reaching += [rng.integers(0, 2, (4000, 4)) * rng.random((4000, 4))]
        corners = [np.array(g, float) for g in itertools.product((0, 1), repeat=4)]
        for wholly, partly in itertools.product(corners, range(4)):  # one action so often that P(Z >= 1) = delta
            share = (delta - (wholly * prior).sum() + wholly[partly] * prior[partly]) / prior[partly]
            if 0 <= share <= 1:
                reaching.append(np.where(np.arange(4) == partly, share, wholly)[None])
        every = np.concatenate(reaching)
        every = every[(every @ prior) >= delta - 1e-12]
        mdp = bandits(prior, every)
        policy = theory.weighted_policy(mdp, tab.action_returns(mdp), delta, alpha)
        found = tab.trajectory_kl(mdp, policy)[0, :, 0]
        assert found.max() == pytest.approx(float(bound), abs=1e-9)


def test_no_bound_in_delta_alone_holds_below_alpha_1():
    """Spread over enough actions, a thousandth of the prior is nearly all that pi_0.5 takes."""
    delta, mass = 0.1, 0.001
    reached = []
    for count in (1, 100, 10_000, 1_000_000):
        prior = np.array([1 - mass, *np.full(count, mass / count)])
        reaching = np.array([(delta - mass) / (1 - mass), *np.ones(count)])
        joint = prior**0.5 * reaching
        policy = joint / joint.sum()
        reached.append((policy * np.log(policy / prior)).sum())
        assert reached[-1] <= theory.loose_kl_bound(0.5, delta, prior)
    assert reached == sorted(reached) and reached[-1] > 2.5 * -math.log(delta)


def test_the_smallest_deterministic_counter_example():
    def found(leaves, top, tenths):
        return list(theory.search_smallest(0.5, leaves, top, tenths))

    assert not found((1, 1), 4, True) and not found((1, 1, 1), 3, True)  # one decision: the lemma holds
    assert not found((2, 1), 2, True) and not found((2, 1), 4, False) and not found((2, 2), 4, False)
    smallest = found((2, 1), 3, True)
    assert {tuple(sorted(case["payoffs"])) for case in smallest} == {(0, 1, 3)}
    assert {tuple(sorted(case["payoffs"])) for case in found((3, 1), 4, False)} == {(0, 0, 1, 4)}


# -- the survey -----------------------------------------------------------------------------------------------------


def test_survey_counts_and_repeats_itself():
    config = theory.SurveyConfig(mdps=60, seeds=(0,), deltas=(0.9,))
    rows = theory.survey(config, "smoke")
    assert pd.DataFrame(rows).equals(pd.DataFrame(theory.survey(config, "smoke")))
    row = next(r for r in rows if r["family"] == "skewed" and r["transitions"] == "deterministic")
    mdp = theory.random_mdps(np.random.default_rng(0), 60, "skewed", True)
    returns = tab.action_returns(mdp)
    lost = (
        tab.policy_values(mdp, tab.adaptive_policy(mdp, returns, 0.9))
        < tab.mean(tab.state_returns(mdp, returns)) - 1e-9
    )
    assert 0 < row["violated"] == sum(any(lost[t, m, s] for t in range(4) for s in range(4)) for m in range(60))
    assert row["aligned_but_violated"] == 0 and row["committed_violated"] == 0


def test_wilson_interval():
    assert theory.wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # as tabulated for z = 1.96
    assert theory.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


# -- bad input ------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused():
    mdp = small(0)
    with pytest.raises(ValueError, match="summing to 1"):
        tab.TabularMDP(mdp.transitions * 0.5, mdp.rewards, mdp.behaviour, 3)
    with pytest.raises(ValueError, match="whole numbers"):
        tab.TabularMDP(mdp.transitions, mdp.rewards - 20, mdp.behaviour, 3)
    with pytest.raises(ValueError, match="shape"):
        tab.TabularMDP(mdp.transitions, mdp.rewards, mdp.behaviour[:, :2], 3)
    with pytest.raises(ValueError, match="horizon"):
        tab.TabularMDP(mdp.transitions, mdp.rewards, mdp.behaviour, 0)
    with pytest.raises(ValueError, match=r"\(0, 1\)"):
        tab.threshold(mdp, tab.action_returns(mdp), 1.0)
    with pytest.raises(ValueError, match="did you mean 'skewed'"):
        theory.random_mdps(np.random.default_rng(0), 1, "skew", True)
