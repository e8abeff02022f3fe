"""The stairs, move by move: what is drawn is the state, its exact returns, and whether the target is among them."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from brrcrl_lib.study.figures.stairs import step_through
from brrcrl_lib.study.toys.stairs import STEP, Stairs, State, draw
from brrcrl_lib.study.toys.stairs_agents import Episodes, roll_out
from brrcrl_lib.study.toys.stairs_exact import exact_estimate, joint_distribution, table_shape

STAIRS = Stairs(height=3, budget=4, top_reward=5)


def climb(asked: int, slip_at: int = -1) -> Episodes:
    """One episode of a climber who always steps and always asks for the same return."""
    buckets = joint_distribution(STAIRS).shape[-1]
    policy = np.zeros((*table_shape(STAIRS), buckets, 3))
    policy[..., STEP] = 1.0
    targets = np.full(table_shape(STAIRS), asked)
    return roll_out(STAIRS, policy, targets, 1, np.random.default_rng(0), slip_at)


def test_a_move_shows_the_state_its_returns_and_the_target() -> None:
    walks = {"calm": climb(5), "fallen": climb(5, slip_at=1)}
    for move, states, possible in (
        (0, [(0, 4, 0), (0, 4, 0)], [True, True]),
        (2, [(2, 2, 0), (0, 2, 1)], [True, False]),
    ):
        figure = step_through(STAIRS, walks, move)
        for place, (state, can) in enumerate(zip(states, possible, strict=True)):
            scene, below = figure.axes[place], figure.axes[2 + place]
            assert np.array_equal(scene.images[0].get_array(), draw(STAIRS, State(*state)))
            exact = exact_estimate(STAIRS).returns[state]
            assert np.allclose([bar.get_height() for bar in below.patches], exact) and (exact[5] > 0) is np.bool_(can)
            assert [text.get_text() for text in below.texts] == ["asks for 5" + ("" if can else ": impossible")]
            assert ("white" in [line.get_markerfacecolor() for line in below.lines]) is not can
        plt.close(figure)


def test_who_has_arrived_stays_and_keeps_what_was_earned() -> None:
    figure = step_through(STAIRS, {"calm": climb(5), "fallen": climb(5, slip_at=1)}, 3)
    titles = [axis.get_title() for axis in figure.axes[:2]]
    assert titles == ["calm\nmove 2: has 0, will step", "fallen\nmove 3: has 0, will step"]
    plt.close(figure)
