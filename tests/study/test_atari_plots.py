"""Figures of notebook 12, the films of games, and the models that play in them."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from frame_cases import small_store
from matplotlib.axes import Axes
from PIL import Image

from brrcrl_lib.data.open import open_source
from brrcrl_lib.methods.br_rcrl_joint import JointAct, JointConfig, JointTable
from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.study.analysis import shipped_models
from brrcrl_lib.study.experiments.grids import cells
from brrcrl_lib.study.experiments.running import train_directory
from brrcrl_lib.study.figures import atari as atari_plots
from brrcrl_lib.study.figures import atari_figures, atari_film
from brrcrl_lib.study.figures.showing import alt_text
from brrcrl_lib.training import fit, load_run


@pytest.fixture
def axis() -> Axes:
    figure, axis = plt.subplots()
    yield axis
    plt.close(figure)


def test_what_moves_leaves_a_trail_and_the_newest_is_brightest() -> None:
    stack = np.full((4, 3, 3), 50)
    stack[0, 0, 0] = stack[3, 2, 2] = 200
    picture = atari_plots.with_trail(stack)
    assert picture[2, 2] == 200 and 50 < picture[0, 0] < 200 and picture[1, 1] == 50


def test_a_strip_has_a_title_per_frame() -> None:
    figure, axes = plt.subplots(1, 2)
    atari_plots.draw_strip(axes, np.zeros((2, 84, 84)), ["a", "b"])
    assert [axis.get_title(loc="center") for axis in axes] == ["a", "b"]
    with pytest.raises(ValueError, match="shorter"):
        atari_plots.draw_strip(axes, np.zeros((2, 84, 84)), ["a"])
    plt.close(figure)


def test_the_ladder_shows_each_game_and_the_policies_means(axis: Axes) -> None:
    atari_plots.draw_ladder(axis, np.array([0, 0, 1]), np.array([1.0, 3.0, 9.0]))
    assert axis.lines[0].get_ydata().tolist() == [1, 3, 9] and axis.lines[1].get_ydata().tolist() == [2, 9]


def test_a_tail_is_the_share_that_reaches(axis: Axes) -> None:
    values = np.array([0.0, 1.0, 1.0, 4.0])
    atari_plots.draw_tail(axis, {"all": values, "few": np.array([0.5])}, {"largest": 4.0})
    x, y = axis.lines[0].get_data()
    for threshold in (0.0, 1.0, 4.0):
        assert y[np.flatnonzero(x == threshold)[0]] == pytest.approx((values >= threshold).mean())
    assert axis.get_yscale() == "log" and [text.get_text() for text in axis.texts] == ["largest"]


def test_a_belief_draws_the_table_its_sums_and_theta() -> None:
    buckets = ReturnBuckets(-1.0, 1.0, 4)
    table = JointTable(torch.tensor([[[0.0, 1.0, 2.0, 0.0], [3.0, 0.0, 0.0, 1.0]]]))
    figure, bucket = plt.figure(), torch.tensor([2])
    atari_plots.draw_belief(figure, table, buckets, bucket, np.zeros((4, 84, 84)), ["NOOP", "FIRE"], "here")
    frame, heat, above, bars, _ = figure.axes
    assert frame.get_title(loc="center") == "here"
    assert np.allclose(heat.images[0].get_array(), table.log_joint().exp()[0].numpy())
    assert [label.get_text() for label in heat.get_yticklabels()] == ["noop", "fire"]
    assert np.allclose([bar.get_height() for bar in above.patches], table.log_returns().exp()[0].numpy())
    assert heat.lines[0].get_xdata()[0] == 0.0  # the lower edge of bucket 2
    widths = [bar.get_width() for bar in bars.patches]
    assert np.allclose(widths[:2], table.log_actions().exp()[0]) and np.allclose(sum(widths[2:]), 1)
    assert np.allclose(widths[2:], table.log_actions_reaching(bucket).exp()[0])
    plt.close(figure)


def test_shares_of_states_add_up(axis: Axes) -> None:
    atari_plots.draw_cumulative(axis, {"adaptive": np.array([0.2, 0.1]), "max": np.array([0.0])}, "chance")
    assert [point.tolist() for point in axis.lines[0].get_data()] == [[-np.inf, 0.1, 0.2], [0, 0.5, 1.0]]
    atari_plots.mark_at(axis, 0.1, "δ")
    assert axis.lines[-1].get_xdata()[0] == 0.1 and axis.texts[0].get_text() == "δ"


def test_a_game_shows_its_first_steps_and_where_it_paid(axis: Axes) -> None:
    trace = pd.DataFrame({"step": [0, 1, 2, 9], "reward": [0.0, 1.0, -1.0, 0.0], "target": [0.1] * 4,
                          "observed": [0.2, 1.0, -1.0, 0.0]})  # fmt: skip
    atari_plots.draw_game(axis, trace, last=5)
    assert [line.get_label() for line in axis.lines[:2]] == ["target", "observed"]
    marks = {line.get_marker(): line.get_xdata().tolist() for line in axis.lines if line.get_marker() in "^v"}
    assert marks == {"^": [1], "v": [2]} and len(axis.lines[0].get_xdata()) == 3


# -- films -------------------------------------------------------------------------------------------------------


def test_the_best_stretch_pays_most() -> None:
    rewards = [0, 0, 1, 0, 0, 1, 1, 0, -1]
    assert atari_film.best_stretch(rewards, 3) == slice(4, 7)
    assert atari_film.best_stretch(rewards, 100) == slice(0, 9)


def test_a_gif_is_small_exact_in_its_colours_and_halved_until_it_fits(tmp_path: Path) -> None:
    colours = np.array([[144, 72, 17], [92, 186, 92], [236, 236, 236]], np.uint8)
    screens = colours[np.random.default_rng(0).integers(3, size=(8, 210, 160))]
    size = atari_film.write_gif(tmp_path / "a.gif", screens, ["x"] * 8, max_bytes=10**7)
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames == 8 and film.info["duration"] in (60, 70)
        assert np.array_equal(np.asarray(film.convert("RGB"))[:210], screens[0])
    smaller = atari_film.write_gif(tmp_path / "b.gif", screens, ["x"] * 8, max_bytes=size // 2 + 2000)
    with Image.open(tmp_path / "b.gif") as film:
        assert smaller <= size // 2 + 2000 and film.n_frames == 4 and film.info["duration"] in (130, 140)
    with pytest.raises(ValueError, match="even one screen"):
        atari_film.write_gif(tmp_path / "c.gif", screens, ["x"] * 8, max_bytes=100)
    with pytest.raises(ValueError, match="one text per screen"):
        atari_film.write_gif(tmp_path / "c.gif", screens, ["x"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gif", "b.gif"]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory: two steps of training on a few hundred frames of Pong."""
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path / "frames"))
    small_store(tmp_path / "frames", "pong", tmp_path / "policies")
    config = JointConfig(steps=2, batch_size=4, device="cpu", value_range=(-1.25, 1.25))
    fit(config, open_source("ladder/pong"), tmp_path / "run")
    return tmp_path / "run"


def test_a_game_is_filmed_as_it_is_played(trained: Path) -> None:
    run = load_run(trained, "cpu")
    film = atari_film.play_game(run, JointAct(delta=0.5), seed=3, max_steps=12)
    assert film.screens.shape == (12, 210, 160, 3) and film.screens.dtype == np.uint8
    again = atari_film.play_game(run, JointAct(delta=0.5), seed=3, max_steps=12, film=False)
    pd.testing.assert_frame_equal(film.played.trace, again.played.trace)
    assert len(again.screens) == 0
    texts = atari_film.captions(film)
    assert len(texts) == 12 and texts[0] == f"asks for {film.played.trace['target'][0]:5.2f}   score    0"


# -- models ------------------------------------------------------------------------------------------------------


def test_finished_monte_carlo_models_ship_in_half_precision(trained: Path, tmp_path: Path) -> None:
    cell = next(
        c for c in cells("atari") if c.dataset == "ladder/pong" and c.training.get("objective") == "monte_carlo"
    )
    target = train_directory(cell, tmp_path / "work")
    target.parent.mkdir(parents=True)
    trained.rename(target)
    shipped = shipped_models.ship_game_models(tmp_path / "models", tmp_path / "work")
    assert [path.name for path in shipped] == ["pong-ladder-monte_carlo.safetensors"]
    assert shipped[0].stat().st_size < 1_700_000
    assert (tmp_path / "models" / "pong-ladder-monte_carlo-metrics.csv").exists()
    loaded = shipped_models.game_model("pong", "recorded", "cpu", tmp_path / "models")
    before = load_run(target, "cpu").model
    frames = torch.randint(256, (2, 4, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(loaded.model(frames).logits, before(frames).logits, atol=2e-3)
    with pytest.raises(FileNotFoundError, match=r"no model ships for breakout \(there are: pong\)"):
        shipped_models.game_model("breakout", "recorded", "cpu", tmp_path / "models")


def test_a_figure_says_how_often_each_rule_got_its_target() -> None:
    trace = pd.DataFrame({"episode": [0, 0, 1, 1], "step": [0, 1, 0, 1], "reward": 0.0, "target": 1.0,
                          "observed": [2.0, 1.0, 0.0, 0.0], "predicted": 0.5})  # fmt: skip
    figure = atari_figures.game_figure({"adaptive": trace, "max": trace.assign(target=9.0)}, "Title")
    words = alt_text(figure)
    assert "adaptive: target reached in 50.0%" in words and "max: target reached in 0.0%" in words
    assert figure.axes[0].get_lines()[0].get_xdata().tolist() == [0, 1]  # the first game alone
    plt.close(figure)


def test_how_probable_a_target_is_and_how_far_it_leads_stand_side_by_side() -> None:
    values = {"adaptive": torch.tensor([0.1, 0.5]), "max": torch.tensor([0.0, 0.2])}
    figure = atari_figures.wish_figure(values, values, 0.1, "Title")
    left, right = figure.axes
    assert left.get_xscale() == "log" and left.get_lines()[1].get_xdata()[1] == pytest.approx(1e-12)  # never zero
    assert right.get_lines()[2].get_xdata()[0] == pytest.approx(np.log(10))  # the bound log(1/delta)
    plt.close(figure)
