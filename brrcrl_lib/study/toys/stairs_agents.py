"""The agents on the stairs: lock-step episodes, and the two small networks that learn from them.

Vanilla p(a | s, R) takes the return as an input; BR-RCRL's joint p(a, R | s) predicts it. Both see the same data for
the same number of updates. All seeds are trained at once, as one batched network whose rows never mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.base.devices import generator, track
from brrcrl_lib.study.toys.stairs import ACTIONS, MEDIOCRE, Stairs
from brrcrl_lib.study.toys.stairs_exact import Estimate, exact_estimate, joint_distribution, living_states, table_shape

OBJECTIVES = {
    "vanilla": "L0 with p(a | s, R), the return is an input",
    "joint": "L0 + lambda L1 with p(a, R | s)",
    "likelihood": "-log p(a, R | s)",
}


@dataclass(frozen=True)
class StairsStudy:
    """How much data, training and testing."""

    seeds: int = 10
    """Independent repetitions: own data, own initial weights, own minibatches."""
    data_episodes: int = 2000
    """Episodes of the mediocre climber that each seed learns from."""
    updates: int = 3000
    """Minibatches per network, the same for every network."""
    batch: int = 256
    """State-action-return triples in a minibatch."""
    hidden: int = 64
    """Width of the two hidden layers."""
    learning_rate: float = 1e-3
    """Of Adam."""
    lam: float = 1.0
    """lambda, the weight of L1 (1 in the paper's Gym runs, 20 in its Atari runs)."""
    episodes: int = 500
    """Test episodes per seed, target rule and slip."""
    deltas: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)
    """Values of delta that are tried."""
    slips: tuple[int, ...] = (-1, 4, 6, 8)
    """Moves at which a slip is forced; -1 stands for no forced slip."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"seeds": 2, "data_episodes": 200, "updates": 60, "hidden": 16, "episodes": 50, "slips": (-1, 4)},
        "paper": {"seeds": 20, "data_episodes": 10_000, "updates": 20_000, "hidden": 256, "episodes": 2000},
    }


# -- episodes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Episodes:
    """A batch of episodes; arrays are [budget, episodes], and an episode that is over is no longer alive."""

    states: np.ndarray  # [budget, episodes, 3]
    actions: np.ndarray
    rewards: np.ndarray
    targets: np.ndarray  # the return that was asked for
    alive: np.ndarray

    def rewards_to_go(self) -> np.ndarray:
        """Undiscounted, [budget, episodes]."""
        return self.rewards[::-1].cumsum(0)[::-1]


def roll_out(
    stairs: Stairs,
    policy: np.ndarray,  # p(a | s, target): [S, B, A]
    targets: np.ndarray,  # what to ask for by state, [S], if nothing is subtracted
    episodes: int,
    rng: np.random.Generator,
    slip_at: int = -1,
    subtract: bool = False,
) -> Episodes:
    """Many episodes in lock-step. `subtract` is the Decision Transformer schedule: ask for the rest of the target."""
    completed, risk = _moves(stairs)
    state = np.tile(np.array(stairs.start), (episodes, 1))
    collected = np.zeros(episodes, dtype=int)
    rows: list[tuple[np.ndarray, ...]] = []
    for now in range(stairs.budget):
        at = tuple(state.T)
        alive = (state[:, 0] < stairs.height) & (state[:, 1] > 0)
        target = targets[stairs.start] - collected if subtract else targets[at]
        target = target.clip(0, policy.shape[-2] - 1)
        action = _sample(policy[(*at, target)], rng)
        after = completed[(*at, action)]  # next state and reward, [episodes, 4]
        slips = (rng.random(episodes) < risk[(*at, action)]) | (now == slip_at)
        after[slips] = np.stack([0 * collected, state[:, 1] - 1, 1 + 0 * collected, 0 * collected], axis=1)[slips]
        reward = np.where(alive, after[:, 3], 0)
        rows.append((state, action, reward, target, alive))
        state, collected = np.where(alive[:, None], after[:, :3], state), collected + reward
    return Episodes(*(np.stack(column) for column in zip(*rows, strict=True)))


def behave(stairs: Stairs, episodes: int, rng: np.random.Generator, slip_at: int = -1) -> Episodes:
    """The mediocre climber, who asks for nothing: the offline data, and the line that agents have to beat."""
    policy = np.broadcast_to(np.array(MEDIOCRE), (*table_shape(stairs), 1, len(ACTIONS)))
    return roll_out(stairs, policy, np.zeros(table_shape(stairs), dtype=int), episodes, rng, slip_at)


def _moves(stairs: Stairs) -> tuple[np.ndarray, np.ndarray]:
    """The rules as tables: next state and reward of a completed move, int [S, A, 4]; its risk of a slip, [S, A]."""
    completed = np.zeros((*table_shape(stairs), len(ACTIONS), 4), dtype=int)
    risk = np.zeros((*table_shape(stairs), len(ACTIONS)))
    for state in living_states(stairs):
        for action in range(len(ACTIONS)):
            done, *slip = stairs.outcomes(state, action)
            completed[state][action] = (*done.state, done.reward)
            risk[state][action] = slip[0].probability if slip else 0.0
    return completed, risk


def _sample(probabilities: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One action per row, [n, A] -> [n]."""
    return (rng.random((len(probabilities), 1)) > probabilities.cumsum(-1)[:, :-1]).sum(-1)


# -- networks ------------------------------------------------------------------------------------------------------


class BatchedMLP(torch.nn.Module):
    """One small ReLU network per seed, evaluated together: [seeds, n, inputs] -> [seeds, n, outputs]."""

    def __init__(self, sizes: tuple[int, ...], generators: list[torch.Generator]) -> None:
        super().__init__()
        self.weights, self.biases = torch.nn.ParameterList(), torch.nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            scale = inputs**-0.5  # PyTorch's own default for linear layers
            draws = [torch.rand(inputs + 1, outputs, generator=source) for source in generators]
            layer = scale * (2 * torch.stack(draws) - 1)  # [seeds, inputs + 1, outputs]
            self.weights.append(layer[:, :-1].clone())
            self.biases.append(layer[:, -1:].clone())

    def forward(self, x: Tensor) -> Tensor:
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if depth else x, weight)
        return x


def joint_loss(logits: Tensor, action: Tensor, bucket: Tensor, lam: float) -> Tensor:
    """L0 + lambda L1 for the |A||B|-way softmax (paper, 'Discrete Action'). logits [..., A, B], indices [...].

    L0 = -log p(a | s, R) normalises the joint over actions, L1 = -log p(R | s, a) over buckets.
    """
    chosen = _pick(logits, action, bucket)
    over_actions = logits.logsumexp(-2).gather(-1, bucket[..., None]).squeeze(-1)
    over_buckets = logits.logsumexp(-1).gather(-1, action[..., None]).squeeze(-1)
    return (over_actions - chosen + lam * (over_buckets - chosen)).mean(-1).sum()


def likelihood_loss(logits: Tensor, action: Tensor, bucket: Tensor) -> Tensor:
    """-log p(a, R | s) = -log p(a | s) - log p(R | s, a). logits [..., A, B], indices [...]."""
    return (logits.flatten(-2).logsumexp(-1) - _pick(logits, action, bucket)).mean(-1).sum()


def _pick(logits: Tensor, action: Tensor, bucket: Tensor) -> Tensor:
    flat = action * logits.shape[-1] + bucket
    return logits.flatten(-2).gather(-1, flat[..., None]).squeeze(-1)


def train(stairs: Stairs, study: StairsStudy, objective: str, data: list[Episodes]) -> tuple[np.ndarray, np.ndarray]:
    """Fit one network per dataset and tabulate it: p(a | s, R), [seeds, S, B, A], and p(R | s), [seeds, S, B].

    Vanilla has no p(R | s); its entries are NaN.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"unknown objective '{objective}'; use one of {', '.join(OBJECTIVES)}")
    buckets, actions, vanilla = joint_distribution(stairs).shape[-1], len(ACTIONS), objective == "vanilla"
    sources = [generator(seed) for seed in range(len(data))]
    outputs = actions if vanilla else actions * buckets
    network = BatchedMLP((3 + vanilla, study.hidden, study.hidden, outputs), sources)
    optimiser = torch.optim.Adam(network.parameters(), lr=study.learning_rate)
    scale = torch.tensor([stairs.height, stairs.budget, 1], dtype=torch.float32)

    def logits(states: Tensor, bucket: Tensor) -> Tensor:
        """[seeds, n, 3], [seeds, n] -> log p(a | s, R) [seeds, n, A], or log p(a, R | s) [seeds, n, A, B]."""
        inputs = 2 * states / scale - 1
        if vanilla:
            return network(torch.cat([inputs, 2 * bucket[..., None] / (buckets - 1) - 1], -1)).log_softmax(-1)
        return network(inputs).unflatten(-1, (actions, buckets))

    def loss(states: Tensor, action: Tensor, bucket: Tensor) -> Tensor:
        out = logits(states, bucket)
        if vanilla:
            return -out.gather(-1, action[..., None]).mean((-2, -1)).sum()
        return (
            joint_loss(out, action, bucket, study.lam) if objective == "joint" else likelihood_loss(out, action, bucket)
        )

    triples = [_triples(episodes) for episodes in data]
    for _ in track(range(study.updates), desc=objective):
        rows = [
            torch.randint(len(t), (study.batch,), generator=source) for t, source in zip(triples, sources, strict=True)
        ]
        drawn = torch.stack([t[row] for t, row in zip(triples, rows, strict=True)])  # [seeds, batch, 5]
        optimiser.zero_grad()
        loss(drawn[..., :3].float(), drawn[..., 3], drawn[..., 4]).backward()
        optimiser.step()
    return _tabulate(stairs, logits, len(data), buckets, vanilla)


def _triples(episodes: Episodes) -> Tensor:
    """(height, left, hurt, action, reward-to-go) of every move that was made: int [n, 5]."""
    columns = np.concatenate([episodes.states, episodes.actions[..., None], episodes.rewards_to_go()[..., None]], -1)
    return torch.from_numpy(columns[episodes.alive])


@torch.no_grad()
def _tabulate(
    stairs: Stairs, logits: Callable[[Tensor, Tensor], Tensor], seeds: int, buckets: int, vanilla: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Ask a network about every state (and return): the world is small enough."""
    shape = table_shape(stairs)
    states = torch.from_numpy(np.array(list(np.ndindex(shape)))).float()
    if vanilla:
        bucket = torch.arange(buckets).repeat(len(states)).expand(seeds, -1)
        out = logits(states.repeat_interleave(buckets, 0).expand(seeds, -1, -1), bucket)
        policy = out.exp().double().numpy().reshape(seeds, *shape, buckets, len(ACTIONS))
        return policy, np.full(policy.shape[:-1], np.nan)
    out = logits(states.expand(seeds, -1, -1), torch.zeros(0)).double()  # [seeds, states, A, B]
    policy = out.softmax(-2).transpose(-1, -2).numpy().reshape(seeds, *shape, buckets, len(ACTIONS))
    returns = out.flatten(-2).softmax(-1).unflatten(-1, out.shape[-2:]).sum(-2)
    return policy, returns.numpy().reshape(seeds, *shape, buckets)


def learn(
    stairs: Stairs, study: StairsStudy, objectives: Sequence[str] = tuple(OBJECTIVES)
) -> tuple[dict[str, list[Estimate]], np.ndarray]:
    """What the exact oracle and every network believe, one Estimate per seed; and each seed's best return, [seeds].

    A vanilla network knows no p(R | s). Where the adaptive rule needs one, it borrows that of the joint network of
    its seed, so that the two differ in nothing but the parameterisation of p(a | s, R).
    """
    data = [behave(stairs, study.data_episodes, np.random.default_rng(seed)) for seed in range(study.seeds)]
    tables = {objective: train(stairs, study, objective, data) for objective in objectives}
    if "vanilla" in tables:
        tables["vanilla"] = (tables["vanilla"][0], tables["joint"][1])
    learnt = {name: [Estimate(*pair) for pair in zip(*both, strict=True)] for name, both in tables.items()}
    best = np.array([episodes.rewards.sum(0).max() for episodes in data])
    return {"exact": [exact_estimate(stairs)] * study.seeds, **learnt}, best
