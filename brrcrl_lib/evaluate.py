"""Play a policy: n episodes side by side, one batched decision per step, everything it thought on record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch

from brrcrl_lib.base.devices import generator, track
from brrcrl_lib.inference.optimizers import make_optimizer
from brrcrl_lib.inference.targets import target_for
from brrcrl_lib.models import BayesianModel, RewardConditionedPolicy
from brrcrl_lib.policies import BayesianPolicy, CloningPolicy, Policy, VanillaPolicy
from brrcrl_lib.returns import reward_to_go
from brrcrl_lib.train import Run


@dataclass(frozen=True)
class InferenceConfig:
    """How a trained model is made to act."""

    target: str = "adaptive"
    """adaptive (theta_delta), max (the data's largest return), dt_schedule (subtract what was earned) or fixed."""
    delta: float = 0.1
    """Share of outcomes that the adaptive target may hope for, in (0, 1)."""
    value: float | None = None
    """Return that fixed asks for, and that dt_schedule starts from; the data's largest if left out."""
    quantile: float | None = None
    """The same as a quantile of the training data's reward-to-go, in [0, 1]."""
    optimizer: str = "cem"
    """cem (cross-entropy method), dfo (the paper's, 65,536 samples) or langevin."""
    samples: int | None = None
    """Samples per round of the optimiser; None: its own number."""
    source: str = "prior_samples"
    """Where p(R|s) comes from: prior_samples (the paper), value_model (the released code), prior_samples_logits."""
    mode: str = "best"
    """best: the lowest-energy action. sample: a draw from pi^delta."""
    clone: bool = False
    """Ignore the return model and play the prior's mode: behaviour cloning with the same weights."""


def make_policy(run: Run, config: InferenceConfig, seed: int = 0) -> Policy:
    """The policy that `run`'s model plays under `config`."""
    target = target_for(run.about, config.target, delta=config.delta, value=config.value, quantile=config.quantile)
    model = run.model
    if isinstance(model, RewardConditionedPolicy):
        return VanillaPolicy(model, target)
    if config.clone or not isinstance(model, BayesianModel):
        return CloningPolicy(model)
    device = next(model.parameters()).device
    return BayesianPolicy(
        model,
        target,
        make_optimizer(config.optimizer, **({} if config.samples is None else {"samples": config.samples})),
        config.source,
        mode=config.mode,
        generator=generator(seed, device),
    )


@dataclass(frozen=True)
class Evaluation:
    """What a policy earned."""

    returns: np.ndarray  # [episodes], undiscounted
    lengths: np.ndarray  # [episodes]
    trace: pd.DataFrame  # one row per step: episode, step, reward, observed, and what the policy traced
    seconds: float

    def summary(self) -> dict[str, Any]:
        return {
            "episodes": len(self.returns),
            "return_mean": round(float(self.returns.mean()), 3),
            "return_std": round(float(self.returns.std()), 3),
            "returns": [round(float(value), 3) for value in self.returns],
            "length_mean": round(float(self.lengths.mean()), 1),
            "seconds": round(self.seconds, 2),
        }


def evaluate(
    policy: Policy,
    make_env: Callable[[], gym.Env],
    *,
    episodes: int = 10,
    seed: int = 0,
    discount: float = 0.99,
    device: torch.device | str = "cpu",
    max_steps: int | None = None,
    reward_clip: float | None = None,
) -> Evaluation:
    """Play `episodes` episodes in lock-step; episode i starts from env.reset(seed=seed + i).

    Trace columns: `reward`; `observed`, the discounted reward-to-go that followed (cut off where the episode was);
    and whatever the policy leaves in `policy.trace` (target, predicted, energy, bucket). With `reward_clip`, rewards
    count for `observed` as they did in data that was clipped to [-c, c]; returns are always raw.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1; got {episodes}")
    started = time.perf_counter()
    envs = [make_env() for _ in range(episodes)]
    observations = [env.reset(seed=seed + index)[0] for index, env in enumerate(envs)]
    active = np.arange(episodes)
    rows: list[pd.DataFrame] = []
    policy.reset(episodes)
    bar = track(
        desc="evaluating", unit="step", total=max_steps or (envs[0].spec.max_episode_steps if envs[0].spec else None)
    )
    step = 0
    while len(active) and (max_steps is None or step < max_steps):
        stacked = np.stack([observations[index] for index in active])  # frames stay bytes until they are on the device
        batch = torch.as_tensor(stacked, dtype=torch.uint8 if stacked.dtype == np.uint8 else torch.float32)
        actions = policy.act(batch.to(device)).cpu().numpy()
        rewards, ended = np.empty(len(active)), np.empty(len(active), dtype=bool)
        for lane, index in enumerate(active):
            observations[index], reward, terminated, truncated, _ = envs[index].step(actions[lane])
            rewards[lane], ended[lane] = reward, terminated or truncated
        traced = {name: values.cpu().numpy() for name, values in policy.trace.items()}
        rows.append(pd.DataFrame({"episode": active, "step": step, "reward": rewards, **traced}))
        policy.observe(torch.as_tensor(rewards))
        if ended.any():
            policy.keep(torch.as_tensor(~ended))
            active = active[~ended]
        step += 1
        bar.update()
    bar.total = step  # episodes may end before the clock: an unfinished bar would look like a failure
    bar.close()
    for env in envs:
        env.close()
    trace = pd.concat(rows).sort_values(["episode", "step"], kind="stable", ignore_index=True)
    lengths = trace.groupby("episode").size().to_numpy()
    counted = trace["reward"].to_numpy() if reward_clip is None else trace["reward"].clip(-reward_clip, reward_clip)
    trace.insert(3, "observed", reward_to_go(counted, lengths, discount))
    returns = trace.groupby("episode")["reward"].sum().to_numpy()
    return Evaluation(returns, lengths, trace, time.perf_counter() - started)
