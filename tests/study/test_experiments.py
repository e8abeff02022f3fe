"""Grids: skipped when done, resumed when killed, honest about failures, and careful with result files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from brrcrl_lib.data.storage import read_part
from brrcrl_lib.study.experiments import grids
from brrcrl_lib.study.experiments import running as experiments
from brrcrl_lib.study.experiments.grids import Block, cells
from brrcrl_lib.study.experiments.results import order_datasets, read_results, read_trace, select, short_name
from brrcrl_lib.study.experiments.running import ExperimentConfig, run_grid
from brrcrl_lib.tools.collecting.collect import CollectConfig, collect
from brrcrl_lib.tools.publishing.minari_writer import write_dataset

DATASET = "test/hopper/replay-v0"


@pytest.fixture(scope="module")
def data_root(tmp_path_factory) -> Path:
    """A dataset of a few hundred real Hopper steps."""
    import gymnasium as gym
    import numpy as np

    folder = tmp_path_factory.mktemp("grid")
    run = CollectConfig("Hopper-v5", folder / "run", steps=400, random_steps=400, snapshot_every=400, hidden=(8, 8),
                        evaluation_episodes=1)  # fmt: skip
    collect(run, progress=False)
    flat = read_part(folder / "run/parts/part-0001.hdf5")
    env = gym.make("Hopper-v5")
    space = gym.spaces.Box(-np.inf, np.inf, (11,), np.float32)
    write_dataset(
        folder / "minari", DATASET, [flat], env_spec=env.spec, observation_space=space, action_space=env.action_space,
        card={},
    )  # fmt: skip
    return folder / "minari"


@pytest.fixture
def config(data_root: Path, tmp_path: Path, monkeypatch) -> ExperimentConfig:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(data_root))
    block = Block((DATASET,), ({"method": "cloning"}, {"objective": "authors"}), (0,), ({"clone": True},))
    monkeypatch.setitem(grids.GRIDS, "tiny", (block,))
    return ExperimentConfig("tiny", "smoke", episodes=1, workers=1, work=tmp_path)


def test_a_grid_runs_once_and_then_only_what_is_missing(config: ExperimentConfig, capsys) -> None:
    assert run_grid(config) == 0
    path = config.work / "tiny.csv"
    table = read_results(path)
    assert list(table.method) == ["cloning", "bayesian"] and table.key.is_unique
    before = path.read_text()
    assert run_grid(config) == 0
    assert "0 to do" in capsys.readouterr().out.splitlines()[-1]
    assert path.read_text() == before
    # A kill between measuring and recording loses nothing; a lost cell is measured again, to the same number.
    victim = cells("tiny", "smoke", 1)[1]
    (config.work / "cells" / f"{victim.key}.json").unlink()
    rows = pd.read_csv(path)
    rows[rows.key != victim.key].to_csv(path, index=False)
    assert run_grid(config) == 0
    again = read_results(path)
    assert list(again.key) == list(table.key)
    assert list(again.returns) == list(table.returns)


def test_training_is_shared_between_cells_that_differ_in_inference() -> None:
    keys: dict[str, set[str]] = {}
    for cell in cells("engine"):
        keys.setdefault(cell.train_key, set()).add(cell.key)
    assert max(map(len, keys.values())) == 2
    every = [cell.key for cell in cells("engine")]
    assert len(every) == len(set(every))


def test_a_failing_cell_is_reported_and_the_rest_runs(config: ExperimentConfig, monkeypatch, capsys) -> None:
    bad = Block((DATASET,), ({"method": "cloning"},), (0,), ({"clone": True}, {"target": "nonsense"}))
    monkeypatch.setitem(grids.GRIDS, "tiny", (bad,))
    assert run_grid(config) == 1
    assert "unknown target 'nonsense'" in capsys.readouterr().out
    assert len(read_results(config.work / "tiny.csv")) == 1


def test_wrong_names_are_refused(config: ExperimentConfig) -> None:
    with pytest.raises(ValueError, match="unknown grid 'engines'; did you mean 'engine'"):
        cells("engines")
    with pytest.raises(ValueError, match="unknown preset"):
        cells("engine", "laptopp")


def test_an_unknown_dataset_is_reported(config: ExperimentConfig, monkeypatch, capsys) -> None:
    missing = Block(("test/hopper/replay-v9",), ({"method": "cloning"},), (0,), ({"clone": True},))
    monkeypatch.setitem(grids.GRIDS, "tiny", (missing,))
    assert run_grid(config) == 1
    assert "test/hopper/replay-v0" in capsys.readouterr().out  # the nearest one we have


def test_broken_result_files_are_named(config: ExperimentConfig) -> None:
    run_grid(config)
    path = config.work / "tiny.csv"
    good = pd.read_csv(path)

    def broken(change) -> None:
        table = good.copy()
        change(table).to_csv(path, index=False)

    broken(lambda table: table.drop(columns="score"))
    with pytest.raises(ValueError, match="lacks the columns score"):
        read_results(path)
    broken(lambda table: table.assign(return_mean=[1e6, *table.return_mean[1:]]))
    with pytest.raises(ValueError, match=r"line 2: return_mean 1000000\.0 is not the mean"):
        read_results(path)
    broken(lambda table: table.assign(returns=[table.returns[0], "[1, "]))
    with pytest.raises(ValueError, match="line 3: returns is not a list"):
        read_results(path)
    broken(lambda table: pd.concat([table, table]))
    with pytest.raises(ValueError, match="twice"):
        read_results(path)
    path.write_text("")
    with pytest.raises(ValueError, match="not a readable CSV"):
        read_results(path)
    with pytest.raises(FileNotFoundError, match="brrcrl experiments run nothing"):
        read_results(config.work / "nothing.csv")
    assert json.loads(good.returns[0])


def test_one_row_is_made_again_by_its_key(config: ExperimentConfig, capsys) -> None:
    run_grid(config)
    before = (config.work / "tiny.csv").read_text()
    wanted = cells("tiny", "smoke", 1)[1]
    assert run_grid(replace(config, key=wanted.key)) == 0
    lines = capsys.readouterr().out.splitlines()
    now, recorded = (line.split("[")[1] for line in lines[-2:])
    assert "now" in lines[-2] and "recorded" in lines[-1] and now == recorded  # the same episodes, to the digit
    assert (config.work / "tiny.csv").read_text() == before
    with pytest.raises(ValueError, match="has no row with the key 'abc'"):
        run_grid(replace(config, key="abc"))


def test_a_grid_can_be_run_for_one_dataset_and_completed_later(config: ExperimentConfig, monkeypatch) -> None:
    other = Block(("test/hopper/elsewhere-v0",), ({"method": "cloning"},), (0,), ({"clone": True},))
    monkeypatch.setitem(grids.GRIDS, "tiny", (*grids.GRIDS["tiny"], other))
    assert run_grid(replace(config, dataset="replay")) == 0  # the other dataset does not exist, and is not asked for
    assert set(read_results(config.work / "tiny.csv")["dataset"]) == {DATASET}
    with pytest.raises(ValueError, match="no dataset of this grid is called 'hoper'"):
        run_grid(replace(config, dataset="hoper"))


def test_other_defaults_mean_another_training(monkeypatch) -> None:
    cell = cells("engine")[0]
    assert cell.train_key == replace(cell, training={**cell.training, "fusion": "late"}).train_key  # the default, said
    assert cell.train_key != replace(cell, training={**cell.training, "fusion": "early"}).train_key
    assert cell.train_key != replace(cell, preset="smoke").train_key
    assert cell.train_key == replace(cell, training={**cell.training, "device": "cpu"}).train_key
    assert cell.key != replace(cell, episodes=11).key


def test_notebooks_get_rows_and_traces_in_smoke(config: ExperimentConfig, monkeypatch) -> None:
    block = Block((DATASET,), ({"objective": "authors", "return_weight": 0.0}, {"objective": "paper"}), (0,),
                  ({"target": "fixed", "quantile": 0.9},), trace=True)  # fmt: skip
    monkeypatch.setitem(grids.GRIDS, "tiny", (block,))
    monkeypatch.setattr(experiments, "WORK", config.work)
    rows, folder = experiments.rows_for("tiny", "smoke", lambda cell: cell.training["objective"] == "authors")
    assert len(rows) == 1 and list(rows.return_weight) == [0.0] and list(rows["quantile"]) == [0.9]
    trace = read_trace(rows.key[0], 0.5, folder)
    first = trace[trace.episode == 0]
    assert 1 <= len(first) <= experiments.SMOKE_STEPS
    observed = sum(0.5**step * reward for step, reward in enumerate(first.reward))
    assert first.observed.iloc[0] == pytest.approx(observed, abs=1e-6)
    assert first.target.nunique() == 1  # the same wish at every step
    with pytest.raises(FileNotFoundError, match="no trace of the cell nothing"):
        read_trace("nothing", folder=folder)


def test_selecting_rows_understands_defaults() -> None:
    table = pd.DataFrame({"dataset": ["a", "a", "b"], "buckets": [None, 20, None]})
    assert list(select(table, dataset="a", buckets=None).index) == [0]
    assert list(select(table, buckets=20).index) == [1]
    assert list(select(table, negatives=None).index) == [0, 1, 2]  # nobody changed it
    assert select(table, negatives=4).empty


def test_datasets_have_an_order_and_short_names() -> None:
    ids = ["brrcrl/walker2d/expert-v0", "brrcrl/halfcheetah/medium-v0", "brrcrl/walker2d/medium-replay-v0",
           "brrcrl/hopper/medium-replay-v0", "other/ant/medium-v0"]  # fmt: skip
    ordered = order_datasets([*ids, ids[0]])
    assert [short_name(name) for name in ordered] == [
        "hopper medium-replay", "walker2d medium-replay", "walker2d expert", "halfcheetah medium", "ant medium",
    ]  # fmt: skip
