"""Acting with a discrete model: against the table's own sums, in batches, with and without luck."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from brrcrl_lib.discrete.encoders import PixelEncoder, VectorEncoder
from brrcrl_lib.discrete.models import DiscreteCloning, DiscreteVanilla, JointReturnModel
from brrcrl_lib.discrete.policies import Chooser, DiscreteCloningPolicy, DiscreteVanillaPolicy, JointPolicy
from discrete_cases import BUCKETS, joint_model, random_batch

from brrcrl_lib.evaluate import evaluate
from brrcrl_lib.inference.targets import Adaptive, Constant, make_target

STATES = random_batch(9).observations


def sharp_model() -> JointReturnModel:
    """A model whose actions and returns differ a lot from state to state."""
    model = joint_model(5)
    with torch.no_grad():
        model.head.weight.mul_(12)
    return model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.02])
def test_the_adaptive_action_by_brute_force(delta: float) -> None:
    """theta_delta and argmax_a p(a | s, R >= theta), from the joint probabilities, one state at a time."""
    model = sharp_model()
    policy = JointPolicy(model, Adaptive(delta))
    policy.reset(len(STATES))
    actions = policy.act(STATES)
    assert actions.dtype == torch.int64 and actions.shape == (9,)
    for i, state in enumerate(STATES):
        with torch.no_grad():
            weights = model.head(model.encoder(state.unsqueeze(0))).view(3, 11).double().exp().numpy()
        joint = weights / weights.sum()
        tails = [joint[:, k:].sum() for k in range(11)]
        bucket = max(k for k in range(11) if tails[k] >= delta)
        chances = joint[:, bucket:].sum(1) / tails[bucket]
        assert int(actions[i]) == int(chances.argmax())
        assert int(policy.trace["bucket"][i]) == bucket
        assert float(policy.trace["target"][i]) == pytest.approx(bucket * 1.0)
        own = joint[int(actions[i])]
        assert float(policy.trace["predicted"][i]) == pytest.approx((own / own.sum() * np.arange(11)).sum(), abs=1e-4)
        assert float(policy.trace["energy"][i]) == pytest.approx(-np.log(own[bucket:].sum()), abs=1e-4)


@pytest.mark.parametrize("rule", ["adaptive", "max", "dt_schedule", "fixed"])
def test_a_batch_equals_its_states_one_by_one(rule: str) -> None:
    model = sharp_model()

    def act(rows: torch.Tensor) -> torch.Tensor:
        policy = JointPolicy(model, make_target(rule, delta=0.2, value=7.0, discount=0.9))
        policy.reset(len(rows))
        policy.act(rows)
        policy.observe(torch.ones(len(rows)))
        return policy.act(rows)

    alone = torch.cat([act(STATES[i : i + 1]) for i in range(9)])
    assert torch.equal(act(STATES), alone)


def test_clipped_rewards_are_taken_off_the_target() -> None:
    for clip, left in ((1.0, (7 - 1) / 0.9), (None, (7 - 5) / 0.9)):
        schedule = make_target("dt_schedule", delta=0.1, value=7.0, discount=0.9)
        policy = JointPolicy(joint_model(), schedule, reward_clip=clip)
        policy.reset(1)
        policy.observe(torch.tensor([5.0]))
        assert float(policy.target.wanted[0]) == pytest.approx(left)


# -- randomness ----------------------------------------------------------------------------------------------------


def test_sampling_draws_from_pi_delta() -> None:
    model, state = sharp_model(), STATES[:1]
    policy = JointPolicy(model, Adaptive(0.3), Chooser("sample", generator=seeded()))
    policy.reset(20_000)
    drawn = policy.act(state.expand(20_000, -1))
    expected = model(state).log_actions_reaching(policy.trace["bucket"][:1]).exp()[0]
    shares = torch.bincount(drawn, minlength=3) / 20_000
    torch.testing.assert_close(shares, expected.detach(), atol=0.015, rtol=0)


def test_epsilon_is_the_share_of_uniform_actions() -> None:
    log_policy = torch.tensor([0.0, -50.0, -50.0, -50.0]).expand(40_000, -1)
    drawn = Chooser(epsilon=0.2, generator=seeded()).choose(log_policy)
    shares = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(shares, torch.tensor([0.85, 0.05, 0.05, 0.05]), atol=0.01, rtol=0)
    assert (Chooser(epsilon=0.0).choose(log_policy) == 0).all()


def test_an_episode_keeps_its_random_numbers_when_others_end() -> None:
    log_policy = torch.zeros(5, 7).log_softmax(-1)
    whole, thinned = Chooser("sample", 0.5, seeded(3)), Chooser("sample", 0.5, seeded(3))
    for chooser in (whole, thinned):
        chooser.reset(5)
    assert torch.equal(whole.choose(log_policy), thinned.choose(log_policy))
    active = torch.tensor([True, False, True, True, False])
    thinned.keep(active)
    for _ in range(4):
        assert torch.equal(whole.choose(log_policy)[active], thinned.choose(log_policy[:3]))
    other = Chooser("sample", 0.5, seeded(4))
    assert not all(torch.equal(other.choose(log_policy), whole.choose(log_policy)) for _ in range(4))


@pytest.mark.parametrize("options", [{"mode": "worst"}, {"epsilon": 1.5}, {"epsilon": -0.1}])
def test_impossible_choices_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"unknown mode|epsilon must lie in"):
        Chooser(**options)


class Flicker(gym.Env):
    """Frames of random bytes, a reward of 5 a step, over after three."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        return self.observation_space.sample(), 5.0, self.left == 0, False, {}


def test_frames_reach_the_model_as_bytes_and_clipped_rewards_are_observed() -> None:
    model = JointReturnModel(PixelEncoder((4, 84, 84), "light"), 6, BUCKETS)
    seen: list[torch.dtype] = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
    policy = JointPolicy(model, Adaptive(0.1), Chooser(epsilon=0.01, generator=seeded()), reward_clip=1.0)
    result = evaluate(policy, Flicker, episodes=2, discount=0.5, reward_clip=1.0)
    assert set(seen) == {torch.uint8}
    assert result.returns.tolist() == [15.0, 15.0]
    assert result.trace["observed"].tolist() == [1.75, 1.5, 1.0] * 2


# -- rivals --------------------------------------------------------------------------------------------------------


def test_rivals_play_their_own_distributions() -> None:
    model = sharp_model()
    assert torch.equal(DiscreteCloningPolicy(model).act(STATES), model(STATES).log_actions().argmax(-1))
    cloning = DiscreteCloning(VectorEncoder(4, (8, 8)), 3)
    assert torch.equal(DiscreteCloningPolicy(cloning).act(STATES), cloning(STATES).argmax(-1))
    vanilla = DiscreteVanilla(VectorEncoder(4, (8, 8)), 3, BUCKETS)
    policy = DiscreteVanillaPolicy(vanilla, Constant(6.5))
    policy.reset(9)
    features = vanilla.encoder(STATES)
    expected = vanilla.log_actions(features, torch.full((9,), 6.5)).argmax(-1)
    assert torch.equal(policy.act(STATES), expected)
    adaptive = DiscreteVanillaPolicy(vanilla, Adaptive(0.2))
    adaptive.act(STATES)
    bucket = BUCKETS.threshold(vanilla.log_returns(features).exp(), 0.2)
    torch.testing.assert_close(adaptive.trace["target"], BUCKETS.decode(bucket))


@pytest.mark.parametrize("mode", ["best", "sample"])
@pytest.mark.parametrize("rule", ["adaptive", "max", "dt_schedule", "fixed"])
def test_acting_never_looks_at_a_value(mode: str, rule: str) -> None:
    frames = torch.zeros(3, 4, 84, 84, dtype=torch.uint8, device="meta")
    encoder = PixelEncoder((4, 84, 84), "light").to("meta")
    chooser = Chooser(mode, 0.01)
    target = make_target(rule, delta=0.1, value=5.0, discount=0.95)
    for policy in (
        JointPolicy(JointReturnModel(encoder, 6, BUCKETS).to("meta"), target, chooser),
        DiscreteCloningPolicy(DiscreteCloning(encoder, 6).to("meta"), chooser),
        DiscreteVanillaPolicy(DiscreteVanilla(encoder, 6, BUCKETS).to("meta"), target, chooser),
    ):
        policy.reset(3)
        assert policy.act(frames).shape == (3,)
        assert policy.act(frames).device.type == "meta"
