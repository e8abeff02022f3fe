"""Each discrete loss against a literal transcription, and both learners against a chain that is solved exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from brrcrl_lib.discrete.build import DiscreteConfig
from brrcrl_lib.discrete.data import DiscreteBatch
from brrcrl_lib.discrete.encoders import VectorEncoder
from brrcrl_lib.discrete.losses import cloning_loss, distributional_td_loss, monte_carlo_loss, vanilla_loss
from brrcrl_lib.discrete.models import DiscreteCloning, DiscreteVanilla
from brrcrl_lib.discrete.table import JointTable
from brrcrl_lib.discrete.train import fit_discrete
from discrete_cases import BUCKETS, Chain, WholeData, joint_model, random_batch
from test_discrete_table import literal_projection

CHAIN = Chain()


def assert_same_gradients(one: torch.Tensor, two: torch.Tensor, *modules: torch.nn.Module) -> None:
    assert float(one.detach()) == pytest.approx(float(two.detach()), abs=1e-5, rel=1e-6)
    weights = [weight for module in modules for weight in module.parameters()]
    fast, slow = (torch.autograd.grad(loss, weights, allow_unused=True) for loss in (one, two))
    for a, b in zip(fast, slow, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def weights_of(model, observations: torch.Tensor) -> torch.Tensor:
    """exp(logit) [A, N] of one state: an unnormalised joint, with nothing else borrowed from the library."""
    return model.head(model.encoder(observations.unsqueeze(0))).view(model.action_count, -1).exp()


def literal_monte_carlo(model, batch: DiscreteBatch, weight: float, penalty: float) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(len(batch.actions)):
        table, action = weights_of(model, batch.observations[i]), int(batch.actions[i])
        label = min(model.buckets.count - 1, max(0, math.floor(float(batch.returns[i]) / model.buckets.width)))
        total = total - torch.log(table[action, label] / sum(table[a, label] for a in range(len(table))))  # L0
        total = total - weight * torch.log(table[action, label] / sum(table[action]))  # L1
        total = total + penalty * sum(torch.log(sum(row)) ** 2 for row in table) / len(table)
    return total / len(batch.actions)


def literal_td(model, target, behaviour, batch: DiscreteBatch, discount, weight, penalty) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(len(batch.actions)):
        table, action = weights_of(model, batch.observations[i]), int(batch.actions[i])
        following = weights_of(target, batch.next_observations[i]).detach()
        if behaviour is None:
            policy = following.sum(1) / following.sum()
        else:
            scores = behaviour.head(behaviour.encoder(batch.next_observations[i : i + 1]))[0].detach().exp()
            policy = scores / scores.sum()
        mixture = sum(policy[a] * following[a] / following[a].sum() for a in range(len(policy)))
        used = 0.0 if bool(batch.done[i]) else discount
        wanted = literal_projection(mixture.tolist(), float(batch.rewards[i]), used, model.buckets)
        row = table[action] / sum(table[action])
        total = total - weight * sum(wanted[j] * torch.log(row[j]) for j in range(len(row)))
        total = total - torch.log(sum(table[action]) / sum(sum(other) for other in table))
        total = total + penalty * sum(torch.log(sum(other)) ** 2 for other in table) / len(table)
        if behaviour is not None:
            scores = behaviour.head(behaviour.encoder(batch.observations[i : i + 1]))[0].exp()
            total = total - torch.log(scores[action] / sum(scores))
    return total / len(batch.actions)


@pytest.mark.parametrize(("weight", "penalty"), [(20.0, 0.0), (1.0, 0.5), (0.0, 0.0)])
def test_monte_carlo_loss_equals_its_transcription(weight: float, penalty: float) -> None:
    model, batch = joint_model(), random_batch()
    fast = monte_carlo_loss(model, batch, weight, penalty)["loss"]
    assert_same_gradients(fast, literal_monte_carlo(model, batch, weight, penalty), model)


@pytest.mark.parametrize("cloned", [True, False])
@pytest.mark.parametrize(("weight", "penalty"), [(20.0, 0.5), (1.0, 0.0)])
def test_distributional_loss_equals_its_transcription(weight: float, penalty: float, cloned: bool) -> None:
    model, target, batch = joint_model(0), joint_model(1), random_batch()
    torch.manual_seed(2)
    behaviour = DiscreteCloning(VectorEncoder(4, (8, 8)), 3) if cloned else None
    trained = [model, behaviour] if behaviour is not None else [model]
    fast = distributional_td_loss(model, target, behaviour, batch, 0.95, weight, penalty)["loss"]
    slow = literal_td(model, target, behaviour, batch, 0.95, weight, penalty)
    assert_same_gradients(fast, slow, *trained)
    reached = torch.autograd.grad(fast, list(target.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in reached)  # the copy is not trained


def test_baseline_losses_are_categorical_likelihoods() -> None:
    batch = random_batch()
    cloning = DiscreteCloning(VectorEncoder(4, (8, 8)), 3)
    logits = cloning.head(cloning.encoder(batch.observations))
    oracle = -torch.distributions.Categorical(logits=logits).log_prob(batch.actions).mean()
    assert_same_gradients(cloning_loss(cloning, batch)["loss"], oracle, cloning)
    vanilla = DiscreteVanilla(VectorEncoder(4, (8, 8)), 3, BUCKETS)
    features = vanilla.encoder(batch.observations)
    logits = vanilla.policy(torch.cat([features, batch.returns.unsqueeze(-1) / 10], -1))
    oracle = -torch.distributions.Categorical(logits=logits).log_prob(batch.actions).mean()
    labels = BUCKETS.encode(batch.returns)
    value = -torch.distributions.Categorical(logits=vanilla.value(features.detach())).log_prob(labels).mean()
    assert_same_gradients(vanilla_loss(vanilla, batch)["loss"], oracle + value, vanilla)


# -- the exact chain ---------------------------------------------------------------------------------------------


def learned(**options) -> JointTable:
    """A table-like model (one-hot states, no hidden layer) fitted on the chain; its table of every state."""
    settings = {"steps": 600, "hidden": (), "buckets": 9, "value_range": (0.0, 2.0), "bucket_scheme": "paper_grid",
                "learning_rate": 0.05, "target_every": 30, "device": "cpu"}  # fmt: skip
    run = fit_discrete(DiscreteConfig(**{**settings, **options}), WholeData(CHAIN.dataset()))
    with torch.no_grad():
        return run.model(torch.eye(CHAIN.states))


def empirical() -> np.ndarray:
    """p(R|s,a) counted in the data."""
    data = CHAIN.dataset()
    counts = np.zeros((CHAIN.states, 2, 9))
    bucket = np.rint(data.rtg.numpy() / 0.25).astype(int)
    np.add.at(counts, (data.observations.argmax(-1).numpy(), data.actions.numpy(), bucket), 1)
    return counts / counts.sum(-1, keepdims=True)


def test_the_chain_is_what_it_says() -> None:
    """Enumeration, dynamic programming by hand for one entry, and counts of the sampled data agree."""
    exact = CHAIN.exact()
    np.testing.assert_allclose(exact.sum(-1), 1)
    # state 3, gamble: pays 1 with chance 0.3. State 1, action 0: pays 1 and leads to state 3 for sure.
    np.testing.assert_allclose(exact[3, 1, [0, 4]], [0.7, 0.3])
    np.testing.assert_allclose(exact[1, 0, [4, 6]], [0.5 * 0.7, 0.5 + 0.5 * 0.3])  # 1, and 1 + 0.5
    assert np.abs(empirical() - exact).max() < 0.01


@pytest.mark.parametrize("options", [
    {"learner": "monte_carlo"},
    {"learner": "distributional_td", "action_penalty": 0.0},
    {"learner": "distributional_td", "action_penalty": 0.0, "next_policy": "own"},
], ids=["monte_carlo", "distributional_td", "own"])  # fmt: skip
def test_both_learners_find_the_exact_return_distributions(options: dict) -> None:
    """p(R|s,a) of every state and action within 0.02 in total variation (uninformed: over 0.5), p(a|s) within 0.02."""
    table, exact = learned(return_weight=1.0, **options), CHAIN.exact()
    distance = np.abs(table.log_returns_of_actions().exp().numpy() - exact).sum(-1) / 2
    assert distance.max() < 0.02
    assert np.abs(table.log_actions().exp().numpy() - CHAIN.policy).max() < 0.02
    marginal = (CHAIN.policy[..., None] * exact).sum(1)  # p(R|s)
    assert (np.abs(table.log_returns().exp().numpy() - marginal).sum(-1) / 2).max() < 0.02


def penalised_policy(policy: np.ndarray, weight: float) -> np.ndarray:
    """The p(a|s) that minimises -sum_a policy log p + weight x mean square of its logits: [..., A], by descent."""
    logits = np.zeros_like(policy)
    for _ in range(4_000):
        probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        logits -= 0.1 * (probabilities - policy + 2 * weight * logits / policy.shape[-1])
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def test_the_action_penalty_flattens_the_prior_and_leaves_returns_alone() -> None:
    table = learned(learner="distributional_td")  # the released code's weights: 20 on returns, penalty 0.5
    distance = np.abs(table.log_returns_of_actions().exp().numpy() - CHAIN.exact()).sum(-1) / 2
    assert distance.max() < 0.02
    flattened = penalised_policy(CHAIN.policy, 0.5)
    assert np.abs(table.log_actions().exp().numpy() - flattened).max() < 0.02
    assert np.abs(CHAIN.policy - flattened).max() > 0.12  # and that is not what the data did
    assert penalised_policy(np.eye(4)[:1], 0.5)[0, 0] == pytest.approx(2 / 3, abs=0.02)  # as its docstring says
