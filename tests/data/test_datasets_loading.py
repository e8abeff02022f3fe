"""Loading: the kit's parts, plain Minari files, and everything that can be wrong with either."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from minari_cases import LENGTHS, edit_metadata, made_up_episodes, write, write_plain

from brrcrl_lib.base.devices import generator
from brrcrl_lib.data.minari import load_dataset, parse_env_spec
from brrcrl_lib.data.registry import DatasetError, missing_dataset_message
from brrcrl_lib.returns import reward_to_go
from brrcrl_lib.tools.agents.episodes import Episode


@pytest.fixture
def env():
    return gym.make("Pendulum-v1")


@pytest.fixture
def episodes(env):
    return made_up_episodes(env)


@pytest.fixture
def data(tmp_path, env, episodes):
    write(tmp_path, "test/pendulum/small-v0", episodes, env)
    return load_dataset("test/pendulum/small-v0", root=tmp_path, discount=0.9)


def test_tensors_are_the_episodes(data, episodes):
    assert len(data) == sum(LENGTHS) and data.episodes == len(LENGTHS)
    for number, episode in enumerate(episodes):
        steps = data.episode_ids == number
        assert np.array_equal(data.observations[steps].numpy(), episode.observations[:-1])
        assert np.array_equal(data.next_observations()[steps].numpy(), episode.observations[1:])
        assert np.array_equal(data.final_observations[number].numpy(), episode.observations[-1])
        assert np.array_equal(data.actions[steps].numpy(), episode.actions)
        assert np.array_equal(data.rewards[steps].numpy(), episode.rewards)
        assert data.timesteps[steps].tolist() == list(range(len(episode)))
        expected = reward_to_go(episode.rewards, [len(episode)], 0.9).astype(np.float32)
        assert np.array_equal(data.rtg[steps].numpy(), expected)
        assert data.returns[number].item() == pytest.approx(episode.total_reward, abs=1e-6)
        assert bool(data.terminations[steps][-1]) == episode.terminated
        assert bool(data.truncations[steps][-1]) == episode.truncated
    assert data.seeds.tolist() == [100, 101, 102, 103, 104]
    assert (data.terminations | data.truncations).sum() == data.episodes
    assert data.observations.is_contiguous() and data.observations.dtype == torch.float32


def test_a_plain_minari_file_gives_the_same_tensors(tmp_path, env, episodes, data):
    write_plain(tmp_path, "plain/pendulum-v0", episodes, env)
    plain = load_dataset("plain/pendulum-v0", root=tmp_path, discount=0.9)
    for name in ("observations", "actions", "rewards", "rtg", "lengths", "seeds", "returns", "truncations"):
        assert torch.equal(getattr(plain, name), getattr(data, name)), name
    assert plain.make_env().spec.id == "Pendulum-v1"


def test_discrete_actions_load(tmp_path):
    env = gym.make("CartPole-v1")
    write(tmp_path, "test/cartpole-v0", made_up_episodes(env), env)
    data = load_dataset("test/cartpole-v0", root=tmp_path)
    assert data.discrete and data.actions.dtype == torch.int64 and data.actions.shape == (sum(LENGTHS),)
    assert (data.action_low.item(), data.action_high.item()) == (0, 1)
    assert "discrete" in repr(data)


# -- methods ------------------------------------------------------------------------------------------------------


def test_top_fraction_keeps_the_best_trajectories(data):
    for share, count in ((0.2, 1), (0.21, 2), (0.4, 2), (0.6, 3), (1.0, 5), (1e-6, 1)):
        best = data.top_fraction(share)
        expected = sorted(sorted(range(5), key=lambda i: -data.returns[i].item())[:count])
        assert best.seeds.tolist() == [100 + i for i in expected]
        assert best.episode_ids.unique().tolist() == list(range(count))
        assert torch.equal(best.starts, torch.cumsum(best.lengths, 0) - best.lengths)
        where = torch.isin(data.episode_ids, torch.tensor(expected))
        assert torch.equal(best.rtg, data.rtg[where]) and torch.equal(best.observations, data.observations[where])
    for share in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share of trajectories"):
            data.top_fraction(share)


def test_of_equal_trajectories_the_earlier_are_kept(tmp_path, env):
    same = made_up_episodes(env, (3,))[0]
    write(tmp_path, "test/ties-v0", [Episode(*list(vars(same).values())[:5], seed=seed) for seed in range(6)], env)
    assert load_dataset("test/ties-v0", root=tmp_path).top_fraction(0.5).seeds.tolist() == [0, 1, 2]


def test_split_parts_whole_episodes(data):
    train, held_out = data.split(0.4, generator(0))
    assert (train.episodes, held_out.episodes) == (3, 2)
    assert sorted(train.seeds.tolist() + held_out.seeds.tolist()) == data.seeds.tolist()
    again, _ = data.split(0.4, generator(0))
    assert torch.equal(again.observations, train.observations)
    with pytest.raises(ValueError, match="hold out must lie in"):
        data.split(1.0, generator(0))
    with pytest.raises(DatasetError, match="single episode"):
        data.top_fraction(0.1).split(0.5, generator(0))


def test_standardisation_has_a_floor(tmp_path, env, episodes):
    for episode in episodes:
        episode.observations[:, 1] = 3.0
    write(tmp_path, "test/flat-v0", episodes, env)
    data = load_dataset("test/flat-v0", root=tmp_path)
    mean, std = data.standardisation()
    assert mean.numpy() == pytest.approx(data.observations.numpy().mean(0), abs=1e-6)
    assert std[0].item() == pytest.approx(data.observations[:, 0].numpy().std(), rel=1e-5)
    assert std[1].item() == pytest.approx(1e-3)


def test_repr_and_buckets_and_devices(data):
    text = repr(data)
    assert "20 steps in 5 episodes" in text and "Pendulum-v1" in text and "median" in text
    assert data.buckets(10).count_outside(data.rtg) == (0, 0, len(data))
    away = data.to("meta")
    assert away.device.type == "meta" and away.rtg.shape == (20,) and "on meta" in repr(away)


# -- bad input ----------------------------------------------------------------------------------------------------


def test_missing_datasets_come_with_the_remedy(tmp_path, data):
    with pytest.raises(DatasetError, match="did you mean 'test/pendulum/small-v0'"):
        load_dataset("test/pendulum/smal-v0", root=tmp_path)
    remote = missing_dataset_message("mujoco/hopper/medium-v0", tmp_path)
    assert f"MINARI_DATASETS_PATH={tmp_path} minari download mujoco/hopper/medium-v0" in remote
    assert "no datasets" in missing_dataset_message("x", tmp_path / "nowhere")
    assert "there are: test/pendulum/small-v0" in missing_dataset_message("zzz", tmp_path)
    assert missing_dataset_message("test/pendulum/small-v0", tmp_path) is None


@pytest.mark.parametrize("name", ["part-001.hdf5", "main_data.hdf5"])
def test_a_changed_file_is_named(tmp_path, data, name):
    file = tmp_path / "test/pendulum/small-v0/data" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{name} does not have the recorded sha256"):
        load_dataset("test/pendulum/small-v0", root=tmp_path)


def test_metadata_that_lies_or_is_broken(tmp_path, data):
    dataset_id = "test/pendulum/small-v0"
    edit_metadata(tmp_path, dataset_id, total_steps=21)
    with pytest.raises(DatasetError, match="should hold 21 steps in 5 episodes, but holds 20 in 5"):
        load_dataset(dataset_id, root=tmp_path)
    edit_metadata(tmp_path, dataset_id, data_format="arrow")
    with pytest.raises(DatasetError, match="stored as arrow"):
        load_dataset(dataset_id, root=tmp_path)
    (tmp_path / dataset_id / "data" / "metadata.json").write_text("{")
    with pytest.raises(DatasetError, match=r"metadata.json cannot be read"):
        load_dataset(dataset_id, root=tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rewards", np.nan, "reward nan at step 4 .episode 1."),
        ("observations", np.inf, "observations that are not finite"),
        ("actions", np.nan, "actions that are not finite"),
    ],
)
def test_values_that_are_not_finite(tmp_path, env, episodes, field, value, message):
    getattr(episodes[1], field)[0] = value
    write(tmp_path, "test/bad-v0", episodes, env)
    with pytest.raises(DatasetError, match=message):
        load_dataset("test/bad-v0", root=tmp_path)


def test_a_plain_file_with_too_few_observations_or_cut_short(tmp_path, env, episodes):
    short = [Episode(episode.observations[:-1], *list(vars(episode).values())[1:]) for episode in episodes]
    write_plain(tmp_path, "plain/short-v0", short, env)
    with pytest.raises(DatasetError, match="need 25 observations"):
        load_dataset("plain/short-v0", root=tmp_path)
    file = write_plain(tmp_path, "plain/cut-v0", episodes, env) / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DatasetError, match=r"main_data.hdf5 cannot be read"):
        load_dataset("plain/cut-v0", root=tmp_path)


def test_spaces_that_are_no_vectors_are_refused(tmp_path, env, episodes):
    write(tmp_path, "test/images-v0", episodes, env)
    image = {"type": "Box", "dtype": "uint8", "shape": [2, 2], "low": [[0, 0]] * 2, "high": [[1, 1]] * 2}
    edit_metadata(tmp_path, "test/images-v0", observation_space=json.dumps(image))
    with pytest.raises(DatasetError, match="reads vectors only"):
        load_dataset("test/images-v0", root=tmp_path)


def test_an_environment_spec_with_forgotten_fields_is_understood(env):
    text = json.dumps(json.loads(env.spec.to_json()) | {"autoreset": False, "apply_api_compatibility": False})
    assert parse_env_spec(text).id == "Pendulum-v1"
    assert parse_env_spec(None) is None
