"""The whole figures of notebook 12, put together from the drawings of atari.py. Titles come from the notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.study.figures import atari as drawings
from brrcrl_lib.study.figures.experiments import draw_settings, draw_sweep

OURS = {"pong": "the right paddle is ours", "breakout": "the paddle at the bottom is ours"}
"""Whose side a frame is seen from."""


def titled(figure: Figure, title: str) -> Figure:
    figure.suptitle(title, weight="bold", fontsize=12)
    return figure


def frames_figure(store: FrameStore, step: int, title: str, ago: Sequence[int] = (50, 40, 30, 20, 10, 0)) -> Figure:
    """What the agent sees at a step, and how the game came to it, with the reward-to-go at each moment."""
    start = int(store.starts[store.starts <= step][-1])
    back = [steps for steps in ago if step - steps >= start]
    figure = plt.figure(figsize=(11, 5.1))
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    upper, lower = halves
    newest = ["t − 3", "t − 2", "t − 1", "t: the newest frame"]
    drawings.draw_strip(upper.subplots(1, 4), store.observations(torch.tensor([step]))[0].numpy(), newest)
    past = np.stack([np.asarray(store.frames[step - steps]) for steps in back])
    names = [f"t − {steps}" if steps else "t" for steps in back]
    words = [f"{name}: R = {store.rtg[step - steps]:.2f}" for name, steps in zip(names, back, strict=True)]
    drawings.draw_strip(list(np.atleast_1d(lower.subplots(1, len(back)))), past, words)
    return titled(figure, title)


def returns_figure(samples: Mapping[str, FrameStore], title: str) -> Figure:
    """Every game of the ladders, and how rare high rewards-to-go are, one column per game."""
    size = (max(9, 3.3 * len(samples)), 5.6)
    figure, axes = plt.subplots(2, len(samples), figsize=size, squeeze=False)
    for (upper, lower), (name, sample) in zip(axes.T, samples.items(), strict=True):
        drawings.draw_ladder(upper, sample.policies, sample.returns)
        drawings.draw_tail(lower, {"all steps": sample.rtg.numpy()}, {"largest": float(sample.rtg.max())})
        upper.set_title(name, weight="normal", fontsize=11)
    for axis in axes[:, 1:].flat:
        axis.set_ylabel("")
    return titled(figure, title)


def sample_table(samples: Mapping[str, FrameStore], near: Mapping[str, float]) -> pd.DataFrame:
    """What each sample holds; `near`: share of steps within a tenth of the largest reward-to-go."""
    return pd.DataFrame({name: _sample_column(sample, near[name]) for name, sample in samples.items()})


def _sample_column(sample: FrameStore, near: float) -> dict[str, Any]:
    policies = np.unique(sample.policies)
    best = max(sample.returns[sample.policies == policy].mean() for policy in policies)
    return {
        "policies": len(policies),
        "games": sample.episodes,
        "steps": f"{len(sample):,}",
        "return, mean": f"{sample.returns.mean():.1f}",
        "return, best policy": f"{best:.1f}",
        "largest R": f"{sample.rtg.max():.2f}",
        "steps within a tenth of it": f"{near:.2%}",
    }


def impossible_figure(store: FrameStore, places: Mapping[str, Any], target: float, title: str) -> Figure:
    """A frame after a point lost and one after a point won, and how rare high rewards-to-go are there."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.7), width_ratios=(1, 1, 1.9))
    after = [name for name in places if name != "all steps"]
    for axis, name in zip(axes, after, strict=False):
        found = places[name]
        axis.set_visible(bool(len(found)))
        if len(found):
            frame = drawings.with_trail(store.observations(found[:10][-1:])[0].numpy())
            drawings.draw_frame(axis, frame, f"{name}: R ≤ {store.rtg[found].max():.2f} in the data")
    tails = {name: store.rtg[found].numpy() for name, found in places.items() if len(found)}
    drawings.draw_tail(axes[2], tails, {"max": target})
    axes[2].legend(fontsize=9, loc="lower left")
    return titled(figure, title)


def wish_figure(chances: Mapping[str, Tensor], distances: Mapping[str, Tensor], delta: float, title: str) -> Figure:
    """How probable the model thinks its target, and how far that moves the policy from p(a|s), over states [n]."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.7))
    probable = {name: found.clamp(min=1e-12).numpy() for name, found in chances.items()}
    drawings.draw_cumulative(left, probable, "P(R ≥ target | s), by the model")
    left.set_xscale("log")
    drawings.mark_at(left, delta, f"δ = {delta:g}")
    moved = {name: found.numpy() for name, found in distances.items()}
    drawings.draw_cumulative(right, moved, "KL from the policy to p(a | s), nats")
    drawings.mark_at(right, float(np.log(1 / delta)), "log(1/δ)")
    left.legend(fontsize=9, loc="center left")
    return titled(figure, title)


def methods_figure(summary: pd.DataFrame, settings: Sequence[str], title: str) -> Figure:
    """Mean returns with their intervals, one panel per game."""
    names = list(dict.fromkeys(summary["dataset"]))
    size = (max(8, 2.2 + 2.6 * len(names)), 4.2)
    figure, axes = plt.subplots(1, len(names), figsize=size, squeeze=False, sharey=True)
    for axis, name in zip(axes[0], names, strict=True):
        draw_settings(axis, summary[summary["dataset"] == name], settings, ours=2)
        axis.set_title(name, weight="normal", fontsize=11)
    return titled(figure, title)


def sweep_figure(tables: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Return against delta, one panel per game, one line per learner."""
    names = list(dict.fromkeys(name for found in tables.values() for name in found["dataset"]))
    figure, axes = plt.subplots(1, len(names), figsize=(max(5.5, 3.4 * len(names)), 3.9), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        for learner, found in tables.items():
            if name in set(found["dataset"]):
                draw_sweep(axis, found[found["dataset"] == name], learner)
        axis.set_title(name, weight="normal", fontsize=11)
    axes[0][0].set_ylabel("return")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=10)
    return titled(figure, title)


def game_figure(traces: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """The first game of each target rule: what was asked for, what came, what the model expected."""
    figure, axes = plt.subplots(len(traces), 1, figsize=(11, 2.6 * len(traces) + 0.4), sharex=True, squeeze=False)
    for axis, (rule, trace) in zip(axes[:, 0], traces.items(), strict=True):
        drawings.draw_game(axis, trace[trace["episode"] == 0])
        reached = (trace["observed"] >= trace["target"]).mean()
        axis.set_title(f"{rule}: target reached in {reached:.1%} of the steps", weight="normal", fontsize=11)
        axis.set_xlabel("step of the game" if axis is axes[-1, 0] else "")
    axes[0, 0].legend(fontsize=9, ncols=3, loc="upper right")
    return titled(figure, title)


def film_figure(screens: np.ndarray, targets: pd.Series, part: slice, title: str) -> Figure:
    """Six moments of a clip, for readers on paper."""
    moments = np.linspace(part.start, part.stop - 1, 6).round().astype(int)
    figure, axes = plt.subplots(1, 6, figsize=(12, 3))
    drawings.draw_strip(
        axes, screens[moments], [f"step {moment}\nasks for {targets[moment]:.2f}" for moment in moments]
    )
    return titled(figure, title)
