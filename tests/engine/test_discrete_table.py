"""The joint table against Bayes' rule, and the projection against a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from brrcrl_lib.discrete.encoders import CONVOLUTIONS, PixelEncoder, channels_last, make_encoder
from brrcrl_lib.discrete.losses import project
from brrcrl_lib.discrete.models import DiscreteVanilla, JointReturnModel
from brrcrl_lib.discrete.table import JointTable
from discrete_cases import BUCKETS, random_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from brrcrl_lib.returns import ReturnBuckets

LOGITS = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 7)), elements=st.floats(-30, 30)
)
EXACT = {"atol": 1e-9, "rtol": 1e-9}


@settings(max_examples=80, deadline=None)
@given(LOGITS, st.data())
def test_everything_that_follows_from_the_table_agrees(logits: np.ndarray, data) -> None:
    """Normalisation, marginals and Bayes' rule, with the joint as nothing but exp(logit) over its sum."""
    table = JointTable(torch.as_tensor(logits))
    states, _, count = logits.shape
    weights = np.exp(logits - logits.max((1, 2), keepdims=True))
    joint = torch.as_tensor(weights / weights.sum((1, 2), keepdims=True))
    actions, returns = joint.sum(2), joint.sum(1)
    torch.testing.assert_close(table.log_joint().exp(), joint, **EXACT)
    torch.testing.assert_close(table.log_actions().exp(), actions, **EXACT)
    torch.testing.assert_close(table.log_returns().exp(), returns, **EXACT)
    # p(R|s,a) p(a|s) = p(a,R|s), and each p(R|s,a) is a distribution
    given_action = table.log_returns_of_actions().exp()
    torch.testing.assert_close(given_action * actions.unsqueeze(-1), joint, **EXACT)
    torch.testing.assert_close(given_action.sum(-1), torch.ones_like(actions), **EXACT)
    # p(R|s) is the mixture of p(R|s,a) that Algorithm 1 estimates from samples
    torch.testing.assert_close((actions.unsqueeze(-1) * given_action).sum(1), returns, **EXACT)

    picked = torch.as_tensor(data.draw(st.lists(st.integers(0, logits.shape[1] - 1), min_size=states, max_size=states)))
    bucket = torch.as_tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=states, max_size=states)))
    rows = torch.arange(states)
    torch.testing.assert_close(table.log_returns_of(picked).exp(), given_action[rows, picked], **EXACT)
    # Bayes: p(a|s,R) p(R|s) = p(a,R|s)
    conditional = table.log_actions_given(bucket).exp()
    torch.testing.assert_close(conditional * returns[rows, bucket].unsqueeze(-1), joint[rows, :, bucket], **EXACT)
    torch.testing.assert_close(conditional.sum(-1), torch.ones(states, dtype=torch.float64), **EXACT)
    # p(a | s, R >= theta) p(R >= theta | s) = sum of the joint from theta on = exp(-energy)
    tails = torch.stack([joint[i, :, int(bucket[i]) :].sum(-1) for i in range(states)])
    reaching = table.log_actions_reaching(bucket).exp()
    torch.testing.assert_close(reaching * tails.sum(-1, keepdim=True), tails, **EXACT)
    torch.testing.assert_close((-table.energy(bucket)).exp(), tails, **EXACT)
    torch.testing.assert_close((-table.energy(bucket)).softmax(-1), reaching, **EXACT)  # Proposition 1
    # nothing below theta is left out at theta = 0, and conditioning on everything changes nothing
    torch.testing.assert_close(table.log_actions_reaching(torch.zeros_like(bucket)).exp(), actions, **EXACT)


def literal_projection(probabilities, reward: float, discount: float, buckets: ReturnBuckets) -> np.ndarray:
    """C51's algorithm 1, one atom at a time."""
    points = [float(buckets.decode(torch.tensor(j))) for j in range(buckets.count)]
    result = np.zeros(buckets.count)
    for j, z in enumerate(points):
        moved = min(max(reward + discount * z, points[0]), points[-1])
        position = (moved - points[0]) / buckets.width
        lower, upper = int(np.floor(position)), int(np.ceil(position))
        if upper >= buckets.count:
            lower = upper = buckets.count - 1
        if lower == upper:
            result[lower] += probabilities[j]
        else:
            result[lower] += probabilities[j] * (upper - position)
            result[upper] += probabilities[j] * (position - lower)
    return result


@pytest.mark.parametrize("scheme", ["paper_grid", "equal_width"])
def test_projection_equals_the_loop(scheme: str) -> None:
    buckets = ReturnBuckets(-2.0, 7.0, 13, scheme)
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(40, 13, generator=generator).softmax(-1)
    rewards = 8 * torch.rand(40, generator=generator) - 4
    discounts = torch.rand(40, generator=generator) * (torch.rand(40, generator=generator) < 0.7)
    projected = project(probabilities, rewards, discounts, buckets)
    for i in range(40):
        slow = literal_projection(probabilities[i].tolist(), float(rewards[i]), float(discounts[i]), buckets)
        np.testing.assert_allclose(projected[i].numpy(), slow, atol=2e-6)
    torch.testing.assert_close(projected.sum(-1), torch.ones(40))


@settings(max_examples=60, deadline=None)
@given(st.floats(-0.5, 0.5), st.floats(0, 0.9), st.integers(0, 2**31))
def test_projection_keeps_the_mean_inside_the_range(reward: float, discount: float, seed: int) -> None:
    buckets = ReturnBuckets(-5.0, 5.0, 21, "paper_grid")
    points = buckets.decode(torch.arange(21))
    probabilities = torch.randn(1, 21, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    projected = project(probabilities, torch.tensor([reward]), torch.tensor([discount]), buckets)
    expected = reward + discount * float(probabilities[0] @ points)
    assert float(projected[0] @ points) == pytest.approx(expected, abs=1e-4)


def test_projection_of_an_ending_is_the_reward_alone() -> None:
    projected = project(torch.full((2, 11), 1 / 11), torch.tensor([3.0, 99.0]), torch.zeros(2), BUCKETS)
    assert projected[0].argmax() == 3 and float(projected[0, 3]) == pytest.approx(1)
    assert float(projected[1, 10]) == pytest.approx(1)  # beyond the range: its end


# -- encoders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_frames_are_scaled_bytes(kind: str) -> None:
    torch.manual_seed(0)
    model = JointReturnModel(PixelEncoder((4, 84, 84), kind), 6, BUCKETS)
    frames = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    table = model(frames)
    assert table.logits.shape == (3, 6, 11)
    torch.testing.assert_close(model.encoder.net(frames.float() / 255), model.encoder(frames))
    torch.testing.assert_close(model(frames.float()).logits, table.logits)
    assert {"nature": 512, "light": 256}[kind] == model.encoder.width


def test_the_nature_network_has_its_published_size() -> None:
    count = sum(weight.numel() for weight in PixelEncoder((4, 84, 84), "nature").parameters())
    assert count == (4 * 64 * 32 + 32) + (32 * 16 * 64 + 64) + (64 * 9 * 64 + 64) + (3136 * 512 + 512)


def test_an_encoder_that_does_not_fit_is_refused() -> None:
    assert make_encoder("auto", (4,), (8,)).width == 8
    assert make_encoder("auto", (4,), ()).width == 4
    assert make_encoder("auto", (4, 84, 84), ()).width == 256
    for kind, shape in (("mlp", (4, 84, 84)), ("nature", (4,)), ("mlp", (4, 84))):
        with pytest.raises(ValueError, match="cannot read observations"):
            make_encoder(kind, shape, (8,))
    with pytest.raises(ValueError, match="did you mean 'nature'"):
        make_encoder("natur", (4, 84, 84), ())
    with pytest.raises(ValueError, match="too small"):
        make_encoder("nature", (4, 12, 12), ())


def test_the_value_head_of_vanilla_leaves_the_encoder_alone() -> None:
    model = DiscreteVanilla(make_encoder("mlp", (4,), (8, 8)), 3, BUCKETS)
    model.log_returns(model.encoder(random_batch().observations)).sum().backward()
    assert all(weight.grad is None for weight in model.encoder.parameters())
    assert all(weight.grad is not None for weight in model.value.parameters())


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_frames_give_the_same_features_and_gradients_in_any_layout(kind: str) -> None:
    """Against bytes divided by 255 as they lie: only the order of the sums may differ."""
    torch.manual_seed(0)
    encoder = PixelEncoder((4, 84, 84), kind)
    frames = torch.randint(256, (5, 4, 84, 84), dtype=torch.uint8)
    weights = list(encoder.parameters())
    fast, plain = encoder(frames), encoder.net(frames.float() / 255)
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-4)
    pairs = zip(*(torch.autograd.grad(out.square().sum(), weights) for out in (fast, plain)), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)
    moved = channels_last(frames)
    assert channels_last(moved) is moved and torch.equal(moved, frames.float())
