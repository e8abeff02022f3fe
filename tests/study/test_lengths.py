"""A longer training goes on from a shorter one, to the same weights; rows say what a model knows of held-out steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from grid_cases import DATASET, Kit

from brrcrl_lib.data.open import open_source
from brrcrl_lib.study.experiments import group
from brrcrl_lib.study.experiments.grids import Cell
from brrcrl_lib.training import fit, load_run, split


def cell_of(steps: int) -> Cell:
    return Cell(DATASET, "box", {"method": "fragile", "steps": steps}, 0, {}, "smoke", 1)


def test_a_longer_training_takes_only_the_steps_that_are_missing(kit: Kit, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(group, "LENGTHS", (10, 20))
    store = kit.config("quick").store
    for steps in (20, 40):
        row, _ = group.measure_cell(cell_of(steps), store)
    assert kit.steps(0) == list(range(40)) and row["train_steps"] == 40
    source, config = open_source(DATASET), cell_of(40).config
    straight, grown = fit(config, source, tmp_path / "straight"), load_run(store.training(cell_of(40)))
    for one, other in zip(straight.model.parameters(), grown.model.parameters(), strict=True):
        assert torch.equal(one, other)
    # The losses in the row are those of a plain loop over the same held-out batches.
    held_out, drawn = split(config, source)[1], torch.Generator().manual_seed(0)
    losses = [
        float(grown.method.loss(held_out.sample(config.batch_size, drawn, grown.method.needs), drawn)["loss"].detach())
        for _ in range(16)
    ]
    assert row["held_out"]["loss"] == pytest.approx(sum(losses) / 16, abs=1e-5)


@pytest.mark.parametrize("change", [{"learning_rate": 1e-3}, {"seed": 1}, {"patience": 3}])
def test_another_training_begins_at_its_own_beginning(kit: Kit, monkeypatch, change: dict) -> None:
    monkeypatch.setattr(group, "LENGTHS", (10, 20))
    store = kit.config("quick").store
    group.measure_cell(cell_of(20), store)
    seed = change.pop("seed", 0)
    other = replace(cell_of(40), seed=seed, training={**cell_of(40).training, **change})
    group.begin_with_a_shorter_training(other, store)
    assert not store.training(other).exists()
