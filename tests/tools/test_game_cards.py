"""Cards of games say what lies in the files beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.tools.publishing.cards import GAMES_BEGIN, write_cards
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter
from brrcrl_lib.tools.publishing.game_cards import games_table, ladders_table, make_card
from brrcrl_lib.tools.publishing.pack import export_sample, import_sample

PLAYED = {"env": "ALE/Pong-v5", "seed": 3, "sticky_actions": True, "clip_rewards": False}


@pytest.fixture
def store(tmp_path: Path) -> FrameStore:
    """Eight games of two policies; lives are lost here and there, and two games are cut off."""
    rng = np.random.default_rng(0)
    about = {**PLAYED, "policies": [{"file": "first"}, {"file": "second"}]}
    with FrameWriter(tmp_path / "store", about, (8, 8)) as writer:
        for number in range(8):
            length = 30 + 7 * number
            last = np.arange(length) == length - 1
            writer.append(
                rng.integers(0, 256, (length, 8, 8)).astype(np.uint8), rng.integers(0, 3, length),
                rng.integers(-1, 2, length).astype(np.float32), last & (number % 4 != 1), last & (number % 4 == 1),
                rng.random(length) < 0.2, policy=number % 2, seed=number,
            )  # fmt: skip
        return FrameStore(writer.finish())


def counted_slowly(store: FrameStore, games: list[int]) -> dict[str, float]:
    """Step by step, from the flags and rewards of each game."""
    found = {"transitions": 0, "lives_lost": 0, "cut_off_by_the_clock": 0}
    returns = []
    for number in games:
        total = 0.0
        for step in store.episode_steps(np.array([number])).tolist():
            found["transitions"] += 1
            found["lives_lost"] += int(store.life_lost()[step])
            found["cut_off_by_the_clock"] += int(store.truncated()[step])
            total += float(store.rewards[step])
        returns.append(total)
    return {**found, "return_mean": round(sum(returns) / len(returns), 2), "return_max": max(returns)}


@pytest.mark.parametrize("games", [None, [0], [5, 1, 6]])
def test_a_card_counts_what_is_there(store: FrameStore, games: list[int] | None) -> None:
    card = make_card(store, games)
    expected = counted_slowly(store, list(range(8)) if games is None else games)
    assert {key: card[key] for key in expected} == expected
    assert {key: card[key] for key in PLAYED} == PLAYED
    assert sum(row["transitions"] for row in card["policies"]) == card["transitions"]
    assert [row["file"] for row in card["policies"]] == (["first"] if games == [0] else ["first", "second"])


def test_a_sample_ships_with_its_own_card_and_its_source(store: FrameStore, tmp_path: Path) -> None:
    report = export_sample(store, tmp_path / "atari/pong.npz", max_bytes=20_000)
    cards = json.loads((tmp_path / "atari/pong.json").read_text())
    copy = FrameStore(import_sample(tmp_path / "atari/pong.npz", tmp_path / "copy"))
    assert report["episodes"] < store.episodes
    assert cards["sample"] == json.loads(json.dumps(make_card(copy)))
    assert cards["store"] == json.loads(json.dumps(make_card(store)))
    table = games_table(tmp_path).splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["`ladder/pong`", "`sample/pong`"]
    assert f"| {len(store)} |" in table[2] and "sticky actions on, rewards as paid, seed 3" in table[2]


def test_ladders_say_whether_they_got_there(tmp_path: Path) -> None:
    for game, best in {"seaquest": 299.0, "breakout": 15.5, "tennis": 1.0}.items():
        rows = [
            {"step": step, "fresh_return_mean": mean, "fresh_return_std": 1.0, "fresh_games": 8}
            for step, mean in ((0, 0.5), (900, best), (1000, 0.7))
        ]
        folder = tmp_path / "policies/atari" / game
        folder.mkdir(parents=True)
        (folder / "ladder.json").write_text(json.dumps({"policies": rows, "bytes": 2_500_000}))
    lines = ladders_table(tmp_path).splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["breakout", "seaquest", "tennis"]
    assert "above 15: reached | 2.5" in lines[0] and "1,000 steps | 0.5 ± 1.0 to 15.5 ± 1.0 (8 games each)" in lines[0]
    assert "above 300: not reached" in lines[1] and "above" not in lines[2]


def test_the_tables_of_the_data_readme_are_up_to_date(tmp_path: Path) -> None:
    shown = (ROOT / "data/README.md").read_text()
    assert GAMES_BEGIN in shown
    for name in ("minari", "atari", "policies"):
        (tmp_path / name).symlink_to(ROOT / "data" / name)
    (tmp_path / "README.md").write_text(shown)
    assert write_cards(tmp_path / "minari").read_text() == shown
