"""The one place where rewards become reward-to-go (RTG). Imports no torch, so that recorded results open at once.

Training and rollouts both call `reward_to_go`, so the two can never disagree by a step or a discount.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brrcrl_lib.base.errors import KitError


def reward_to_go(rewards: Any, lengths: Any, discount: float) -> np.ndarray:
    """Discounted sum of the rewards from each step to the end of its episode: R_t = sum_k discount^k r_{t+k}.

    rewards: [steps], episodes one after another; lengths: [episodes]. Returns float64 [steps].

    Works by doubling: once every step knows the sum over its next n rewards, two such sums n steps apart give the
    sum over 2n. That takes log2(longest episode) passes over the whole array, and weights never exceed 1.
    """
    values = np.array(rewards, dtype=np.float64)  # a copy, which becomes the result
    counts = np.asarray(lengths, dtype=np.int64)
    _check_episodes(values, counts, discount)
    left = np.repeat(np.cumsum(counts), counts) - np.arange(len(values)) - 1  # steps that follow in the episode
    span, weight = 1, float(discount)
    while span < counts.max(initial=0) and weight > 0:
        values[:-span] += np.where(left[:-span] >= span, weight * values[span:], 0.0)
        span, weight = 2 * span, weight * weight
    return values


def _check_episodes(rewards: np.ndarray, lengths: np.ndarray, discount: float) -> None:
    if not 0 <= discount <= 1:
        raise KitError(f"discount must lie in [0, 1]; got {discount}")
    if rewards.ndim != 1 or lengths.ndim != 1:
        raise ValueError(f"rewards and lengths must be flat; got shapes {rewards.shape} and {lengths.shape}")
    if (lengths <= 0).any():
        raise KitError(f"episode {int(np.argmax(lengths <= 0))} is empty; every episode needs at least one step")
    if lengths.sum() != len(rewards):
        raise ValueError(f"episode lengths add up to {lengths.sum()}, but there are {len(rewards)} rewards")
    if not np.isfinite(rewards).all():
        step = int(np.argmin(np.isfinite(rewards)))
        episode = int(np.searchsorted(np.cumsum(lengths), step, side="right"))
        raise KitError(f"reward {rewards[step]} at step {step} (episode {episode}) is not finite")
