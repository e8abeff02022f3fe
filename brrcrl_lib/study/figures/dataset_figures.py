"""Whole figures of notebook 04, one panel a dataset or a world; the notebook adds what it found as their title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from brrcrl_lib.data.registry import read_metadata
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.study.analysis.data_quality import Quality
from brrcrl_lib.study.figures import datasets as draw
from brrcrl_lib.worlds import DatasetName


def by_world(loaded: Sequence[OfflineDataset]) -> dict[str, list[OfflineDataset]]:
    """Datasets of each world, in their order."""
    worlds: dict[str, list[OfflineDataset]] = {}
    for data in loaded:
        worlds.setdefault(DatasetName.parse(data.id).world_name, []).append(data)
    return worlds


def with_version(dataset_id: str) -> str:
    name = DatasetName.parse(dataset_id)
    return name.short if name.version is None else f"{name.short} (v{name.version})"


def course_figure(measured: Mapping[OfflineDataset, Quality]) -> Figure:
    """Returns in the order of collection."""
    figure, axes = plt.subplots(1, len(measured), figsize=(2 + 3.6 * len(measured), 3.6), squeeze=False)
    for axis, (data, quality) in zip(axes[0], measured.items(), strict=True):
        draw.draw_course(axis, data, quality)
        axis.set_title(with_version(data.id), weight="normal", fontsize=11)
    axes[0, 0].set_ylabel("return")
    figure.legend(["episodes", "mean of a tenth of them", "junk lies below"], loc="outside lower center", ncols=3)
    return figure


def distribution_figure(loaded: Sequence[OfflineDataset], top: float) -> Figure:
    """Left returns, right RTG; a row a world. What is only other sets together is left out."""
    worlds = by_world(loaded)
    figure, axes = plt.subplots(len(worlds), 2, figsize=(10, 1 + 2.7 * len(worlds)), squeeze=False)
    for (left, right), (world, inside) in zip(axes, worlds.items(), strict=True):
        kinds = {DatasetName.parse(data.id).kind: data for data in inside}
        kinds.pop("medium-expert", None)
        draw.draw_distribution(left, {kind: data.returns for kind, data in kinds.items()}, top)
        draw.draw_distribution(right, {kind: data.rtg for kind, data in kinds.items()}, top)
        left.set(xlabel="return", ylabel="% of episodes", title=world)
        right.set(xlabel="RTG", ylabel="% of transitions")
        left.legend()
    return figure


def rarity(loaded: Sequence[OfflineDataset], top: float) -> pd.DataFrame:
    """Share in the top of the range, by three ways to count; a row a dataset."""
    rows = {}
    for data in loaded:
        counted = {
            "episodes, by return": data.returns,
            "transitions, by RTG": data.rtg,
            "first steps, by RTG": data.rtg[data.starts],
        }
        rows[DatasetName.parse(data.id).short] = {
            label: float((values >= draw.top_edge(values, top)).double().mean()) for label, values in counted.items()
        }
    return pd.DataFrame(rows).T


def clock_figure(effects: Mapping[OfflineDataset, pd.DataFrame], discount: float) -> Figure:
    """RTG before the clock stops an episode, beside that of like states."""
    figure, axes = plt.subplots(1, max(1, len(effects)), figsize=(2 + 4 * max(1, len(effects)), 3.8), squeeze=False)
    for axis, (data, effect) in zip(axes[0], effects.items(), strict=False):  # without effects, one empty panel
        draw.draw_clock(axis, effect, discount)
        axis.set_title(DatasetName.parse(data.id).short, weight="normal", fontsize=11)
    axes[0, 0].legend(loc="lower left")
    return figure


def learning_curves(root: Path, loaded: Sequence[OfflineDataset]) -> tuple[Figure, dict[str, pd.DataFrame]]:
    """The runs that the datasets in `root` came from: the figure, and the curve of each world that has one."""
    found = {}
    for world, inside in by_world(loaded).items():
        version = max(DatasetName.parse(data.id).version or 0 for data in inside)
        file = root.parent / f"policies/{world}-learning-curve{f'-v{version}' if version else ''}.csv"
        if file.is_file():
            found[world] = version, pd.read_csv(file)
    figure, axes = plt.subplots(1, max(1, len(found)), figsize=(2 + 4 * max(1, len(found)), 3.8), squeeze=False)
    for axis, (world, (version, curve)) in zip(axes[0], found.items(), strict=False):
        cards = {
            kind: read_metadata(root / f"brrcrl/{world}/{kind}-v{version}/data")["card"]
            for kind in ("medium", "expert", "medium-replay")
        }
        replay = cards["medium-replay"]
        steps = replay.get("random_steps_left_out", 0), replay["policy"]["step"]
        draw.draw_learning_curve(axis, curve, {kind: cards[kind]["policy"] for kind in ("medium", "expert")}, steps)
        axis.set_title(f"{world} (v{version})", weight="normal", fontsize=11)
    axes[0, 0].legend(loc="upper left", fontsize=9)
    return figure, {world: curve for world, (_, curve) in found.items()}


def strip_figures(loaded: Sequence[OfflineDataset]) -> tuple[str | None, dict[str, Figure]]:
    """Pictures of a bad and of a good episode of each world, and what drew them; nothing where nothing can draw."""
    strips = {world: draw.worst_and_best(inside) for world, inside in by_world(loaded).items()}
    seen = draw.render([job for _, jobs in strips.values() for job in jobs.values()])
    figures: dict[str, Figure] = {}
    if seen is None:
        return None, figures
    pictures = iter(zip(seen["frames"], seen["positions"], strict=True))
    for world, (steps, jobs) in strips.items():
        figures[world] = plt.figure(figsize=(11, 4.4))
        draw.draw_strip(figures[world], {label: next(pictures) for label in jobs}, steps)
    assert float(np.abs(seen["deviation"]).max()) < 1e-3, "played again, an episode should earn what it earned"
    return str(seen["renderer"]), figures
