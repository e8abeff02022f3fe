"""Acting with a discrete model: against the table's own sums, in batches, with and without luck."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from discrete_cases import BUCKETS, discrete_facts, joint_model, random_batch

from brrcrl_lib.evaluate import evaluate
from brrcrl_lib.inference.targets import Adaptive, Constant, DecisionTransformerSchedule, Target
from brrcrl_lib.methods.base import create
from brrcrl_lib.methods.br_rcrl_joint import JointPolicy, JointReturnModel
from brrcrl_lib.methods.cloning import CloningAct, CloningConfig
from brrcrl_lib.methods.vanilla import VanillaConfig, VanillaPolicy
from brrcrl_lib.nets import Categorical, GaussianMixture, PixelEncoder
from brrcrl_lib.policies import Chooser

STATES = random_batch(9).observations


def sharp_model() -> JointReturnModel:
    """A model whose actions and returns differ a lot from state to state."""
    model = joint_model(5)
    with torch.no_grad():
        model.head.weight.mul_(12)
    return model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_weight_of_the_prior_decides_the_action_and_the_energy() -> None:
    model, chosen = sharp_model(), {}
    for alpha in (0.0, 1.0, 50.0):
        policy = JointPolicy(Adaptive(0.02), model=model, prior_weight=alpha)
        policy.reset(len(STATES))
        chosen[alpha] = policy.act(STATES)
        with torch.no_grad():
            table, bucket = model(STATES), policy.trace["bucket"]
            given, prior = table.log_returns_of_actions().exp(), table.log_actions()
        reaching = torch.stack([given[i, :, int(bucket[i]) :].sum(-1) for i in range(len(STATES))])
        energy = -alpha * prior - reaching.log()
        assert torch.equal(chosen[alpha], energy.argmin(-1))
        torch.testing.assert_close(policy.trace["energy"], energy.min(-1).values, rtol=1e-4, atol=1e-4)
    assert torch.equal(chosen[50.0], prior.argmax(-1)) and not torch.equal(chosen[0.0], chosen[50.0])


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.02])
def test_the_adaptive_action_by_brute_force(delta: float) -> None:
    """theta_delta and argmax_a p(a | s, R >= theta), from the joint probabilities, one state at a time."""
    model = sharp_model()
    policy = JointPolicy(Adaptive(delta), model=model)
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


RULES = {
    "adaptive": lambda: Adaptive(0.2),
    "max": lambda: Constant(7.0),
    "dt_schedule": lambda: DecisionTransformerSchedule(7.0, discount=0.9),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_equals_its_states_one_by_one(rule: str) -> None:
    model = sharp_model()

    def act(rows: torch.Tensor) -> torch.Tensor:
        target: Target = RULES[rule]()
        policy = JointPolicy(target, model=model)
        policy.reset(len(rows))
        policy.act(rows)
        policy.observe(torch.ones(len(rows)))
        return policy.act(rows)

    alone = torch.cat([act(STATES[i : i + 1]) for i in range(9)])
    assert torch.equal(act(STATES), alone)


def test_clipped_rewards_are_taken_off_the_target() -> None:
    for clip, left in ((1.0, (7 - 1) / 0.9), (None, (7 - 5) / 0.9)):
        schedule = DecisionTransformerSchedule(7.0, discount=0.9)
        policy = JointPolicy(schedule, reward_clip=clip, model=joint_model())
        policy.reset(1)
        policy.observe(torch.tensor([5.0]))
        assert float(schedule.wanted[0]) == pytest.approx(left)


# -- randomness ----------------------------------------------------------------------------------------------------


def test_sampling_draws_from_pi_delta() -> None:
    model, state = sharp_model(), STATES[:1]
    policy = JointPolicy(Adaptive(0.3), Chooser("sample", generator=seeded()), model=model)
    policy.reset(20_000)
    drawn = policy.act(state.expand(20_000, -1))
    expected = model(state).log_actions_reaching(policy.trace["bucket"][:1]).exp()[0]
    shares = torch.bincount(drawn, minlength=3) / 20_000
    torch.testing.assert_close(shares, expected.detach(), atol=0.015, rtol=0)


def test_epsilon_is_the_share_of_uniform_actions() -> None:
    log_policy = torch.tensor([0.0, -50.0, -50.0, -50.0]).expand(40_000, -1)
    drawn = Chooser(epsilon=0.2, generator=seeded()).pick(log_policy)
    shares = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(shares, torch.tensor([0.85, 0.05, 0.05, 0.05]), atol=0.01, rtol=0)
    assert (Chooser(epsilon=0.0).pick(log_policy) == 0).all()


def test_an_episode_keeps_its_random_numbers_when_others_end() -> None:
    log_policy = torch.zeros(5, 7).log_softmax(-1)
    whole, thinned = Chooser("sample", 0.5, seeded(3)), Chooser("sample", 0.5, seeded(3))
    for chooser in (whole, thinned):
        chooser.reset(5)
    assert torch.equal(whole.pick(log_policy), thinned.pick(log_policy))
    active = torch.tensor([True, False, True, True, False])
    thinned.keep(active)
    for _ in range(4):
        assert torch.equal(whole.pick(log_policy)[active], thinned.pick(log_policy[:3]))
    other = Chooser("sample", 0.5, seeded(4))
    assert not all(torch.equal(other.pick(log_policy), whole.pick(log_policy)) for _ in range(4))


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
    policy = JointPolicy(Adaptive(0.1), Chooser(epsilon=0.01, generator=seeded()), 1.0, model=model)
    result = evaluate(policy, Flicker, episodes=2, discount=0.5, reward_clip=1.0)
    assert set(seen) == {torch.uint8}
    assert result.returns.tolist() == [15.0, 15.0]
    assert result.trace["observed"].tolist() == [1.75, 1.5, 1.0] * 2


def test_draws_from_a_box_follow_the_distribution_and_their_own_episode() -> None:
    mixture = GaussianMixture(
        mean=torch.tensor([[[0.2, -0.1]]]).expand(4_000, -1, -1),
        log_std=torch.full((4_000, 1, 2), -2.0),
        log_weight=torch.zeros(4_000, 1),
        low=-torch.ones(2),
        high=torch.ones(2),
        squash=False,
    )
    drawn = Chooser("sample", generator=seeded()).choose(mixture)
    torch.testing.assert_close(drawn.mean(0), torch.tensor([0.2, -0.1]), atol=0.01, rtol=0)
    torch.testing.assert_close(drawn.std(0), torch.full((2,), -2.0).exp(), atol=0.01, rtol=0)
    assert torch.equal(Chooser().choose(mixture), mixture.mode())


# -- rivals --------------------------------------------------------------------------------------------------------


def test_rivals_play_their_own_distributions() -> None:
    facts = discrete_facts()
    cloning = create(CloningConfig(hidden=(8, 8)), facts)
    clone = cloning.policy(CloningAct(epsilon=0.0), None)
    assert torch.equal(clone.act(STATES), cloning.model(STATES).log_probs.argmax(-1))
    vanilla = create(VanillaConfig(hidden=(8, 8), buckets=11, value_range=(0.0, 10.0)), facts).model
    policy = VanillaPolicy(Constant(6.5), model=vanilla)
    policy.reset(9)
    features = vanilla.encoder(STATES)
    expected = vanilla.actions(features, torch.full((9,), 6.5))
    assert isinstance(expected, Categorical)
    assert torch.equal(policy.act(STATES), expected.mode())
    adaptive = VanillaPolicy(Adaptive(0.2), model=vanilla)
    adaptive.act(STATES)
    bucket = vanilla.buckets.threshold(vanilla.log_returns(features).exp(), 0.2)
    torch.testing.assert_close(adaptive.trace["target"], vanilla.buckets.decode(bucket))
