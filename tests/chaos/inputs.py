"""Small good inputs of every kind, made once with the kit itself: what kills interrupt and mutations spoil."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import h5py
import nbformat
import numpy as np
from frame_cases import fresh_policies, made_up_games, write_store
from grid_cases import DATASET, PLUGIN, hopper_dataset
from minari_cases import made_up_episodes, write, write_plain
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from brrcrl_lib.tools.agents.vectors import SacActor
from brrcrl_lib.tools.publishing.pack import PackConfig, pack
from chaos.calls import call

PENDULUM, PLAIN = "test/pendulum-v0", "test/plain-v0"
SMALL = ("--preset", "smoke", "--device", "cpu")
COLLECT = ("data", "collect", "--env", "Pendulum-v1", "--steps", "800", "--snapshot-every", "200", "--hidden", "8",
           "--batch-size", "8", "--random-steps", "200", "--evaluation-episodes", "1")  # fmt: skip
PARAMETERS = """\
preset: str = "recorded"  # one of recorded, smoke, laptop, released, paper: what to compute
delta: float = 0.1  # in (0, 1): share
"""


def make_inputs(base: Path) -> dict[str, str]:
    """Fill `base`, if it is not there; the environment variables under which commands find what is in it."""
    variables = {
        "MINARI_DATASETS_PATH": str(base / "minari"),
        "BRRCRL_FRAMES_PATH": str(base / "frames"),
        "BRRCRL_NOTEBOOKS": str(base / "notebooks"),
        "BRRCRL_FIGURES": str(base / "figures"),
        "BRRCRL_METHODS": str(PLUGIN),
        "FRAGILE_NOTES": str(base / "notes"),
        "BRRCRL_QUIET": "1",
        "OMP_NUM_THREADS": "1",
    }
    if (base / "grid" / "slow.csv").exists():
        return variables
    for name in ("notes", "home", "figures"):
        (base / name).mkdir(parents=True)
    hopper_dataset(base / "minari")
    env = gym.make("Pendulum-v1")
    write(base / "minari", PENDULUM, made_up_episodes(env), env)
    write_plain(base / "minari", PLAIN, made_up_episodes(env), env)
    SacActor(3, -np.ones(1), np.ones(1), (4,)).save(base / "policy.safetensors", env="Pendulum-v1", step=1)
    fresh_policies(base / "ladder", "pong")
    write_frames(base / "frames" / "mine" / "pong", seed=0)
    pack(PackConfig(base / "frames" / "mine" / "pong", base / "pong.npz"))
    write_d4rl(base / "d4rl.hdf5", seed=0)
    write_notebook(base / "notebooks" / "01_small.ipynb")
    for words in (
        ("train", "cloning", "--dataset", DATASET, "--out", base / "run", *SMALL),
        (*COLLECT, "--out", base / "collected"),
        ("experiments", "run", "slow", "--preset", "smoke", "--episodes", "1", "--work", base / "grid", "--workers", 1),
    ):
        ended = call(words, base / "home", variables)
        assert ended.code == 0, ended
    return variables


def write_frames(target: Path, seed: int) -> Path:
    about = {"env": "ALE/Pong-v5", "action_count": 18, "kind": "made up"}
    return write_store(target, made_up_games((40, 30, 20), seed, (84, 84)), (84, 84), about=about)


def write_d4rl(path: Path, seed: int, rows: int = 600) -> Path:
    """Rows as D4RL has them, of Pendulum."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(size=(rows, 3)).astype(np.float32)
        file["actions"] = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
        file["rewards"] = rng.normal(size=rows).astype(np.float32)
        file["terminals"] = np.arange(rows) % 20 == 19
        file["timeouts"] = np.arange(rows) % 50 == 49
    return path


def write_notebook(path: Path) -> Path:
    tagged = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    title = new_markdown_cell("# Small\n\n**Question:** what is a half of delta?")
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [title, tagged, new_code_cell("print(delta / 2)")]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # else they are random, and no two notebooks alike
    nbformat.write(new_notebook(cells=cells), path)
    return path
