"""The networks against closed forms and against themselves evaluated the slow way."""

from __future__ import annotations

import math

import pytest
import torch
from brrcrl_lib.models import ActionPrior, BayesianModel, ReturnModel, Standardiser, ValueModel

from brrcrl_lib.returns import ReturnBuckets

LOW, HIGH = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0])


def make_prior(**options) -> ActionPrior:
    torch.manual_seed(0)
    return ActionPrior(3, LOW, HIGH, hidden=(16, 16), **options)


def make_model(fusion: str = "early") -> BayesianModel:
    torch.manual_seed(1)
    buckets = ReturnBuckets(0.0, 10.0, 6)
    standardiser = Standardiser(torch.zeros(3), torch.ones(3))
    returns = ReturnModel(3, 2, 6, (16, 16, 16), fusion, head_width=8)
    return BayesianModel(standardiser, make_prior(), returns, ValueModel(3, 6, (16, 16)), buckets)


def test_gaussian_log_prob_is_that_of_torch() -> None:
    distribution = make_prior()(torch.randn(4, 3))
    actions = torch.randn(4, 5, 2)
    oracle = torch.distributions.Normal(distribution.mean, distribution.log_std.exp()).log_prob(actions).sum(-1)
    torch.testing.assert_close(distribution.log_prob(actions), oracle)


def test_mixture_log_prob_is_that_of_torch() -> None:
    distribution = make_prior(components=3)(torch.randn(4, 3))
    actions = torch.randn(5, 4, 2)
    oracle = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=distribution.log_weight),
        torch.distributions.Independent(torch.distributions.Normal(distribution.mean, distribution.log_std.exp()), 1),
    ).log_prob(actions)
    torch.testing.assert_close(distribution.log_prob(actions.transpose(0, 1)), oracle.T)


@pytest.mark.parametrize("components", [1, 2])
def test_squashed_density_integrates_to_one(components: int) -> None:
    distribution = make_prior(squash=True, components=components)(torch.randn(1, 3))
    n = 400
    x = LOW[0] + (torch.arange(n) + 0.5) / n * (HIGH - LOW)[0]
    y = LOW[1] + (torch.arange(n) + 0.5) / n * (HIGH - LOW)[1]
    grid = torch.cartesian_prod(x, y).unsqueeze(0)
    cell = float((HIGH - LOW).prod()) / n**2
    assert float(distribution.log_prob(grid).detach().exp().sum() * cell) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("options", [{}, {"components": 3}, {"squash": True}])
def test_samples_follow_the_density(options: dict) -> None:
    """E[exp(-log p)] over samples inside the box is the volume of the box, for a density that lives in it."""
    distribution = make_prior(log_std_range=(-1.5, -1.0), **options)(torch.randn(2, 3))
    generator = torch.Generator().manual_seed(0)
    noise, uniform = torch.randn(20_000, 2, generator=generator), torch.rand(20_000, generator=generator)
    samples = distribution.sample(noise, uniform)
    assert (samples >= LOW).all() and (samples <= HIGH).all()
    raw_mean = (distribution.log_weight.exp().unsqueeze(-1) * distribution.mean).sum(1)
    if not distribution.squash:  # the box clips little here: means agree
        torch.testing.assert_close(samples.mean(1), raw_mean, atol=0.03, rtol=0)
    again = distribution.sample(noise, uniform)
    torch.testing.assert_close(samples, again, atol=0, rtol=0)
    alone = make_prior(log_std_range=(-1.5, -1.0), **options)(torch.zeros(1, 3))
    assert alone.sample(noise[:7], uniform[:7]).shape == (1, 7, 2)


def test_log_std_is_clipped() -> None:
    prior = make_prior(log_std_range=(-0.25, 0.25))
    with torch.no_grad():
        prior.net[-1].bias.fill_(50.0)
    assert prior(torch.zeros(1, 3)).log_std.max().item() == 0.25


def test_split_first_layer_equals_one_layer_on_the_joined_input() -> None:
    model = ReturnModel(3, 2, 6, (16, 16, 16), fusion="early")
    states, actions = torch.randn(4, 3), torch.randn(4, 5, 2)
    joined = torch.cat([states.unsqueeze(1).expand(-1, 5, -1), actions], -1)
    weight = torch.cat([model.state_part.weight, model.action_part.weight], 1)
    first = torch.relu(joined @ weight.T + model.state_part.bias)
    oracle = model.trunk(first).log_softmax(-1)
    torch.testing.assert_close(model.log_probs(model.encode(states), actions), oracle)


@pytest.mark.parametrize("fusion", ["early", "late"])
def test_energy_is_minus_log_prior_minus_log_tail(fusion: str) -> None:
    model = make_model(fusion)
    states, actions, bucket = torch.randn(4, 3), torch.rand(4, 5, 2), torch.tensor([0, 2, 4, 5])
    prior, encoded = model.prior(states), model.returns.encode(states)
    energy = model.energy(prior, encoded, actions, bucket)
    probabilities = model.returns.log_probs(encoded, actions).exp()
    for i in range(4):
        for j in range(5):
            z = (actions[i, j] - prior.mean[i, 0]) / prior.log_std[i, 0].exp()
            density = float((-0.5 * z**2 - prior.log_std[i, 0] - 0.5 * math.log(2 * math.pi)).sum())
            tail = math.log(float(probabilities[i, j, bucket[i] :].sum()))
            assert float(energy[i, j]) == pytest.approx(-density - tail, abs=1e-4)


def test_unknown_fusion_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown fusion 'middle'"):
        ReturnModel(3, 2, 6, fusion="middle")
