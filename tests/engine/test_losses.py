"""Each objective against a literal transcription: one transition at a time, one negative at a time, no sharing."""

from __future__ import annotations

import math

import pytest
import torch
from brrcrl_lib.losses import Batch, Negatives, bayesian_loss, cloning_loss, info_nce, vanilla_loss
from brrcrl_lib.models import CloningModel, RewardConditionedPolicy, Standardiser, ValueModel
from test_models import HIGH, LOW, make_model, make_prior

from brrcrl_lib.returns import ReturnBuckets


def make_batch(size: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(3)
    return Batch(
        torch.randn(size, 3, generator=generator),
        torch.rand(size, 2, generator=generator),
        10 * torch.rand(size, generator=generator),
    )


def literal_loss(model, batch: Batch, candidates: torch.Tensor, objective: str, weight: float) -> torch.Tensor:
    """L0 + lambda L1 + the value model's likelihood, written out with copied states."""
    total = torch.zeros(())
    for i in range(len(batch.actions)):
        label = min(model.buckets.count - 1, int((batch.returns[i] - model.buckets.low) / model.buckets.width))

        def log_prior(action: torch.Tensor, i: int = i) -> torch.Tensor:
            distribution = model.prior(batch.observations[i : i + 1])
            mean, std = distribution.mean[0, 0], distribution.log_std[0, 0].exp()
            z = (action - mean) / std
            return (-0.5 * z * z - std.log() - 0.5 * math.log(2 * math.pi)).sum()

        def log_return(action: torch.Tensor, i: int = i, label: int = label) -> torch.Tensor:
            encoded = model.returns.encode(batch.observations[i : i + 1])
            return model.returns.log_probs(encoded, action.view(1, 1, -1))[0, 0, label]

        actions = [batch.actions[i], *candidates[i]]
        if objective == "authors":
            scores = [torch.exp(log_prior(action) + log_return(action)) for action in actions]
            total = total - torch.log(scores[0] / sum(scores))
        else:
            scores = [torch.exp(log_return(action)) for action in actions]
            total = total - log_prior(actions[0]) - torch.log(scores[0] / sum(scores))
        total = total - weight * log_return(actions[0])
        total = total - model.value(batch.observations[i : i + 1])[0, label]
    return total / len(batch.actions)


@pytest.mark.parametrize("fusion", ["early", "late"])
@pytest.mark.parametrize("objective", ["paper", "authors"])
@pytest.mark.parametrize(("share", "weight"), [(0.0, 1.0), (0.5, 1.0), (1.0, 0.0)])
def test_loss_and_gradients_equal_the_literal_version(objective: str, share: float, weight: float, fusion: str) -> None:
    model, batch = make_model(fusion), make_batch()
    negatives = Negatives.draw(batch.actions, 4, share, torch.Generator().manual_seed(0))
    fast = bayesian_loss(model, batch, negatives, objective, weight)["loss"]
    slow = literal_loss(model, batch, negatives.actions(model.prior(batch.observations)), objective, weight)
    assert float(fast.detach()) == pytest.approx(float(slow.detach()), abs=1e-5)
    gradients = torch.autograd.grad(fast, list(model.parameters()), allow_unused=True)
    oracle = torch.autograd.grad(slow, list(model.parameters()), allow_unused=True)
    for (name, _), one, two in zip(model.named_parameters(), gradients, oracle, strict=True):
        if one is None or two is None:  # a constant shift that one way of writing it never touches
            rest = one if two is None else two
            assert rest is None or float(rest.abs().max()) < 1e-6, name
        else:
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4, msg=name)


def test_negatives_come_from_where_they_should() -> None:
    prior = make_prior()(torch.zeros(500, 3))
    negatives = Negatives.draw(torch.zeros(500, 2), 8, 0.5, torch.Generator().manual_seed(0))
    actions = negatives.actions(prior)
    assert actions.shape == (500, 8, 2)
    assert (actions >= LOW).all() and (actions <= HIGH).all()
    uniform = actions[:, 4:].reshape(-1, 2)
    torch.testing.assert_close(uniform.mean(0), torch.zeros(2), atol=0.1, rtol=0)
    torch.testing.assert_close(uniform.std(0), (HIGH - LOW) / 12**0.5, atol=0.1, rtol=0)
    assert not actions.requires_grad


def test_info_nce_of_equal_scores_is_log_of_their_number() -> None:
    assert float(info_nce(torch.zeros(3, 33))) == pytest.approx(math.log(33))


def test_vanilla_and_cloning_losses_are_gaussian_likelihoods() -> None:
    batch = make_batch()
    identity = Standardiser(torch.zeros(3), torch.ones(3))
    cloning = CloningModel(identity, make_prior())
    prior = cloning.prior(batch.observations)
    oracle = -torch.distributions.Normal(prior.mean[:, 0], prior.log_std[:, 0].exp()).log_prob(batch.actions).sum(-1)
    assert cloning_loss(cloning, batch)["loss"].item() == pytest.approx(oracle.mean().item(), abs=1e-5)

    buckets, value = ReturnBuckets(0.0, 10.0, 6), ValueModel(3, 6, (8, 8))
    vanilla = RewardConditionedPolicy(identity, make_prior(condition_size=1), value, buckets)
    inputs = torch.cat([batch.observations, batch.returns.unsqueeze(-1) / 10], -1)
    prior = vanilla.policy(inputs)
    oracle = -torch.distributions.Normal(prior.mean[:, 0], prior.log_std[:, 0].exp()).log_prob(batch.actions).sum(-1)
    parts = vanilla_loss(vanilla, batch)
    assert parts["prior_nll"].item() == pytest.approx(oracle.mean().item(), abs=1e-5)
    rows = value(batch.observations)[range(len(batch.returns)), buckets.encode(batch.returns)]  # log p(R_i|s_i)
    assert (parts["loss"] - parts["prior_nll"]).item() == pytest.approx(-rows.mean().item(), abs=1e-5)


def test_unknown_objective_is_refused() -> None:
    negatives = Negatives.draw(torch.zeros(6, 2), 4, 0.5, None)
    with pytest.raises(ValueError, match="unknown objective 'both'"):
        bayesian_loss(make_model(), make_batch(), negatives, "both")
