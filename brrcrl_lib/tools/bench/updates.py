"""One update of ours against one of torchrl's, on the same random batch, with networks of the same sizes.

Both sides have fused Adam and soft target updates; they take turns on one thread, and the medians of CPU time are
compared. torchrl's Decision Transformer needs another library, so ours is held against torch's own encoder layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from brrcrl_lib.base.devices import generator
from brrcrl_lib.data.batch import Batch
from brrcrl_lib.methods.base import Method, config_for, create
from brrcrl_lib.nets import mlp
from brrcrl_lib.study.experiments.cost import ACTIONS, OBSERVATIONS, cpu_seconds, random_batch, random_facts

Update = Callable[[int], Any]
METHODS = ("cloning", "td3_bc", "iql", "cql", "dt")


def benchmark_updates(repeats: int = 15, names: tuple[str, ...] = METHODS) -> dict[str, Any]:
    """Milliseconds of CPU per update and the ratio theirs / ours, by method."""
    try:
        import torchrl  # noqa: F401
    except ImportError:
        return {"torchrl": "not installed; pip install 'brrcrl[dev]'"}
    table = {}
    for name in names:
        config = config_for(name, "laptop", "box", device="cpu")
        method, rng = create(config, random_facts(config.discount)), generator(0)
        batch = random_batch(config.batch_size, method.needs, rng)
        theirs = THEIRS[name](batch, config)
        ours, others = take_turns(partial(_update, method, batch, rng), theirs, repeats)
        table[name] = {
            "ours_ms": round(1e3 * ours, 2),
            "against": "torch's encoder" if name == "dt" else "torchrl",
            "theirs_ms": round(1e3 * others, 2),
            "theirs_over_ours": round(others / ours, 2),
        }
    return table


def _update(method: Method, batch: Batch, rng: torch.Generator, step: int) -> object:
    return method.update(batch, step, rng)


def take_turns(ours: Update, theirs: Update, repeats: int) -> tuple[float, float]:
    """Median CPU seconds of each, every measurement of two updates (of which one moves a delayed actor)."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        for side, update in zip(times, (ours, theirs), strict=True):
            side.append(sum(cpu_seconds(partial(update, step)) for step in (2 * turn, 2 * turn + 1)) / 2)
    return median(times[0][1:]), median(times[1][1:])  # the first turn warms up


# -- torchrl's side ----------------------------------------------------------------------------------------------


class _Pair(nn.Module):
    """Q(s, a)."""

    def __init__(self, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp(OBSERVATIONS + ACTIONS, hidden, 1)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        return self.net(torch.cat([states, actions], -1))


class _Gaussian(nn.Module):
    """Mean and standard deviation, both from the network."""

    def __init__(self, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp(OBSERVATIONS, hidden, 2 * ACTIONS)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(states).chunk(2, -1)
        return mean, log_std.clamp(-20, 2).exp()


def _data(batch: Batch) -> Any:
    from tensordict import TensorDict

    fields: dict[str, Any] = {"observation": batch.observations, "action": batch.actions}
    if batch.next_observations is not None:
        ended = batch.done.unsqueeze(-1)
        following = {"observation": batch.next_observations, "reward": batch.rewards.unsqueeze(-1)}
        fields["next"] = {**following, "done": ended, "terminated": ended}
    return TensorDict(fields, [len(batch.observations)])


def _module(net: nn.Module, inputs: list[str], outputs: list[str]) -> Any:
    from tensordict.nn import TensorDictModule

    return TensorDictModule(net, in_keys=inputs, out_keys=outputs)


def _critics(config: Any) -> list[Any]:
    return [_module(_Pair(config.hidden), ["observation", "action"], ["state_action_value"]) for _ in range(2)]


def _stochastic_actor(config: Any, squashed: bool) -> Any:
    from torchrl.modules import IndependentNormal, ProbabilisticActor, TanhNormal

    head = _module(_Gaussian(config.hidden), ["observation"], ["loc", "scale"])
    kind = {"distribution_class": TanhNormal if squashed else IndependentNormal}
    return ProbabilisticActor(head, in_keys=["loc", "scale"], spec=None, **kind)


def _adam(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(list(parameters), lr=rate, fused=True)


def _minimise(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def _cloning(batch: Batch, config: Any) -> Update:
    actor, data = _stochastic_actor(config, squashed=False), _data(batch)
    optimizer = _adam(actor.parameters(), config.learning_rate)
    return lambda step: _minimise(-actor.get_dist(data).log_prob(batch.actions).mean(), optimizer)


def _summed(loss: Any, data: Any, config: Any) -> Update:
    """All losses of a torchrl objective minimised at once, then its target networks moved."""
    from torchrl.objectives import SoftUpdate

    loss.make_value_estimator(gamma=0.99)
    follow, optimizer = SoftUpdate(loss, tau=config.soft_update), _adam(loss.parameters(), config.learning_rate)

    def update(step: int) -> None:
        parts = loss(data)
        total = sum(parts[name] for name in parts.keys() if name.startswith("loss_") and name != "loss_actor_bc")  # noqa: SIM118
        _minimise(total, optimizer)
        follow.step()

    return update


def _iql(batch: Batch, config: Any) -> Update:
    from torchrl.objectives import IQLLoss

    value = _module(mlp(OBSERVATIONS, config.hidden, 1), ["observation"], ["state_value"])
    settings = {"loss_function": "l2", "temperature": config.temperature, "expectile": config.expectile}
    return _summed(IQLLoss(_stochastic_actor(config, False), _critics(config), value, **settings), _data(batch), config)


def _cql(batch: Batch, config: Any) -> Update:
    from torchrl.objectives import CQLLoss

    settings = {"loss_function": "l2", "num_random": config.sampled_actions, "target_entropy": -float(ACTIONS)}
    actor = _stochastic_actor(config, squashed=True)
    return _summed(CQLLoss(actor, _critics(config), min_q_weight=config.alpha, **settings), _data(batch), config)


def _td3_bc(batch: Batch, config: Any) -> Update:
    from torchrl.objectives import SoftUpdate, TD3BCLoss

    actor = _module(nn.Sequential(mlp(OBSERVATIONS, config.hidden, ACTIONS), nn.Tanh()), ["observation"], ["action"])
    bounds, data = (-torch.ones(ACTIONS), torch.ones(ACTIONS)), _data(batch)
    settings = {"loss_function": "l2", "alpha": config.alpha, "delay_actor": True}
    loss = TD3BCLoss(actor, _critics(config), bounds=bounds, **settings)
    loss.make_value_estimator(gamma=0.99)
    follow = SoftUpdate(loss, tau=config.soft_update)
    critic = _adam(loss.qvalue_network_params.flatten_keys().values(), config.learning_rate)
    mover = _adam(loss.actor_network_params.flatten_keys().values(), config.learning_rate)

    def update(step: int) -> None:
        _minimise(loss.qvalue_loss(data)[0], critic)
        if (step + 1) % config.policy_delay == 0:
            _minimise(loss.actor_loss(data)[0], mover)
            follow.step()

    return update


class _Encoder(nn.Module):
    """A Decision Transformer of torch's own encoder layers: the same tokens, sizes and dropout."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.width
        self.time = nn.Embedding(config.max_episode, width)
        self.embed = nn.ModuleList(nn.Linear(size, width) for size in (1, OBSERVATIONS, ACTIONS))
        layer = nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, config.dropout, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.action = nn.Linear(width, ACTIONS)
        self.norm = nn.LayerNorm(width)

    def forward(self, batch: Batch) -> Tensor:
        assert batch.timesteps is not None
        values = (batch.returns.unsqueeze(-1) / 1000, batch.observations, batch.actions)
        time = self.time(batch.timesteps)
        parts = [embed(value) + time for embed, value in zip(self.embed, values, strict=True)]
        tokens = self.norm(torch.stack(parts, 2).flatten(1, 2))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.action(self.layers(tokens, mask=mask, is_causal=True)[:, 1::3]).tanh()


def _dt(batch: Batch, config: Any) -> Update:
    model = _Encoder(config)
    rates = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **rates)

    def update(step: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(batch), batch.actions).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip)
        optimizer.step()

    return update


THEIRS: dict[str, Callable[[Batch, Any], Update]] = {
    "cloning": _cloning,
    "td3_bc": _td3_bc,
    "iql": _iql,
    "cql": _cql,
    "dt": _dt,
}
