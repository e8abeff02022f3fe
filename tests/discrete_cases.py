"""Small discrete problems for tests: random batches, and a chain whose return distributions are known exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from brrcrl_lib.discrete.data import DiscreteBatch, VectorData
from brrcrl_lib.discrete.encoders import VectorEncoder
from brrcrl_lib.discrete.models import JointReturnModel
from synthetic import synthetic_dataset

from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.returns import ReturnBuckets, reward_to_go

BUCKETS = ReturnBuckets(0.0, 10.0, 11, "paper_grid")


def joint_model(seed: int = 0, actions: int = 3, buckets: ReturnBuckets = BUCKETS, size: int = 4) -> JointReturnModel:
    torch.manual_seed(seed)
    return JointReturnModel(VectorEncoder(size, (16, 16)), actions, buckets)


def random_batch(batch: int = 7, size: int = 4, actions: int = 3, seed: int = 3) -> DiscreteBatch:
    generator = torch.Generator().manual_seed(seed)
    return DiscreteBatch(
        observations=torch.randn(batch, size, generator=generator),
        actions=torch.randint(actions, (batch,), generator=generator),
        returns=11 * torch.rand(batch, generator=generator) - 0.5,
        rewards=4 * torch.rand(batch, generator=generator) - 1,
        next_observations=torch.randn(batch, size, generator=generator),
        done=torch.rand(batch, generator=generator) < 0.3,
        indices=torch.arange(batch),
    )


def discrete_dataset(env_id: str | None = "CartPole-v1", actions: int = 2, size: int = 4) -> OfflineDataset:
    """Random episodes with a reward of 1 a step, and actions of a discrete set."""
    made = synthetic_dataset(observation_size=size, env_id=env_id)
    rng = np.random.default_rng(1)
    rewards = np.ones(len(made), np.float32)
    return replace(
        made,
        id="test/discrete-v0",
        discount=0.95,
        actions=torch.as_tensor(rng.integers(actions, size=len(made))),
        rewards=torch.as_tensor(rewards),
        rtg=torch.as_tensor(reward_to_go(rewards, made.lengths.numpy(), 0.95).astype(np.float32)),
        action_low=torch.tensor([0.0]),
        action_high=torch.tensor([actions - 1.0]),
    )


class Chain:
    """Three decisions in a row, two actions, four states; every return lies on the grid 0, 0.25, ..., 2.

    Action 1 is a gamble: it pays 1 with a chance that depends on the state, and moves on to the better of the two
    next states only if it paid. Action 0 pays nothing or, in odd states, one, for sure.
    """

    discount, horizon = 0.5, 3
    states = 5  # 0: start; 1, 2: second decision; 3, 4: third decision
    buckets = ReturnBuckets(0.0, 2.0, 9, "paper_grid")
    policy = np.array([[0.4, 0.6], [0.3, 0.7], [0.6, 0.4], [0.5, 0.5], [0.25, 0.75]])
    chance = np.array([0.5, 0.2, 0.9, 0.3, 0.6])  # that action 1 pays

    def outcomes(self, state: int, action: int) -> list[tuple[float, float, int | None]]:
        """(probability, reward, next state or None) of an action."""
        lower, upper = {0: (1, 2), 1: (3, 4), 2: (3, 4)}.get(state, (None, None))
        if action == 0:
            return [(1.0, float(state % 2), lower)]
        return [(self.chance[state], 1.0, upper), (1 - self.chance[state], 0.0, lower)]

    def exact(self) -> np.ndarray:
        """p(R|s,a) [states, 2, 9], by enumeration of every trajectory."""
        table = np.zeros((self.states, 2, self.buckets.count))

        def walk(state: int, action: int) -> list[tuple[float, float]]:
            found = []
            for probability, reward, following in self.outcomes(state, action):
                if following is None:
                    found.append((probability, reward))
                    continue
                for then in (0, 1):
                    found += [
                        (probability * self.policy[following, then] * later, reward + self.discount * total)
                        for later, total in walk(following, then)
                    ]
            return found

        for state in range(self.states):
            for action in (0, 1):
                for probability, total in walk(state, action):
                    table[state, action, round(total / self.buckets.width)] += probability
        return table

    def trajectories(self) -> list[tuple[float, list[tuple[int, int, float]]]]:
        """Every trajectory: its probability, and its (state, action, reward) three times."""
        found: list[tuple[float, list[tuple[int, int, float]]]] = []

        def walk(state: int | None, probability: float, past: list[tuple[int, int, float]]) -> None:
            if state is None:
                found.append((probability, past))
                return
            for action in (0, 1):
                for share, reward, following in self.outcomes(state, action):
                    walk(following, probability * self.policy[state, action] * share, [*past, (state, action, reward)])

        walk(0, 1.0, [])
        return found

    def dataset(self, episodes: int = 400) -> OfflineDataset:
        """Each trajectory as often as it is likely, so that the data's frequencies are exact; states are one-hot."""
        counted = [(round(probability * episodes), past) for probability, past in self.trajectories()]
        table = np.array([past for count, past in counted for _ in range(count)])  # [episodes, 3, 3]
        episodes = len(table)
        states, actions = table[..., 0].astype(np.int64), table[..., 1].astype(np.int64)
        rewards = table[..., 2].astype(np.float32)
        lengths = np.full(episodes, self.horizon)
        steps = episodes * self.horizon
        numbers = np.repeat(np.arange(episodes), self.horizon)
        ends = np.arange(steps) % self.horizon == self.horizon - 1
        flat = rewards.reshape(-1)
        tensors = {
            "observations": np.eye(self.states, dtype=np.float32)[states.reshape(-1)],
            "actions": actions.reshape(-1),
            "rewards": flat,
            "rtg": reward_to_go(flat, lengths, self.discount).astype(np.float32),
            "timesteps": np.arange(steps) % self.horizon,
            "episode_ids": numbers,
            "terminations": ends,
            "truncations": np.zeros(steps, bool),
            "final_observations": np.zeros((episodes, self.states), np.float32),
            "lengths": lengths,
            "starts": np.arange(episodes) * self.horizon,
            "seeds": np.arange(episodes),
            "returns": rewards.sum(1),
            "action_low": np.zeros(1, np.float32),
            "action_high": np.ones(1, np.float32),
        }
        return OfflineDataset(
            id="test/chain-v0", env_spec=None, discount=self.discount, card={},
            **{name: torch.as_tensor(value) for name, value in tensors.items()},
        )  # fmt: skip


class WholeData(VectorData):
    """Every batch is the whole dataset: training without noise, for tests of where it leads."""

    def sample(self, batch_size: int, generator: torch.Generator) -> DiscreteBatch:
        return self.batch(torch.arange(len(self.dataset)))
