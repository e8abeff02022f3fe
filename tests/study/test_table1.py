"""The grid `table1`: its order, its budgets, and D4RL's data in place of the kit's, from files that the test writes."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.methods.base import config_for
from brrcrl_lib.study.experiments.cost import cost, seconds_per_update
from brrcrl_lib.study.experiments.grids import BUDGETS, GRIDS, cells
from brrcrl_lib.study.experiments.group import measure_cell
from brrcrl_lib.study.experiments.plan import ExperimentConfig, make_plan
from brrcrl_lib.study.experiments.running import run_grid
from brrcrl_lib.tools.importing.d4rl import ImportConfig, import_d4rl

ENVS = {"hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "halfcheetah": "HalfCheetah-v4"}
KINDS = ("medium-replay", "medium", "medium-expert")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No dataset anywhere."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "data"))
    return tmp_path


def d4rl_file(path: Path, env_id: str, episodes: int = 6, length: int = 12) -> Path:
    """Random numbers in D4RL's layout, of the sizes of an environment."""
    rng, env = np.random.default_rng(0), gym.make(env_id)
    steps, ends = episodes * length, np.arange(1, episodes + 1) * length - 1
    observations = rng.normal(size=(steps, *env.observation_space.shape)).astype(np.float32)
    flags = {name: np.zeros(steps, bool) for name in ("terminals", "timeouts")}
    flags["terminals"][ends[::2]], flags["timeouts"][ends[1::2]] = True, True
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = observations, np.roll(observations, -1, 0)
        file["actions"] = rng.uniform(-0.9, 0.9, (steps, *env.action_space.shape)).astype(np.float32)
        file["rewards"] = rng.uniform(size=steps).astype(np.float32)
        for name, values in flags.items():
            file[name] = values
    return path


def test_the_most_telling_cells_come_first(empty: Path) -> None:
    """And nothing of it needs a dataset."""
    every = cells("table1")
    kinds = list(dict.fromkeys((cell.dataset.split("/")[-1], cell.seed) for cell in every))
    assert kinds[:5] == [("medium-replay-v1", seed) for seed in range(5)]
    assert kinds[5:] == [(f"{kind}-v1", seed) for kind in ("medium-expert", "medium") for seed in range(3)]
    first = [cell for cell in every if cell.seed == 0 and "medium-replay" in cell.dataset]
    assert {cell.method for cell in first} == set(BUDGETS)
    assert {cell.episodes for cell in every} == {20}
    assert {cell.episodes for cell in cells("engine")} == {10}
    for cell in every:
        assert cell.config.steps == (BUDGETS[cell.method] or config_for(cell.method, "laptop", "box").steps)
    assert all(cell.config.steps == 40 for cell in cells("table1", "smoke"))
    trainings = {cell.train_key for cell in every}
    assert len(trainings) == 12 * 3 * (5 + 3 + 3)  # other values of a knob train nothing


def test_every_grid_of_vectors_runs_on_d4rl_and_games_say_why_not(empty: Path) -> None:
    for grid in set(GRIDS) - {"atari"}:
        here, there = cells(grid), cells(grid, data="d4rl")
        assert len({cell.key for cell in here} & {cell.key for cell in there}) == 0
        for cell in there:
            space, _, kind = cell.dataset.split("/")
            assert space == "d4rl" and kind.endswith("-v2")
    with pytest.raises(KitError, match="D4RL has no data of"):
        cells("atari", data="d4rl")


def test_the_cost_is_told_before_anything_starts(empty: Path) -> None:
    plan = make_plan(ExperimentConfig("table1", work=empty / "work", results=empty / "none"))
    found = cost(plan, measure=lambda config: 0.36)
    assert {"dt", "cql", "iql"} <= found.timed
    cql = [cell for cell in plan.missing() if cell.method == "cql"]
    assert found.hours["cql"] == pytest.approx(len(cql) * (0.36 * BUDGETS["cql"] + 10) / 3600)
    assert found.sentence("table1").startswith(f"table1: about {sum(found.hours.values()):.1f} core-hours to come (")
    assert seconds_per_update(config_for("dt", "smoke", "box"), repeats=1) > 0


def test_a_missing_dataset_is_one_sentence_with_the_command(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data, command in (("kit", "brrcrl data collect --env Hopper-v5"), ("d4rl", "brrcrl data import-d4rl FILE")):
        config = ExperimentConfig("table1", "smoke", 1, data, "hopper/medium-replay", work=empty / data, workers=1)
        assert run_grid(config) == 1
        said = capsys.readouterr().out
        assert "no dataset '" in said and command in said and said.count("no dataset '") == 1


def test_nine_files_of_d4rls_layout_carry_the_whole_grid(empty: Path) -> None:
    for world, env in ENVS.items():
        for kind in KINDS:
            file = d4rl_file(empty / f"{world}_{kind}-v2.hdf5", env)
            import_d4rl(ImportConfig(file, env, f"d4rl/{world}/{kind}-v2", root=empty / "data"))
    config = ExperimentConfig("table1", "smoke", 1, "d4rl", work=empty / "work", results=empty / "results")
    plan = make_plan(config)
    assert plan.unusable() == {} and len(plan.missing()) == len(cells("table1"))
    assert config.path.name == "table1-d4rl.csv" and "--data d4rl" in config.flags()
    for method, dataset in (("dt", "d4rl/hopper/medium-replay-v2"), ("iql", "d4rl/walker2d/medium-expert-v2")):
        cell = next(cell for cell in plan.missing() if cell.method == method and cell.dataset == dataset)
        row, _ = measure_cell(cell, config.store)
        assert row["dataset"] == dataset and row["train_steps"] == 40 and np.isfinite(row["score"])
