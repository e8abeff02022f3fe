"""Films of robots: what was played is what is drawn, labels add up, and the shipped film tells what the rows say."""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from gymnasium.envs.registration import EnvSpec
from PIL import Image

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.evaluate import Evaluation
from brrcrl_lib.methods.br_rcrl import BrRcrlAct
from brrcrl_lib.study.analysis.shipped_models import available_models, shipped_model
from brrcrl_lib.study.claims.target_rules import decisions
from brrcrl_lib.study.experiments.results import model_name, read_grid, short_name
from brrcrl_lib.study.figures import robot_film
from brrcrl_lib.study.figures.robot_film import LABEL_HEIGHT, Take, label, moments, panel, shoot, story_of, write_film
from brrcrl_lib.tools.film import FILM, FilmConfig, differing_most, film


def take(rule: str = "max") -> Take:
    """Three steps that earn 1, 2 and 4; pictures of steps 0, 2 and 3 in three greys."""
    trace = pd.DataFrame({"reward": [1.0, 2.0, 4.0], "target": [30.0, 20.0, 10.0]})
    frames = np.stack([np.full((20, 160, 3), grey, np.uint8) for grey in (0, 100, 200)])
    return Take(rule, Evaluation(np.array([7.0]), np.array([3]), trace, 0.0), [0, 2, 3], frames)


def test_a_label_has_what_is_asked_for_and_the_return_so_far() -> None:
    assert [label(take(), step) for step in (0, 2)] == ["asks for 30   return 0", "asks for 10   return 3"]
    assert [label(take(), step) for step in (3, 9)] == ["asks for 10   return 7", "asks for 10   return 7, over"]


def test_a_panel_shows_the_picture_of_its_step_and_stays_at_the_end() -> None:
    for step, grey in ((0, 0), (2, 100), (3, 200), (9, 200)):
        shown = panel(take(), step)
        assert shown.shape == (20 + LABEL_HEIGHT, 160, 3) and (shown[LABEL_HEIGHT:] == grey).all()


def test_moments_begin_at_the_start_and_end_at_the_end() -> None:
    assert moments(5) == [0, 1, 2, 3, 4, 5]
    many = moments(1000)
    assert len(many) == robot_film.FRAMES and (many[0], many[-1]) == (0, 1000) and np.ptp(np.diff(many)) <= 1


def test_a_film_is_side_by_side_and_keeps_its_story(tmp_path) -> None:
    size = write_film(tmp_path / "a.gif", [take("adaptive"), take()], [0, 2, 3, 9], "δ [x]: one, two")
    assert size == (tmp_path / "a.gif").stat().st_size and story_of(tmp_path / "a.gif") == "δ [x]: one, two"
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.width == 320 and gif.n_frames >= 3


def test_what_is_rendered_is_the_episode_that_was_played(monkeypatch) -> None:
    jobs = []

    def render(wanted):
        jobs.extend(wanted)
        return {"frames": np.zeros((1, 3, 4, 4, 3), np.uint8), "deviation": np.zeros(1)}

    monkeypatch.setattr(robot_film, "render", render)
    run, _ = shipped_model("brrcrl/hopper/medium-replay-v0", "authors")
    taken = shoot(run, "max", BrRcrlAct(target="max"), 1000, [0, 20, 5000])
    job, length = jobs[0], int(taken.played.lengths[0])
    assert taken.steps == job["steps"] == [0, 20, length] and length < 1000
    env = gym.make(EnvSpec.from_json(job["env"]))
    env.reset(seed=job["seed"])
    rewards = [env.step(np.array(action, np.float32))[1] for action in job["actions"]]
    assert rewards == pytest.approx(taken.played.trace["reward"].tolist(), abs=1e-9)
    assert job["rewards"] == taken.played.trace["reward"].tolist()


@pytest.mark.parametrize(
    ("drawn", "sentence"), [(None, "libegl1"), ({"deviation": np.array([0.5])}, "not the one that was played")]
)
def test_no_driver_and_another_episode_are_refused(monkeypatch, tmp_path, drawn, sentence) -> None:
    monkeypatch.setattr(robot_film, "render", lambda jobs: drawn)
    with pytest.raises(KitError, match=sentence):
        film(FilmConfig(dataset="brrcrl/hopper/medium-replay-v0", steps=1, out=tmp_path / "a.gif"))
    assert not (tmp_path / "a.gif").exists()


def test_a_driver_that_is_not_there_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)  # as its import fails then
    with pytest.raises(KitError, match="MUJOCO_GL"):
        film(FilmConfig(dataset="brrcrl/hopper/medium-replay-v0", steps=1, out=tmp_path / "a.gif"))


def test_the_film_is_of_the_dataset_on_which_the_rows_differ_most() -> None:
    rows = read_grid("targets")
    ours = rows[(rows["objective"] == "authors") & rows["target"].isin(("adaptive", "max"))]
    means = ours.pivot_table(index="dataset", columns="target", values="score").dropna()
    gaps = (means["adaptive"] - means["max"]).abs()
    gaps = gaps[[model_name(name) in available_models() for name in gaps.index]]
    assert differing_most(rows) == gaps.idxmax()
    turned = rows["target"].replace({"adaptive": "max", "max": "adaptive"})
    assert differing_most(rows.assign(target=turned)) == gaps.idxmax(), "whichever rule earns more"


def test_the_shipped_film_is_small_and_tells_what_the_rows_say() -> None:
    rows = read_grid("targets")
    name, decision = short_name(differing_most(rows)), decisions(rows)["max"]
    assert FILM.stat().st_size < robot_film.MAX_BYTES
    assert f"score: {decision.describe(name)}; " in story_of(FILM), "run `brrcrl film`"
    assert story_of(FILM).startswith(f"{name}, one model and one start")
