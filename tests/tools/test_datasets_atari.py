"""Real Atari games: preprocessing against a literal loop, PPO killed and resumed, ladders of policies."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from math import gcd
from pathlib import Path

import numpy as np
import pytest
import torch
from ale_py import ALEInterface, LoggerMode, roms

from brrcrl_lib import cli
from brrcrl_lib.base.devices import generator
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.atari import AtariConfig, AtariEnv, env_id, rom_name, shrink
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.agents.atari import AtariActor, untrained
from brrcrl_lib.tools.agents.play_atari import play_games
from brrcrl_lib.tools.collecting.collect_atari import AtariCollectConfig, choose_checkpoints, collect_atari
from brrcrl_lib.tools.collecting.ppo import PpoConfig, PpoLearner
from brrcrl_lib.tools.collecting.run_files import read_curve
from brrcrl_lib.tools.publishing.frame_writer import staging_folder
from brrcrl_lib.tools.publishing.ladder import LadderConfig, ladder
from brrcrl_lib.worlds import GAMES

LAYOUT = {"channels": (4, 4, 4), "units": 8}
TINY = PpoConfig(envs=2, rollout=16, batch_size=32, epochs=1, channels=(4, 4, 4), units=8)


# -- the environment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height", [210, 250])
def test_shrinking_is_the_exact_area_average(height):
    """Oracle: every pixel is split until the grid of 84 fits, and whole blocks are averaged in integers."""
    screen = np.random.default_rng(0).integers(0, 256, (height, 160), dtype=np.uint8)
    tall, wide = 84 // gcd(height, 84), 84 // gcd(160, 84)
    fine = screen.repeat(tall, 0).repeat(wide, 1).astype(np.int32)
    blocks = fine.reshape(84, height * tall // 84, 84, 160 * wide // 84)
    sums, count = blocks.sum((1, 3)), blocks.shape[1] * blocks.shape[3]
    assert np.array_equal(shrink(screen), (2 * sums + count) // (2 * count))
    assert (shrink(np.full((height, 160), 255, np.uint8)) == 255).all()


def literal_frames(game: str, actions: list[int], waits: int) -> tuple[list[np.ndarray], list[float]]:
    """One game, screen by screen, with nothing clever."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path(game))
    buttons = ale.getMinimalActionSet()
    fire = next(button for button in buttons if button.name == "FIRE")
    for _ in range(waits):
        ale.act(buttons[0])
    for _ in range(4):
        ale.act(fire)
    frames, rewards = [shrink(ale.getScreenGrayscale())], []
    for action in actions:
        screens, reward = [], 0.0
        for _ in range(4):
            reward += ale.act(buttons[action])
            screens.append(ale.getScreenGrayscale().copy())
        frames.append(shrink(np.maximum(screens[-1], screens[-2])))
        rewards.append(reward)
    return frames, rewards


@pytest.mark.parametrize("game", GAMES)
def test_frames_rewards_and_stacks_are_those_of_a_literal_loop(game):
    env, seed = AtariEnv(game), 5
    rng = np.random.default_rng(0)
    env.reset(seed=1)  # another game before it leaves no trace
    for _ in range(50):
        env.step(rng.integers(env.action_space.n))
    actions = rng.integers(env.action_space.n, size=80).tolist()
    waits = int(np.random.default_rng(seed).integers(1, 31))
    frames, rewards = literal_frames(game, actions, waits)
    observations = [env.reset(seed=seed)[0]]
    for action, reward in zip(actions, rewards, strict=True):
        observation, found, over, cut, _ = env.step(action)
        assert (found, over, cut) == (reward, False, False)
        observations.append(observation)
    for t, observation in enumerate(observations):
        assert observation.shape == (4, 84, 84) and observation.dtype == np.uint8
        for back in range(4):
            expected = frames[t - back] if t >= back else np.zeros((84, 84), np.uint8)
            assert np.array_equal(observation[3 - back], expected), (game, t, back)


def play_randomly(env: AtariEnv, seed: int, limit: int = 2_000):
    """Steps (newest frame, reward, terminated, truncated, info) of a whole game."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    steps = []
    for _ in range(limit):
        observation, *rest = env.step(rng.integers(env.action_space.n))
        steps.append((observation[-1].copy(), *rest))
        if rest[1] or rest[2]:
            break
    return steps


@pytest.mark.parametrize("game", ["breakout", "seaquest"])
def test_lives_are_reported_apart_from_the_end_and_seeds_decide_everything(game):
    sticky = AtariConfig(sticky_actions=True)
    env, other = AtariEnv(game, sticky), AtariEnv(game, sticky)
    first = play_randomly(env, 3)
    play_randomly(other, 4, limit=60)
    again = play_randomly(other, 3)
    assert len(first) == len(again)
    for one, same in zip(first, again, strict=True):
        assert np.array_equal(one[0], same[0]) and one[1:] == same[1:]
    lost = [step[4]["life_lost"] for step in first]
    over = [step[2] for step in first]
    assert sum(over) == 1 and over[-1] and sum(lost) == {"breakout": 5, "seaquest": 4}[game] and lost[-1]
    assert not any(step[3] for step in first)
    firm = play_randomly(AtariEnv(game), 3)
    frames = min(len(first), len(firm))
    assert any(not np.array_equal(first[t][0], firm[t][0]) for t in range(frames)), "stickiness changed nothing"


def test_sticky_actions_repeat_a_quarter_of_the_screens(monkeypatch):
    env = AtariEnv("pong", AtariConfig(sticky_actions=True, fire_on_reset=False, noop_max=0))
    env.reset(seed=0)
    pressed: list[int] = []

    class Recorder:
        def act(self, button):
            pressed.append(env.buttons.index(button))
            return 0

        lives = staticmethod(lambda: 0)
        game_over = staticmethod(lambda: False)
        getScreenGrayscale = staticmethod(lambda out: None)

    monkeypatch.setattr(env, "ale", Recorder())
    wanted = [step % 2 + 1 for step in range(2_000)]  # every step another button than before
    for action in wanted:
        env.step(action)
    late = np.array(pressed).reshape(-1, 4) != np.array(wanted)[:, None]
    assert late.mean(0) == pytest.approx([0.25, 0.25**2, 0.25**3, 0.25**4], abs=0.03)


def test_rewards_can_be_clipped_and_games_cut_off():
    env = AtariEnv("ALE/Seaquest-v5", AtariConfig(clip_rewards=True, max_frames=1_200))
    steps = play_randomly(env, 0)
    assert len(steps) == 300 and steps[-1][3] and not steps[-1][2]
    scores = [step[4]["score"] for step in steps]
    assert max(scores) > 1 and [step[1] for step in steps] == [float(score > 0) for score in scores]
    assert env.config.describe()["clip_rewards"] is True and env.config.describe()["sticky_actions"] is False


def test_names_of_games():
    assert {rom_name(name) for name in ("ALE/MsPacman-v5", "MsPacman", "ms_pacman")} == {"ms_pacman"}
    assert [env_id(name) for name in ("qbert", "ms_pacman")] == ["ALE/Qbert-v5", "ALE/MsPacman-v5"]
    with pytest.raises(DatasetError, match="no Atari game 'pnog'; did you mean 'pong'"):
        AtariEnv("pnog")


# -- policies ------------------------------------------------------------------------------------------------------


def test_a_policy_comes_back_in_half_precision_and_samples_as_its_logits_say(tmp_path):
    actor = untrained(6, seed=1, **LAYOUT)
    with torch.no_grad():
        actor.head.weight.mul_(20)
    actor.save(tmp_path / "a.safetensors", env="ALE/Pong-v5", step=7)
    loaded = AtariActor.load(tmp_path / "a.safetensors")
    assert loaded.about == {"env": "ALE/Pong-v5", "step": 7}
    for name, tensor in actor.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.half().float()), name
    observation = np.random.default_rng(0).integers(0, 256, (1, 4, 84, 84), dtype=np.uint8)
    logits = loaded.logits(torch.from_numpy(observation)).double()
    draws = (np.arange(20_000) + 0.5) / 20_000
    actions = np.concatenate([loaded.act(observation, draws[i : i + 1]) for i in range(0, 20_000, 100)])
    shares = np.bincount(actions, minlength=6) / len(actions)
    assert shares == pytest.approx(logits.softmax(1)[0].detach().numpy(), abs=0.01) and shares.max() < 0.95
    assert loaded.act(observation)[0] == int(logits.argmax())
    size = sum(tensor.numel() for tensor in untrained(18).state_dict().values()) * 2
    assert 10 * size < 8_000_000, "ten policies of the usual size fit into 8 MB"


def test_the_copy_of_a_policy_says_what_the_learner_says():
    learner = PpoLearner("pong", 0, TINY, AtariConfig())
    observations = torch.randint(0, 256, (5, 4, 84, 84), dtype=torch.uint8, generator=generator(0))
    theirs = learner.ppo.policy.get_distribution(observations).distribution.logits
    ours = learner.actor().logits(observations).log_softmax(1)
    assert theirs.std() > 1e-4 and torch.allclose(ours, theirs, atol=1e-6)
    values = learner.ppo.policy(observations)[1]  # two ways through Stable-Baselines3
    assert values.std() > 1e-3 and torch.allclose(values, learner.ppo.policy.predict_values(observations), atol=1e-6)


def test_a_round_fills_the_buffer_as_stable_baselines_would(monkeypatch):
    """Advantages by their definition: sums of discounted TD errors up to the end of a life."""
    learner = PpoLearner("breakout", 0, PpoConfig(envs=2, rollout=128, batch_size=32), AtariConfig())
    monkeypatch.setattr(learner.ppo, "train", lambda: None)
    lives = []
    for env in learner.envs:
        monkeypatch.setattr(env, "step", lambda action, step=env.step: lives.append(step(action)) or lives[-1])
    assert learner.round() == 256
    buffer = learner.ppo.rollout_buffer
    ended = np.array([step[2] or step[4]["life_lost"] for step in lives]).reshape(128, 2)
    scores = np.array([step[4]["score"] for step in lives]).reshape(128, 2)
    assert ended.any() and np.array_equal(buffer.rewards, np.sign(scores))
    assert buffer.episode_starts[0].all() and np.array_equal(buffer.episode_starts[1:], ended[:-1])
    with torch.no_grad():
        last = learner.ppo.policy.predict_values(torch.from_numpy(learner._observations())).numpy()[:, 0]
    for lane in range(2):
        values = np.append(buffer.values[:, lane], last[lane])
        following, advantage = 0.0, np.zeros(128)
        for t in reversed(range(128)):
            goes_on = 1.0 - ended[t, lane]
            error = buffer.rewards[t, lane] + 0.99 * goes_on * values[t + 1] - values[t]
            following = error + 0.99 * 0.95 * goes_on * following
            advantage[t] = following
        assert np.allclose(buffer.advantages[:, lane], advantage, atol=1e-4)


def test_files_that_are_no_policies_are_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DatasetError, match="not a readable safetensors file"):
        AtariActor.load(tmp_path / "x.safetensors")
    with pytest.raises(DatasetError, match="no policy at"):
        AtariActor.load(tmp_path / "absent.safetensors")


# -- PPO -----------------------------------------------------------------------------------------------------------


def settings(out: Path, **options) -> AtariCollectConfig:
    return AtariCollectConfig("ALE/Breakout-v5", out, **{"steps": 512, "snapshot_every": 64, "ppo": TINY, **options})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("ppo") / "run"
    collect_atari(settings(folder), progress=False)
    return folder


class Killed(BaseException):
    """Stands for a signal that nothing catches."""


@pytest.mark.parametrize("rounds", [1, 7])
def test_a_killed_and_resumed_run_ends_the_same(run, tmp_path, monkeypatch, rounds):
    play, done = PpoLearner.round, []

    def play_and_die(self):
        done.append(0)
        if len(done) > rounds:
            raise Killed
        return play(self)

    monkeypatch.setattr(PpoLearner, "round", play_and_die)
    with pytest.raises(Killed):
        collect_atari(settings(tmp_path / "run"), progress=False)
    monkeypatch.setattr(PpoLearner, "round", play)
    assert len(read_curve(tmp_path / "run")) == 1 + rounds // 2
    collect_atari(settings(tmp_path / "run"), progress=False)
    expected, found = (sorted(folder.glob("snapshots/*")) for folder in (run, tmp_path / "run"))
    assert [file.name for file in found] == [file.name for file in expected] and len(found) == 9
    for one, other in zip(expected, found, strict=True):
        actors = AtariActor.load(one), AtariActor.load(other)
        assert actors[0].about == actors[1].about
        for name, tensor in actors[0].state_dict().items():
            assert torch.equal(tensor, actors[1].state_dict()[name]), (one.name, name)
    curves = [[{**point, "seconds": 0} for point in read_curve(place)] for place in (run, tmp_path / "run")]
    assert curves[0] == curves[1]


def test_a_run_learns_records_and_refuses_other_settings(run):
    first, last = (AtariActor.load(sorted(run.glob("snapshots/*"))[place]) for place in (0, -1))
    assert not torch.equal(first.head.weight, last.head.weight)
    assert last.about["env"] == "ALE/Breakout-v5" and last.about["step"] == 512
    curve = read_curve(run)
    assert [point["step"] for point in curve] == list(range(0, 513, 64))
    assert sum(point["games"] for point in curve) >= 2
    assert (run / "learning_curve.csv").read_text().count("\n") == 10
    with pytest.raises(DatasetError, match="seed: 0 before, 1 now"):
        collect_atari(settings(run, seed=1), progress=False)
    with pytest.raises(DatasetError, match=r"which --ppo\.batch-size 31 does not divide"):
        PpoLearner("pong", 0, PpoConfig(envs=2, rollout=16, batch_size=31), AtariConfig())


def test_a_run_may_go_on_with_another_learning_rate_and_its_curve_says_so(run, tmp_path):
    again = shutil.copytree(run, tmp_path / "run")
    slower = replace(TINY, learning_rate=1e-9)
    curve = collect_atari(settings(again, steps=640, ppo=slower), progress=False)
    assert [point["learning_rate"] for point in curve] == [TINY.learning_rate] * 9 + [1e-9] * 2
    old, new = (AtariActor.load(again / f"snapshots/step-{step:08d}.safetensors") for step in (512, 640))
    assert torch.allclose(old.head.weight, new.head.weight, atol=1e-3)  # half precision
    with pytest.raises(DatasetError, match="'epochs': 7"):
        collect_atari(settings(again, ppo=replace(slower, epochs=7)), progress=False)
    assert json.loads((again / "config.json").read_text())["ppo"]["learning_rate"] == 1e-9


def curve_of(*returns: float | None) -> list[dict]:
    return [{"step": 100 * number, "return_mean": value} for number, value in enumerate(returns)]


def test_rungs_go_from_untrained_to_best_in_even_steps():
    curve = curve_of(None, 0, 0, 1, 2, None, 4, 5, 6, 9, 10, 7)
    assert choose_checkpoints(curve, 4) == [0, 6, 8, 10]  # nothing, 4, 6, 10
    chosen = choose_checkpoints(curve, 6)
    assert len(chosen) == 6 and chosen[0] == 0 and 10 in chosen
    heights = [curve[index]["return_mean"] or 0 for index in chosen]
    assert heights == sorted(heights) and max(np.diff(heights)) <= 4
    assert choose_checkpoints(curve, 50) == list(range(12))
    lucky = [{**point, "return_std": 6.0, "games": 36} for point in curve_of(0, 5, 10, 9.5, 9.1, 8.9)]
    assert choose_checkpoints(lucky, 2) == [0, 4]  # the latest within one standard error, 1, of the highest
    flat = choose_checkpoints(curve_of(*[None] * 20), 8)
    assert len(flat) == 8 and flat[0] == 0


def test_published_policies_are_measured_and_fill_a_store(run, tmp_path):
    published = settings(run, publish_as="breakout", policies=tmp_path / "atari", rungs=8, measuring_games=1)
    collect_atari(published, progress=False)
    folder = tmp_path / "atari" / "breakout"
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 8 and sum(file.stat().st_size for file in files) <= 8_000_000
    summary = json.loads((folder / "ladder.json").read_text())
    assert [row["file"] for row in summary["policies"]] == [file.name for file in files]
    assert all(row["fresh_games"] == 1 for row in summary["policies"]) and str(run) not in json.dumps(summary)
    assert AtariActor.load(files[0]).about["fresh_return_mean"] == summary["policies"][0]["fresh_return_mean"]
    report = ladder(LadderConfig(str(folder), steps=800, root=tmp_path, max_frames=400))
    store = FrameStore(report.path)
    assert set(store.policies.tolist()) == set(range(8)) and len(store) >= 800


# -- ladders -------------------------------------------------------------------------------------------------------


@pytest.fixture
def rungs(tmp_path) -> Path:
    """Three fresh policies of Breakout."""
    folder = tmp_path / "policies"
    for number in range(3):
        about = {"env": "ALE/Breakout-v5", "step": 100 * number}
        untrained(4, seed=number, **LAYOUT).save(folder / f"step-{number}.safetensors", **about)
    return folder


def wish(rungs: Path, **options) -> LadderConfig:
    return LadderConfig(str(rungs), **{"steps": 1_500, "num_envs": 2, "root": rungs.parent / "frames", **options})


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_a_ladder_shares_steps_and_its_games_can_be_played_again(rungs):
    report = ladder(wish(rungs, name="mine", sticky_actions=True))
    store = FrameStore(report.path)
    taken = np.array([store.lengths[store.policies == policy].sum() for policy in range(3)])
    assert len(store) == taken.sum() and taken.min() >= 500 and taken.max() < 1_000
    assert store.about["sticky_actions"] is True and store.about["clip_rewards"] is False
    assert store.action_count == 4 and len(set(store.seeds.tolist())) == store.episodes
    number = store.episodes - 1
    steps = store.episode_steps(np.array([number]))
    env = AtariEnv("breakout", AtariConfig(sticky_actions=True))
    observation, _ = env.reset(seed=int(store.seeds[number]))
    for step in steps.tolist():
        assert np.array_equal(store.observations([step])[0], observation)
        observation, reward, over, _, info = env.step(int(store.actions[step]))
        assert reward == store.rewards[step] and over == store.dones[step]
        assert info["life_lost"] == store.life_lost()[step]
    assert over
    card = json.loads((report.path / "card.json").read_text())
    assert card["transitions"] == len(store) and card["games"] == store.episodes
    assert card["return_mean"] == pytest.approx(store.returns.mean(), abs=0.01)
    assert [row["transitions"] for row in card["policies"]] == taken.tolist()
    assert card["lives_lost"] == 5 * store.episodes
    text = (report.path / "card.txt").read_text()
    assert text in str(report) and "ALE/Breakout-v5" in text and "step-2.safetensors" in text


def _roll(config: LadderConfig) -> None:
    ladder(config)


def test_a_ladder_is_the_same_every_time_even_if_killed(rungs):
    expected = contents(ladder(wish(rungs, name="whole", steps=600)).path)
    config = wish(rungs, name="killed", steps=600)
    target = rungs.parent / "frames" / "killed"
    process = multiprocessing.get_context("fork").Process(target=_roll, args=(config,))
    process.start()
    while not (staging_folder(target) / "store.json").exists():
        time.sleep(0.005)
        assert process.is_alive(), "the kill came too late to show anything"
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not target.exists() and staging_folder(target).exists()
    assert contents(ladder(config).path) == expected
    other = FrameStore(ladder(wish(rungs, name="other", steps=600, seed=1)).path)
    assert not set(other.seeds.tolist()) & set(FrameStore(target).seeds.tolist())


def test_what_a_game_does_never_depends_on_its_neighbours():
    actor = untrained(4, seed=3)
    short = AtariConfig(max_frames=240)
    together = list(play_games(actor, [AtariEnv("breakout", short) for _ in range(3)], range(5)))
    alone = [next(play_games(actor, [AtariEnv("breakout", short)], [seed])) for seed in range(5)]
    assert [game.seed for game in together] == list(range(5))
    for one, other in zip(together, alone, strict=True):
        assert np.array_equal(one.frames, other.frames) and np.array_equal(one.actions, other.actions)
        assert one.truncated and not one.terminated


def test_ladders_that_cannot_be_played_are_refused(rungs, tmp_path):
    with pytest.raises(DatasetError, match=r"no policies of asterix in .*brrcrl data collect --env ALE/Asterix-v5"):
        ladder(LadderConfig("asterix", root=tmp_path / "frames"))
    with pytest.raises(DatasetError, match="no Atari game"):
        ladder(LadderConfig("no such game", root=tmp_path / "frames"))
    with pytest.raises(KitError, match="steps must be a whole number of at least 1"):
        ladder(wish(rungs, steps=0))
    untrained(6, **LAYOUT).save(rungs / "step-9.safetensors", env="ALE/Breakout-v5")
    with pytest.raises(DatasetError, match=r"has 4 actions; step-9.safetensors in .* have others"):
        ladder(wish(rungs))
    untrained(6, **LAYOUT).save(rungs / "step-9.safetensors", env="ALE/Pong-v5")
    with pytest.raises(DatasetError, match="do not name one game"):
        ladder(wish(rungs))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"no policies \(\*.safetensors\)"):
        ladder(wish(tmp_path / "empty"))
    assert not (tmp_path / "frames").exists()


def test_policies_load_without_stable_baselines(rungs):
    code = (
        "import sys; from pathlib import Path; from brrcrl_lib.tools.publishing.ladder import load_ladder; "
        f"load_ladder(Path({str(rungs)!r})); print('stable_baselines3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


# -- the commands --------------------------------------------------------------------------------------------------


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_flags_choose_what_a_command_does(rungs, capsys):
    assert call("data", "collect", "--algorithm", "ppo", "--help") == 0
    assert "--ppo.learning-rate" in capsys.readouterr().out
    assert call("data", "collect", "--algorithm=ppo", "--help") == 0
    assert "--snapshot-every" in capsys.readouterr().out
    for words in (("--help",), ("--algorithm", "auto", "--help")):
        assert call("data", "collect", *words) == 0
        printed = capsys.readouterr().out
        assert "--random-steps" in printed and "--algorithm ppo" in printed
    frames = rungs.parent / "frames"
    assert call("data", "rollout", "--ladder", str(rungs), "--steps", "300", "--root", str(frames)) == 0
    assert "transitions in" in capsys.readouterr().out
    assert len(FrameStore(frames / "ladder" / "breakout")) >= 300
    assert call("data", "rollout", "--ladder", str(rungs), "--steps", "300", "--root", str(frames)) == 2
    assert "exists; choose another place or pass --overwrite" in capsys.readouterr().err
    assert call("data", "collect", "--algorithm", "ppo", "--env", "ALE/Pnog-v5", "--out", str(rungs / "x")) == 2
    assert "did you mean 'pong'" in capsys.readouterr().err and not (rungs / "x").exists()
