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

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.settings import check_settings
from brrcrl_lib.data.atari import AtariConfig, AtariEnv, rom_name
from brrcrl_lib.data.batch import Facts
from brrcrl_lib.policies import Policy
from brrcrl_lib.returns import reward_to_go
from brrcrl_lib.training import Run

MakeEnv = Callable[[], gym.Env]


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
    make_env: MakeEnv,
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
        raise KitError(f"episodes must be at least 1; got {episodes}")
    if max_steps is not None and max_steps < 1:
        raise KitError(f"max_steps must be at least 1; got {max_steps}")
    if not 0 <= seed < 2**31 - episodes:
        raise KitError(f"the seed of the first episode must lie in [0, {2**31 - episodes}); got {seed}")
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
        for row, index in enumerate(active):
            observations[index], reward, terminated, truncated, _ = envs[index].step(actions[row])
            rewards[row], ended[row] = reward, terminated or truncated
        traced = {name: values.cpu().numpy() for name, values in policy.trace.items()}
        rows.append(pd.DataFrame({"episode": active, "step": step, "reward": rewards, **traced}))
        policy.observe(torch.as_tensor(rewards))
        if ended.any():
            policy.keep(torch.as_tensor(~ended))
            active = active[~ended]
        step += 1
        bar.update()
    bar.total = step  # episodes may end before the time limit: an unfinished bar would look like a failure
    bar.close()
    for env in envs:
        env.close()
    trace = pd.concat(rows).sort_values(["episode", "step"], kind="stable", ignore_index=True)
    lengths = trace.groupby("episode").size().to_numpy()
    counted = trace["reward"].to_numpy() if reward_clip is None else trace["reward"].clip(-reward_clip, reward_clip)
    trace.insert(3, "observed", reward_to_go(counted, lengths, discount))
    returns = trace.groupby("episode")["reward"].sum().to_numpy()
    return Evaluation(returns, lengths, trace, time.perf_counter() - started)


# -- the environment of a run ------------------------------------------------------------------------------------


def environment_for(facts: Facts, env_id: str | None = None) -> MakeEnv:
    """What makes the environment that a model with these `facts` plays in: its own, or another that it fits.

    Games are presented as they were when the data were made; what they pay is never clipped.
    """
    name = env_id or facts.env
    if name is None:
        raise KitError(f"{facts.dataset} does not say which environment it came from; name it with --env")
    if facts.kind == "pixels" and facts.env is not None and rom_name(name) != rom_name(facts.env):
        raise KitError(f"a model of {facts.env} cannot play {name}")

    try:
        play = AtariConfig(**facts.play)
        check_settings(play)
    except (TypeError, KitError) as error:
        raise KitError(f"{facts.dataset} was played in a way that this kit does not know: {error}") from None

    def make() -> gym.Env:
        return AtariEnv(name, play) if facts.kind == "pixels" else make_env(name)

    env = make()
    wanted = (facts.observation_shape, facts.action_count or (len(facts.action_low or ()),))
    found = (env.observation_space.shape, getattr(env.action_space, "n", None) or env.action_space.shape)
    env.close()
    if wanted != found:
        raise KitError(
            f"a model of {facts.env} sees observations of shape {wanted[0]} and acts in {wanted[1]}; "
            f"{name} has {found[0]} and {found[1]}"
        )
    return make


def play(
    run: Run,
    act: Any = None,
    *,
    env: str | None = None,
    episodes: int = 10,
    seed: int = 0,
    max_steps: int | None = None,
) -> Evaluation:
    """Play a trained run in its environment, or in another that it fits."""
    return evaluate(
        run.policy(act, seed),
        environment_for(run.facts, env),
        episodes=episodes,
        seed=seed,
        discount=run.facts.discount,
        device=run.method.device,
        max_steps=max_steps,
        reward_clip=run.facts.reward_clip,
    )
