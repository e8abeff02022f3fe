"""An environment without a card works everywhere: Ant-v5 from a recording to a row, a table and a figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from command_line import call
from grid_cases import plugged_in

from brrcrl_lib.study.claims.summary import readable, summarise
from brrcrl_lib.study.experiments.results import read_grid
from brrcrl_lib.study.figures import experiments as figures

ANT = "mine/ant/random-v0"
GRID = f"""
from brrcrl_lib.study.experiments.grids import GRIDS, Block

GRIDS["ants"] = (Block(("{ANT}",), ({{"method": "br_rcrl"}}, {{"method": "cloning"}}), (0, 1), ({{}},)),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two short episodes of random actions, recorded with Minari itself; and a grid on them."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    folder = tmp_path_factory.mktemp("ant")
    env = gym.make("Ant-v5")
    env.action_space.seed(0)
    buffers = []
    for number in range(3):
        observations, actions, rewards = [env.reset(seed=number)[0]], [], []
        for _ in range(40):
            actions.append(env.action_space.sample())
            observation, reward, *_ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
        ends = np.arange(40) == 39
        buffers.append(
            EpisodeBuffer(
                id=number, seed=number, observations=np.stack(observations), actions=np.stack(actions),
                rewards=np.array(rewards), terminations=np.zeros(40, bool), truncations=ends,
            )
        )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
        minari.create_dataset_from_buffers(ANT, buffers, env=env, algorithm_name="random")
    (folder / "ants.py").write_text(GRID)
    return folder


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    with plugged_in(folder / "ants.py"):
        yield


def test_it_trains_plays_and_has_no_score(capsys) -> None:
    assert call("train", "br_rcrl", "--dataset", ANT, "--out", "run", "--preset", "smoke") == 0
    capsys.readouterr()
    assert call("evaluate", "--run", "run", "--episodes", 2, "--max-steps", 5, "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["env"], row["score"], row["reference"], row["discount"]) == ("Ant-v5", None, None, 0.99)


def test_it_is_in_a_grid_a_table_and_a_figure(folder: Path) -> None:
    small = ["--preset", "smoke", "--episodes", "2", "--work", "work", "--workers", "1"]
    assert call("experiments", "run", "ants", *small) == 0
    rows = read_grid("ants", folder / "work")
    assert len(rows) == 4 and rows["score"].isna().all()
    lines = summarise(rows, {name: {"method": name} for name in ("br_rcrl", "cloning")})
    assert list(lines["dataset"]) == ["ant random", "ant random"]
    assert readable(lines, "score").to_numpy().tolist() == [["-"], ["-"]]
    from matplotlib.figure import Figure

    figure = Figure()
    figures.draw_settings(figure.subplots(), lines, ["br_rcrl", "cloning"])
    figure.savefig(folder / "ant.png")
    assert (folder / "ant.png").stat().st_size > 1_000
