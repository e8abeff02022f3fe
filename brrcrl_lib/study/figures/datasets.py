"""What notebook 04 draws of a dataset: where returns lie, buckets, the clock's effect on RTG, rendered episodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.study.analysis.data_quality import JUNK, Quality, warnings
from brrcrl_lib.study.figures.style import COLORS
from brrcrl_lib.worlds import DatasetName

KIND_STYLE = {
    "medium-replay": (COLORS["vanilla"], "--"),
    "medium": (COLORS["sky"], "-."),
    "expert": (COLORS["exact"], "-"),
}
RENDERERS = ("egl", "osmesa", "glfw")
"""What MuJoCo can draw with where no window is open; the first one that works is taken."""


def top_edge(values: Tensor, share: float) -> float:
    """Where the top `share` of the range of `values` [n] begins."""
    low, high = float(values.min()), float(values.max())
    return high - share * (high - low)


def bucket_counts(buckets: ReturnBuckets, rtg: Tensor) -> Tensor:
    """How many of `rtg` [steps] fall into each bucket, [count]."""
    return torch.bincount(buckets.encode(rtg), minlength=buckets.count)


def clock_effect(data: OfflineDataset, left: Sequence[int], rng: np.random.Generator) -> pd.DataFrame:
    """RTG shortly before the clock stops an episode, beside the RTG of states that look the same long before it.

    left: how many rewards are still to come. A state's like is its nearest neighbour (standardised observations)
    in another episode that the clock ended, at least 100 steps from its start and 400 from its end.
    """
    remaining = data.lengths[data.episode_ids] - data.timesteps  # [steps]
    stopped = data.truncations[data.starts + data.lengths - 1][data.episode_ids]  # [steps]
    middle = torch.nonzero(stopped & (data.timesteps >= 100) & (remaining > 400)).squeeze(1)
    if len(data.episode_ids[middle].unique()) < 2:
        raise ValueError(f"{data.id} needs two episodes of over 500 steps that the clock ended")
    middle = middle[torch.from_numpy(rng.permutation(len(middle))[:20_000])]
    mean, std = data.standardisation()
    candidates = (data.observations[middle] - mean) / std
    rows = []
    for rewards_left in left:
        late = torch.nonzero(stopped & (remaining == rewards_left)).squeeze(1)  # one step of each episode
        distance = torch.cdist((data.observations[late] - mean) / std, candidates)
        distance[data.episode_ids[late][:, None] == data.episode_ids[middle]] = torch.inf
        like = middle[distance.argmin(1)]
        means = {"rtg": data.rtg[late], "like": data.rtg[like], "reward": data.rewards[late]}
        rows.append({"left": rewards_left, **{name: float(values.mean()) for name, values in means.items()}})
    return pd.DataFrame(rows).assign(middle_reward=float(data.rewards[middle].mean()))


def clock_effects(loaded: Sequence[OfflineDataset], fewest: int = 5) -> dict[OfflineDataset, pd.DataFrame]:
    """`clock_effect` of one dataset of each world: the one with the largest share of steps in episodes that the clock
    ended (of equal ones, the one with the best episodes), if it ended at least `fewest`."""
    chosen: dict[str, tuple[tuple[float, float], OfflineDataset]] = {}
    for data in loaded:
        stopped = data.truncations[data.starts + data.lengths - 1]  # [episodes]
        rank = float(data.lengths[stopped].sum() / len(data)), float(data.returns.mean())
        world = DatasetName.parse(data.id).world_name
        if int(stopped.sum()) >= fewest and (world not in chosen or rank > chosen[world][0]):
            chosen[world] = rank, data
    left = [300, 250, 200, 150, 100, 75, 50, 25, 10, 1]
    return {data: clock_effect(data, left, np.random.default_rng(0)) for _, data in chosen.values()}


def quality_table(measured: Sequence[Quality]) -> pd.DataFrame:
    """What `brrcrl data card` says, a row a dataset."""
    rows = {
        DatasetName.parse(quality.id).short: {
            "junk": f"{quality.junk_episodes:.0%}",
            "episodes with the top tenth of steps": f"{quality.top_step_episodes:,} of {quality.episodes:,}",
            "episodes in the top tenth of the range": f"{quality.top_value_episodes:,}",
            "correlation of RTG and return": "-" if quality.correlation is None else f"{quality.correlation:.2f}",
            "warnings": len(warnings(quality)),
        }
        for quality in measured
    }
    return pd.DataFrame(rows).T


# -- drawing -----------------------------------------------------------------------------------------------------


def draw_distribution(ax: Axes, values: Mapping[str, Tensor], share: float) -> None:
    """Histograms of `values` (kind -> [n]) as outlines; triangles show where the top `share` of each range begins."""
    bins = np.linspace(min(float(v.min()) for v in values.values()), max(float(v.max()) for v in values.values()), 41)
    for kind, some in values.items():
        color, line = KIND_STYLE.get(kind, (COLORS["good"], ":"))
        sns.histplot(x=some.numpy(), bins=bins.tolist(), stat="percent", element="step", alpha=0.12, color=color,
                     edgecolor=color, ls=line, lw=2, label=kind, ax=ax)  # fmt: skip
        ax.plot(top_edge(some, share), 0.97, "v", color=color, ms=9, mec="black", transform=ax.get_xaxis_transform())
    ax.set(xlim=(bins[0], bins[-1]), ylim=(0, 1.12 * ax.get_ylim()[1]))


def draw_rarity(ax: Axes, table: pd.DataFrame) -> None:
    """The columns of `table` (shares, one row per dataset) as markers on a logarithmic axis."""
    rows = np.arange(len(table))[::-1]
    styles = ((COLORS["vanilla"], "s"), (COLORS["ours"], "o"), ("white", "D"))
    for (name, shares), (color, marker) in zip(table.items(), styles, strict=True):
        ax.plot(shares, rows, marker, color=color, label=name, ms=8, mec="black")
    ax.set(xscale="log", yticks=rows, yticklabels=table.index)
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))


def draw_buckets(ax: Axes, rtg: Tensor, buckets: ReturnBuckets) -> None:
    """Share of `rtg` [steps] in each bucket, over the bucket's number."""
    share = bucket_counts(buckets, rtg).double() / len(rtg)
    ax.bar(np.arange(buckets.count), 100 * share, width=0.9, color=COLORS["ours"])
    text = f"{int((share == 0).sum())} of {buckets.count} empty, width {buckets.width:.1f}"
    ax.text(0.99, 0.9, text, ha="right", va="top", transform=ax.transAxes)
    ax.set(ylabel="% of steps", xlim=(-1, buckets.count))


def draw_clock(ax: Axes, effect: pd.DataFrame, discount: float) -> None:
    """Observed RTG before the clock's end, that of like states in mid-episode, and what constant rewards predict."""
    left = effect["left"]
    ax.plot(left, effect["like"], "--D", color=COLORS["vanilla"], ms=4, label="the state most like it, mid-episode")
    ax.plot(left, effect["rtg"], "-o", color=COLORS["ours"], ms=4, label="observed")
    expected = effect["middle_reward"] * (1 - discount**left) / (1 - discount)
    ax.plot(left, expected, ":", color=COLORS["exact"], label="a constant reward, cut off by the clock", zorder=3)
    ax.set(xlabel="steps left on the clock", ylabel="RTG", ylim=(0, None))
    ax.invert_xaxis()


def draw_course(ax: Axes, data: OfflineDataset, quality: Quality) -> None:
    """Returns in the order of collection; below the line they are junk."""
    ax.scatter(np.arange(data.episodes) + 1, data.returns, s=9, color=COLORS["data"], lw=0)
    edges = np.cumsum([0, *(block.episodes for block in quality.blocks)])
    ax.stairs([block.mean for block in quality.blocks], edges + 0.5, baseline=None, color=COLORS["ours"], lw=2)
    ax.axhline(JUNK * quality.expert_return, color=COLORS["vanilla"], ls="--")
    ax.set(xlabel="episode, in the order of collection")


def draw_learning_curve(
    ax: Axes, curve: pd.DataFrame, policies: Mapping[str, Mapping[str, Any]], replay: tuple[int, int]
) -> None:
    """Evaluations during training, the steps that became medium-replay (from, to), and the two chosen policies
    measured anew."""
    steps, mean, std = curve["step"] / 1000, curve["return_mean"], curve["return_std"]
    first, last = replay
    ax.axvspan(first / 1000, last / 1000, color=COLORS["data"], alpha=0.25, lw=0, label="medium-replay")
    ax.plot(steps, mean, color=COLORS["ours"], label="evaluation, mean ± std")
    ax.fill_between(steps, mean - std, mean + std, color=COLORS["ours"], alpha=0.25, lw=0)
    for (kind, policy), marker in zip(policies.items(), ("s", "*"), strict=True):
        at, fresh, spread = policy["step"] / 1000, policy["fresh_return_mean"], policy["fresh_return_std"]
        ax.errorbar(at, fresh, spread, fmt=marker, color="black", mfc="white", ms=11, capsize=4, label=f"{kind}, fresh")
    ax.set(xlabel="environment steps (thousands)", ylabel="return", xlim=(0, None))


def draw_strip(figure: Figure, rows: Mapping[str, tuple[np.ndarray, np.ndarray]], steps: Sequence[int]) -> None:
    """One row of pictures per episode: `rows` maps a label to frames [n, h, w, 3] and positions [n] in metres."""
    axes = figure.subplots(len(rows), len(steps), squeeze=False)
    for line, (label, (frames, positions)) in zip(axes, rows.items(), strict=True):
        for ax, frame, position, step in zip(line, frames, positions, steps, strict=True):
            ax.imshow(frame)
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"step {step}, {round(position, 1) + 0.0:.1f} m", fontsize=10, weight="normal", loc="center")
        line[0].set_ylabel(label, fontsize=11)


# -- rendering ---------------------------------------------------------------------------------------------------


def replay_job(data: OfflineDataset, episode: int, steps: Sequence[int]) -> dict[str, Any]:
    """What `render` needs to play an episode again and take pictures after `steps` actions (ascending)."""
    assert data.env_spec is not None
    first = int(data.starts[episode])
    played = slice(first, first + steps[-1])
    stored = {"actions": data.actions[played].tolist(), "rewards": data.rewards[played].tolist()}
    return {"env": data.env_spec.to_json(), "seed": int(data.seeds[episode]), "steps": list(steps), **stored}


def worst_and_best(loaded: Sequence[OfflineDataset]) -> tuple[list[int], dict[str, dict[str, Any]]]:
    """Six steps, and the jobs of two episodes at them, labelled by return: of the dataset with the lowest mean, the one
    that earned about a tenth of the best return; and the best one of all."""
    good = max(loaded, key=lambda data: float(data.returns.max()))
    bad = min(loaded, key=lambda data: float(data.returns.mean()))
    best, worst = int(good.returns.argmax()), int((bad.returns - 0.1 * good.returns.max()).abs().argmin())
    steps = np.linspace(0, int(bad.lengths[worst]), 6).astype(int).tolist()
    return steps, {
        f"low: {bad.returns[worst]:,.0f}": replay_job(bad, worst, steps),
        f"high: {good.returns[best]:,.0f}": replay_job(good, best, steps),
    }


def render(jobs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray] | None:
    """Play `jobs` again in a process of its own (a graphics driver may crash), or None where nothing can draw.

    Returns frames [jobs, n, h, w, 3], positions [jobs, n], deviation [jobs] from the stored rewards, and the
    renderer's name. Tries what the variable MUJOCO_GL names, or else each of RENDERERS.
    """
    wanted = os.environ.get("MUJOCO_GL")
    for renderer in (wanted,) if wanted else RENDERERS:
        with tempfile.TemporaryDirectory() as folder:  # also where MuJoCo leaves its log
            Path(folder, "jobs.json").write_text(json.dumps(jobs))
            command = [sys.executable, "-m", "brrcrl_lib.study.figures.replay"]
            env = {**os.environ, "MUJOCO_GL": renderer}
            try:
                subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=120, check=True)
            except (subprocess.SubprocessError, OSError):
                continue
            with np.load(Path(folder, "frames.npz")) as found:
                return {"renderer": np.array(renderer), **found}
    return None
