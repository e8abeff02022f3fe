"""Cards hold what was published, and every name finds the card that it means."""

from __future__ import annotations

import subprocess
import sys

import pytest

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.worlds import DATASET_KINDS, GAMES, TIME_LIMIT, WORLDS, DatasetName, world_of


@pytest.mark.parametrize(
    ("name", "namespace", "world", "kind", "version", "short", "model"),
    [
        ("brrcrl/hopper/medium-replay-v0", "brrcrl", "hopper", "medium-replay", 0, "hopper medium-replay",
         "hopper-medium-replay"),
        ("mujoco/hopper/expert-v0", "mujoco", "hopper", "expert", 0, "hopper expert", "hopper-expert"),
        ("D4RL/Walker2d/medium-v12", "D4RL", "walker2d", "medium", 12, "Walker2d medium", "Walker2d-medium"),
        ("D4RL/antmaze/umaze-diverse-v1", "D4RL", "antmaze", "umaze-diverse", 1, "antmaze umaze-diverse",
         "antmaze-umaze-diverse"),
        ("ladder/pong", "", "pong", "ladder", None, "pong", "pong-ladder"),
        ("sample/pong", "", "pong", "sample", None, "pong sample", "pong-sample"),
        ("ladder/ms_pacman", "", "ms_pacman", "ladder", None, "ms_pacman", "ms_pacman-ladder"),
        ("/data/frames/ladder/pong", "data/frames", "pong", "ladder", None, "ladder pong", "ladder-pong"),
        ("/data/frames/pong", "data/frames", "pong", "", None, "frames pong", "frames-pong"),
        ("dqn-replay/breakout-10", "dqn-replay", "breakout", "10", None, "dqn-replay breakout-10",
         "dqn-replay-breakout-10"),
        ("mine/hopper-v0", "mine", "hopper", "", 0, "mine hopper", "mine-hopper"),
        ("my/thing-v0", "my", "thing", "", 0, "my thing", "my-thing"),
        ("my/valley-view", "my", "valley-view", "", None, "my valley-view", "my-valley-view"),
        ("hopper/medium-v0", "", "hopper", "medium", 0, "hopper medium", "hopper-medium"),
        ("hopper-medium-v2", "", "hopper", "medium", 2, "hopper-medium", "hopper-medium"),
        ("a/b/c/d-v1", "a/b", "c", "d", 1, "c d", "c-d"),
        ("alone", "", "alone", "", None, "alone", "alone"),
        ("", "", "", "", None, "", ""),
        ("///", "", "", "", None, "", ""),
        ("-v0", "", "", "", 0, "", ""),
    ],
)  # fmt: skip
def test_a_name_is_taken_apart(name, namespace, world, kind, version, short, model) -> None:
    found = DatasetName.parse(name)
    assert (found.id, found.namespace, found.world_name, found.kind, found.version) == (
        name, namespace, world, kind, version,
    )  # fmt: skip
    assert (found.short, found.model_name) == (short, model)
    assert found.world == world_of(name) and found.world.name == world.lower()


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("Hopper-v5", "hopper"),
        ("Walker2d-v4", "walker2d"),
        ("halfcheetah", "halfcheetah"),
        ("ALE/Breakout-v5", "breakout"),
        ("BreakoutNoFrameskip-v4", "breakout"),
        ("PongDeterministic-v4", "pong"),
        ("Pong", "pong"),
        ("Qbert-ramNoFrameskip-v4", "qbert"),
        ("HopperBulletEnv-v0", None),
        ("Ant-v5", None),
        ("Ponger-v0", None),
        ("other/ant/medium-v0", None),
    ],
)
def test_an_environment_finds_its_card_and_no_other(name: str, world: str | None) -> None:
    found = world_of(name)
    assert (found.name if found in WORLDS else None) == world


def test_a_world_without_a_card_says_what_can_be_said() -> None:
    ant = world_of("Ant-v5")
    assert (ant.name, ant.title, ant.kind, ant.reference, ant.paper_range, ant.decimals) == (
        "ant", "Ant", None, None, None, 0,
    )  # fmt: skip
    ant = world_of("Ant-v5", "box")
    assert (ant.title, ant.paper_range, ant.discount, ant.reference) == ("Ant", (0, 1200), 0.99, None)
    for name in ("ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4"):
        game = world_of(name)
        assert (game.title, game.kind, game.discount, game.reward_clip) == ("MsPacman", "pixels", 0.95, 1.0)
        assert (game.paper_range, game.decimals, game.reference, game.max_steps) == ((0, 10), 1, None, None)
    assert world_of("CartPole-v1", "pixels").paper_range == (0, 10)
    assert world_of("ALE/Pong-v5", "box").kind == "pixels"  # a card knows better


def test_cards_are_complete_and_in_order() -> None:
    assert [world.name for world in WORLDS] == [
        "hopper", "walker2d", "halfcheetah", "breakout", "qbert", "pong", "seaquest",
    ]  # fmt: skip
    assert GAMES == ("breakout", "qbert", "pong", "seaquest")
    for world in WORLDS:
        assert world_of(world.name) is world_of(world.env_id or "") is world
        assert world.title.lower().replace("*", "") == world.name
        assert world.reference is not None and world.reference.low < world.reference.high
        low, high = world.paper_range or (0, 0)
        assert low < high
        game = world.kind == "pixels"
        assert (world.discount, world.reward_clip, world.decimals) == ((0.95, 1.0, 1) if game else (0.99, None, 0))
        assert (world.max_steps is not None) == (world.ladder_goal is not None) == game
        assert (world.paper_reference is not None) == game
        assert world.time_limit == (None if game else TIME_LIMIT)
        assert set(world.authors_high) == (set() if game else set(DATASET_KINDS[:4]))
    assert len({hash(world) for world in WORLDS}) == len(WORLDS)


def test_published_numbers() -> None:
    """D4RL's infos.py; DQN Zoo's atari_data.py (Wang et al. 2016); Mnih et al. 2015, Extended Data Table 2."""
    assert {world.name: world.reference for world in WORLDS} == {
        "hopper": (-20.272305, 3234.3, "d4rl"),
        "walker2d": (1.629008, 4592.3, "d4rl"),
        "halfcheetah": (-280.178953, 12135.0, "d4rl"),
        "breakout": (1.7, 30.5, "atari-human"),
        "qbert": (163.9, 13455.0, "atari-human"),
        "pong": (-20.7, 14.6, "atari-human"),
        "seaquest": (68.4, 42054.7, "atari-human"),
    }
    assert {name: world_of(name).paper_reference for name in GAMES} == {
        "breakout": (1.7, 31.8, "mnih-2015"),
        "qbert": (163.9, 13455.0, "mnih-2015"),
        "pong": (-20.7, 9.3, "mnih-2015"),
        "seaquest": (68.4, 20182.0, "mnih-2015"),
    }
    assert {world.name: world.paper_range for world in WORLDS if world.name != "pong"} == {
        **dict.fromkeys(("hopper", "walker2d", "halfcheetah"), (0, 1200)),
        **dict.fromkeys(("breakout", "qbert", "seaquest"), (0, 10)),
    }
    low, high = world_of("pong").paper_range or (0, 0)
    assert -low == high > 1 / (1 - 0.95**35)
    assert low + 25 * (high - low) / 50 == 0  # the middle one of 51 grid points


def test_versions_do_not_matter_for_the_order() -> None:
    ids = ["my/thing-v0", "ladder/breakout", "d4rl/hopper/expert-v2", "brrcrl/hopper/medium-v0", "Ant-v5",
           "d4rl/hopper/medium-replay-v2", "sample/breakout", "mujoco/walker2d/simple-v0"]  # fmt: skip
    assert sorted(ids, key=lambda name: DatasetName.parse(name).sort_key) == [
        "d4rl/hopper/medium-replay-v2", "brrcrl/hopper/medium-v0", "d4rl/hopper/expert-v2",
        "mujoco/walker2d/simple-v0", "ladder/breakout", "sample/breakout", "Ant-v5", "my/thing-v0",
    ]  # fmt: skip


def test_cards_are_light() -> None:
    code = "import sys, brrcrl_lib.worlds\nprint([m for m in ('torch', 'numpy', 'gymnasium') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
