"""Optimisers against grids, thresholds against their definition, targets against hand-computed schedules."""

from __future__ import annotations

import pytest
import torch
from model_cases import make_facts, make_model

from brrcrl_lib.inference.optimizers import CrossEntropy, DerivativeFree, Langevin, Problem, make_optimizer
from brrcrl_lib.inference.targets import Adaptive, Constant, DecisionTransformerSchedule, TargetSettings
from brrcrl_lib.inference.threshold import return_distribution
from brrcrl_lib.methods.base import create
from brrcrl_lib.methods.br_rcrl import BayesianModel, BayesianPolicy, BrRcrlAct, BrRcrlConfig
from brrcrl_lib.methods.br_rcrl_joint import JointAct
from brrcrl_lib.policies import Chooser
from brrcrl_lib.returns import ReturnBuckets

OPTIMIZERS = [CrossEntropy(256, 8), DerivativeFree(4096, 5, 0.5, 0.9), Langevin(512, 16, 30)]


def bumpy_problem(dimensions: int, states: int = 3) -> Problem:
    """A bowl with ripples; its lowest point differs from state to state."""
    centres = torch.linspace(-0.6, 0.5, states)[:, None, None]

    def energy(actions: torch.Tensor) -> torch.Tensor:
        offset = actions - centres
        return (4 * offset**2 + 0.3 * torch.cos(6 * offset)).sum(-1)

    low, high = -torch.ones(dimensions), torch.ones(dimensions)
    return Problem(energy, lambda noise, uniform: (0.7 * noise).clamp(-1, 1).expand(states, -1, -1), low, high)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_optimizers_reach_the_bottom_of_a_grid_search(optimizer, dimensions: int) -> None:
    problem = bumpy_problem(dimensions)
    axis = torch.linspace(-1, 1, {1: 20001, 2: 401, 3: 101}[dimensions])
    points = torch.cartesian_prod(*[axis] * dimensions).view(-1, dimensions)
    brute = problem.energy(points.expand(3, -1, -1)).min(1).values
    solution = optimizer.minimise(problem, torch.Generator().manual_seed(0))
    assert solution.actions.shape == (3, dimensions)
    torch.testing.assert_close(problem.energy(solution.actions.unsqueeze(1)).squeeze(1), solution.energies)
    assert (solution.energies <= brute + 0.05 * dimensions).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_equal_seeds_give_equal_actions_and_others_do_not(optimizer) -> None:
    problem = bumpy_problem(2)
    one, two, other = (optimizer.minimise(problem, torch.Generator().manual_seed(seed)).actions for seed in (5, 5, 6))
    assert torch.equal(one, two) and not torch.equal(one, other)


@pytest.mark.parametrize("optimizer", [CrossEntropy(64, 3), DerivativeFree(128, 3), Langevin(64, 4, 3)])
def test_a_batch_equals_its_states_one_by_one(optimizer) -> None:
    model, observations = make_model(), torch.randn(5, 3)

    def act(rows: torch.Tensor) -> torch.Tensor:
        chooser = Chooser(generator=torch.Generator().manual_seed(1))
        policy = BayesianPolicy(Adaptive(0.3), chooser, model=model, optimizer=optimizer)
        policy.reset(len(rows))
        return policy.act(rows)

    alone = torch.cat([act(observations[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(act(observations), alone, atol=1e-5, rtol=0)


def test_dfo_returns_the_best_of_its_last_round() -> None:
    problem = bumpy_problem(2)
    solution = DerivativeFree(64, 4).minimise(problem, torch.Generator().manual_seed(0), history=True)
    assert len(solution.history) == 5
    last = solution.history[-1]
    torch.testing.assert_close(solution.energies, problem.energy(last).min(1).values)
    assert (last.abs() <= 1).all()


def test_cem_never_loses_what_it_has_seen() -> None:
    problem = bumpy_problem(2)
    solution = CrossEntropy(32, 4).minimise(problem, torch.Generator().manual_seed(0), history=True)
    seen = torch.stack([problem.energy(candidates).min(1).values for candidates in solution.history]).min(0).values
    torch.testing.assert_close(solution.energies, seen)


def test_prior_samples_give_a_mixture_of_probabilities() -> None:
    model, states = sensitive_model(), torch.randn(4, 3)
    prior, encoded = model.prior(states), model.returns.encode(states)
    noise, uniform = torch.randn(9, 2), torch.rand(9)
    mixture = return_distribution(model, states, prior, encoded, "prior_samples", noise, uniform)
    log_returns = model.returns.log_probs(encoded, prior.sample(noise, uniform))
    torch.testing.assert_close(mixture, log_returns.exp().mean(1))
    geometric = return_distribution(model, states, prior, encoded, "prior_samples_logits", noise, uniform)
    assert not torch.allclose(mixture, geometric, atol=1e-4)
    value = return_distribution(model, states, prior, encoded, "value_model", noise, uniform)
    torch.testing.assert_close(value, model.value(states).exp())
    for distribution in (mixture, geometric, value):
        torch.testing.assert_close(distribution.sum(-1), torch.ones(4))
    with pytest.raises(ValueError, match="unknown threshold source"):
        return_distribution(model, states, prior, encoded, "guess", noise, uniform)


def test_schedule_keeps_the_discounted_promise() -> None:
    """Starting from the return an episode will really earn, (R - r) / gamma is its reward-to-go at every step."""
    rewards = torch.tensor([1.0, 0.5, 2.0, 3.0], dtype=torch.float64)
    discount = 0.9
    total = float((rewards * discount ** torch.arange(4.0, dtype=torch.float64)).sum())
    schedule = DecisionTransformerSchedule(total, discount=discount)
    schedule.reset(2)
    for t in range(4):
        to_go = float((rewards[t:] * discount ** torch.arange(4.0 - t, dtype=torch.float64)).sum())
        assert float(schedule.wanted[0]) == pytest.approx(to_go)
        schedule.observe(rewards[t].expand(2))
    assert float(schedule.wanted[1]) == pytest.approx(0.0, abs=1e-9)
    schedule.keep(torch.tensor([True, False]))
    assert len(schedule.wanted) == 1


def played(schedule: DecisionTransformerSchedule, reward: float, steps: int) -> list[float]:
    """What it asks for before each of the steps, all of which earn the same."""
    schedule.reset(1)
    wanted = []
    for _ in range(steps):
        wanted.append(float(schedule.wanted[0]))
        schedule.observe(torch.tensor([reward]))
    return [*wanted, float(schedule.wanted[0])]


def test_an_unclamped_schedule_diverges_and_a_clamped_one_does_not() -> None:
    """Start 276, reward 2: 200 is what goes on for ever, and the 76 that are missing grow by 1 / gamma a step."""
    facts = make_facts(return_range=(-5.0, 276.0))
    wild = played(TargetSettings("dt_schedule").rule(facts), 2.0, 1000)
    assert wild[-1] == pytest.approx(200 + 76 / 0.99**1000) and wild[-1] == pytest.approx(1_760_631, abs=1)
    for target in ("dt_schedule", "dt_schedule_undiscounted"):
        for reward in (2.0, 4.0, -3.0):  # less than was promised, more, and losses
            tame = played(TargetSettings(target, clamp=True).rule(facts), reward, 1000)
            assert min(tame) >= -5.0 and max(tame) <= 276.0
    assert set(played(TargetSettings("dt_schedule", clamp=True).rule(facts), 2.0, 1000)) == {276.0}  # the rule `max`
    assert played(TargetSettings("dt_schedule", value=1e6, clamp=True).rule(facts), 2.0, 1)[0] == 276.0


def test_the_undiscounted_schedule_takes_off_whole_rewards() -> None:
    facts = make_facts(return_range=(0.0, 276.0))
    plain = played(TargetSettings("dt_schedule_undiscounted").rule(facts), 2.0, 200)
    assert plain == [276.0 - 2 * step for step in range(201)]
    clamped = played(TargetSettings("dt_schedule_undiscounted", clamp=True).rule(facts), 2.0, 200)
    assert clamped == [max(0.0, value) for value in plain]
    whole = make_facts(discount=1.0)  # without a discount the two are one rule
    one, other = (TargetSettings(name).rule(whole) for name in ("dt_schedule", "dt_schedule_undiscounted"))
    assert played(one, 0.7, 50) == played(other, 0.7, 50)


def test_targets_pick_their_bucket() -> None:
    buckets = ReturnBuckets(0.0, 10.0, 5)
    distribution = torch.tensor([[0.5, 0.3, 0.1, 0.06, 0.04], [1.0, 0.0, 0.0, 0.0, 0.0]])
    assert Adaptive(0.09).bucket(distribution, buckets).tolist() == [3, 0]  # tails 1, .5, .2, .1, .04
    fixed = Constant(7.9)
    fixed.reset(2)
    assert fixed.bucket(distribution, buckets).tolist() == [3, 3]


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must lie in"):
        TargetSettings(delta=delta)


def test_settings_become_rules_in_the_units_of_the_data() -> None:
    facts = make_facts(discount=0.9)  # reward-to-go from 0 to 10, median 5
    highest, asked, middle = (
        TargetSettings(**settings).rule(facts)
        for settings in ({"target": "max"}, {"target": "fixed", "value": 3.0}, {"target": "fixed", "quantile": 0.25})
    )
    assert (highest.value, asked.value, middle.value) == (10.0, 3.0, 2.5)
    schedule = TargetSettings("dt_schedule").rule(facts)
    assert (schedule.value, schedule.discount) == (10.0, 0.9)
    assert TargetSettings(delta=0.3).rule(facts) == Adaptive(0.3)


@pytest.mark.parametrize(("settings", "message"), [
    ({"target": "fixed"}, "needs a value or a quantile"),
    ({"target": "fixed", "value": 1.0, "quantile": 0.5}, "not both"),
    ({"target": "fixed", "value": float("nan")}, "finite"),
    ({"target": "max", "quantile": 1.5}, "quantile must lie in"),
])  # fmt: skip
def test_targets_that_cannot_be_meant_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TargetSettings(**settings)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown target 'highest'"):
        TargetSettings("highest")
    with pytest.raises(ValueError, match="unknown optimizer 'sgd'"):
        make_optimizer("sgd")
    with pytest.raises(ValueError, match="unknown mode"):
        Chooser("worst")
    assert isinstance(make_optimizer("dfo", samples=16), DerivativeFree)


@pytest.mark.parametrize(("objective", "source"), [("authors", "value_model"), ("paper", "prior_samples")])
def test_the_threshold_source_can_follow_the_objective(objective: str, source: str) -> None:
    method = create(BrRcrlConfig(objective=objective, hidden=(8, 8)), make_facts())
    assert method.policy(BrRcrlAct(source="auto"), None).source == source
    assert method.policy(BrRcrlAct(source="prior_samples_logits"), None).source == "prior_samples_logits"
    assert method.policy(BrRcrlAct(), None).source == "prior_samples"  # what recorded rows were played with
    with pytest.raises(ValueError, match="did you mean 'auto'"):
        BrRcrlAct(source="automatic")


def sensitive_model() -> BayesianModel:
    """One whose returns depend on the action."""
    model = make_model()
    with torch.no_grad():
        model.returns.action_part.weight.mul_(6)
    return model


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0, 4.0])
def test_the_best_action_under_any_weight_of_the_prior_is_the_grids(weight: float) -> None:
    """Against -alpha log p(a|s) - log p(R >= theta|s,a), written out on a grid of the whole box."""
    model, observations = sensitive_model(), torch.randn(3, 3, generator=torch.Generator().manual_seed(2))
    chooser = Chooser(generator=torch.Generator().manual_seed(0))
    policy = BayesianPolicy(Adaptive(0.2), chooser, model=model, optimizer=CrossEntropy(512, 10), prior_weight=weight)
    policy.reset(3)
    actions = policy.act(observations)

    def energy(candidates: torch.Tensor) -> torch.Tensor:
        prior, encoded = model.prior(observations), model.returns.encode(observations)
        probabilities = model.returns.log_probs(encoded, candidates).exp()
        tails = [row[:, bucket:].sum(-1) for row, bucket in zip(probabilities, policy.trace["bucket"], strict=True)]
        return -weight * prior.log_prob(candidates) - torch.stack(tails).log()

    with torch.no_grad():
        grid = torch.cartesian_prod(torch.linspace(-1, 1, 101), torch.linspace(-2, 2, 201)).expand(3, -1, -1)
        lowest = energy(grid).min(1).values
        torch.testing.assert_close(policy.trace["energy"], energy(actions.unsqueeze(1)).squeeze(1))
    assert (policy.trace["energy"] <= lowest + 1e-3).all()


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_impossible_weights_of_the_prior_are_refused(weight: float) -> None:
    for act in (BrRcrlAct, JointAct):
        with pytest.raises(ValueError, match="prior_weight must lie in"):
            act(prior_weight=weight)


@pytest.mark.parametrize("alpha", [1.0, 0.6, 2.0])
def test_sampling_draws_from_pi_delta(alpha: float) -> None:
    """Sampled actions have the mean of p(a|s)^alpha p(R >= theta|s,a), computed by brute force over the prior."""
    model = make_model()
    with torch.no_grad():
        model.returns.action_part.weight.mul_(6)
    observation = torch.zeros(1, 3)
    chooser = Chooser("sample", generator=torch.Generator().manual_seed(0))
    policy = BayesianPolicy(Adaptive(0.2), chooser, model=model, prior_samples=256, prior_weight=alpha)
    policy.reset(1)
    drawn = torch.cat([policy.act(observation) for _ in range(600)])
    bucket = policy.trace["bucket"]
    prior, encoded = model.prior(observation), model.returns.encode(observation)
    noise = torch.randn(40_000, 2, generator=torch.Generator().manual_seed(9))
    candidates = prior.sample(noise, torch.zeros(40_000))
    reaching = torch.exp(-model.energy(prior, encoded, candidates, bucket) - prior.log_prob(candidates))[0]
    weights = reaching * prior.log_prob(candidates)[0].exp() ** (alpha - 1)
    expected = (weights[:, None] * candidates[0]).sum(0) / weights.sum()
    spread = candidates[0].std(0)
    assert ((drawn.mean(0) - expected).abs() < 4 * spread / 600**0.5 + 0.01).all()
