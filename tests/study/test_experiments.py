"""Grids: skipped when done, honest about failures, careful with result files, strict with what they are told."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from command_line import call
from grid_cases import DATASET, Kit

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.methods.base import Method
from brrcrl_lib.study.experiments import grids
from brrcrl_lib.study.experiments import running as experiments
from brrcrl_lib.study.experiments.grids import Block, cells
from brrcrl_lib.study.experiments.plan import shard
from brrcrl_lib.study.experiments.recording import merge
from brrcrl_lib.study.experiments.results import order_datasets, read_results, read_trace, select, short_name
from brrcrl_lib.study.experiments.running import ExperimentConfig, run_grid

AUTHORS, CLONING = {"method": "br_rcrl", "objective": "authors"}, {"method": "cloning"}


@pytest.fixture
def config(kit: Kit, monkeypatch) -> ExperimentConfig:
    monkeypatch.setitem(grids.GRIDS, "tiny", (Block((DATASET,), (CLONING, AUTHORS), (0,), ({"mode": "sample"},)),))
    return kit.config("tiny")


@pytest.fixture
def results(undisturbed: Kit, kit: Kit) -> Path:
    """A results file of eight rows, with the cells that it was made from."""
    for name in ("cells", "traces"):
        shutil.copytree(undisturbed.work / name, kit.work / name)
    return Path(shutil.copy(undisturbed.work / "quick.csv", kit.work / "quick.csv"))


def test_a_grid_runs_once_and_then_only_what_is_missing(config: ExperimentConfig, capsys) -> None:
    assert run_grid(config) == 0
    path = config.work / "tiny.csv"
    table = read_results(path)
    assert list(table.method) == ["cloning", "br_rcrl"] and table.key.is_unique
    before = path.read_text()
    assert run_grid(config) == 0
    assert "0 to do" in capsys.readouterr().out.splitlines()[-2]
    assert path.read_text() == before
    # A kill between measuring and recording loses nothing; a lost cell is measured again, to the same number.
    victim = cells("tiny", "smoke", 1)[1]
    (config.work / "cells" / f"{victim.key}.json").unlink()
    rows = pd.read_csv(path)
    rows[rows.key != victim.key].to_csv(path, index=False)
    assert run_grid(config) == 0
    again = read_results(path)
    assert list(again.key) == list(table.key)
    assert list(again.returns) == list(table.returns)


def test_training_is_shared_between_cells_that_are_played_differently() -> None:
    keys: dict[str, set[str]] = {}
    for cell in cells("engine"):
        keys.setdefault(cell.train_key, set()).add(cell.key)
    assert max(map(len, keys.values())) == 2
    every = [cell.key for cell in cells("engine")]
    assert len(every) == len(set(every))


def test_a_failing_cell_is_reported_and_the_rest_runs(config: ExperimentConfig, monkeypatch, capsys) -> None:
    acts = ({"mode": "sample"}, {"mode": "nonsense"})
    block = Block((DATASET,), (CLONING,), (0,), acts)
    missing = Block(("test/hopper/replay-v9",), (CLONING,), (0,), acts[:1])
    monkeypatch.setitem(grids.GRIDS, "tiny", (block, missing))
    assert run_grid(config) == 1
    said = capsys.readouterr().out
    assert "mode=nonsense: " in said and "1 of 3 cells done, 2 missing" in said
    assert "test/hopper/replay-v0" in said.split("replay-v9")[-1]  # the nearest one we have
    assert len(read_results(config.work / "tiny.csv")) == 1


def test_wrong_names_are_refused(config: ExperimentConfig) -> None:
    with pytest.raises(ValueError, match="unknown grid 'engines'; did you mean 'engine'"):
        cells("engines")
    with pytest.raises(ValueError, match="unknown preset"):
        cells("engine", "laptopp")


def test_wrong_settings_are_refused_before_anything_is_trained(kit: Kit, capsys) -> None:
    for flag, value, sentence in (
        ("--episodes", 0, "--episodes must be at least 1; got 0"),
        ("--workers", 0, "--workers must be at least 1; got 0"),
        ("--shard", "3/2", "--shard is k/n with 1 <= k <= n, for example 2/8; got '3/2'"),
        ("--shard", "0/2", "got '0/2'"),
        ("--shard", "half", "got 'half'"),
        ("--gpus", "nan", "--gpus must be a number from 0"),
        ("--dataset", "hoper", "no dataset of this grid is called 'hoper'"),
    ):
        assert call("experiments", "run", "quick", "--preset", "smoke", "--work", kit.work, flag, value) == 2
        assert sentence in " ".join(capsys.readouterr().err.split()).replace("│ ", "")
    for command in ("run", "status", "merge"):
        assert call("experiments", command, "quik", "--work", kit.work) == 2
        assert "unknown grid 'quik'; did you mean 'quick'?" in capsys.readouterr().err
    assert not kit.work.exists()


BROKEN = {
    "binary": (lambda text: bytes(range(256)) * 20, "quick.csv is not a readable CSV file"),
    "empty": (lambda text: b"", "quick.csv is not a readable CSV file"),
    "cut inside quotes": (lambda text: text[: text.rindex(b'""torch')], "quick.csv"),
    "cut in a number": (lambda text: text[: text.rindex(b"[") + 2], "quick.csv"),
    "without a column": (lambda text: text.replace(b",score,", b",skore,", 1), "lacks the columns score"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_result_files_are_named_before_anything_is_trained(kit: Kit, results: Path, kind: str, capsys) -> None:
    damage, sentence = BROKEN[kind]
    broken = damage(results.read_bytes())
    results.write_bytes(broken)
    shutil.rmtree(kit.work / "cells")
    for command in ("run", "status", "merge"):
        words = ("experiments", command, "quick", "--preset", "smoke", "--episodes", 1, "--work", kit.work)
        if kind.startswith("cut") or command != "merge":
            assert call(*words) == 2
            said = capsys.readouterr()
            assert sentence in said.err and len(said.err.splitlines()) == 1
    assert results.read_bytes() == broken and not (kit.work / "trainings").exists()


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("return_mean", 1e6, r"line 2: return_mean 1000000\.0 is not the mean"),
        ("return_mean", None, "line 2: return_mean is missing"),
        ("return_mean", "lots", "line 2: return_mean is 'lots', which is no number"),
        ("returns", "[1, ", "line 2: returns is not a list of numbers"),
        ("returns", "[NaN]", "line 2: returns is not a list of numbers"),
        ("returns", "[]", "line 2: returns is not a list of numbers"),
        ("key", None, "line 2: key is missing"),
        ("key", "", "line 2: key is missing"),
        ("variant", "{", "line 2: variant is not a JSON object"),
        ("versions", "[]", "line 2: versions is not a JSON object"),
        ("train_seconds", "fast", "line 2: train_seconds is 'fast', which is no number"),
    ],
)
def test_a_broken_row_is_named_with_its_line(results: Path, column: str, value: object, sentence: str) -> None:
    table = read_results(results).astype({column: object})
    table.loc[0, column] = value
    table.to_csv(results, index=False)
    with pytest.raises(KitError, match=sentence):
        read_results(results)


def test_rows_that_are_there_twice_or_not_at_all_are_named(results: Path) -> None:
    table = read_results(results)
    pd.concat([table, table]).to_csv(results, index=False)
    with pytest.raises(KitError, match="twice"):
        read_results(results)
    with pytest.raises(FileNotFoundError, match="brrcrl experiments run nothing"):
        read_results(results.parent / "nothing.csv")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", bytes(range(256)), b'{"key": "another"}'])
def test_a_broken_cell_is_named_before_anything_is_trained(kit: Kit, results: Path, content: bytes, capsys) -> None:
    file = next((kit.work / "cells").iterdir())
    file.write_bytes(content)
    for command in ("run", "status", "merge"):
        words = ("experiments", command, "quick", "--preset", "smoke", "--episodes", 1, "--work", kit.work)
        assert call(*words) == 2
        said = capsys.readouterr().err
        assert f"{file} is broken" in said and "delete it, and the next run measures that cell again" in said
    assert not (kit.work / "trainings").exists()


def test_merging_is_one_quick_pass(kit: Kit, results: Path) -> None:
    row = json.loads(next((kit.work / "cells").iterdir()).read_text())
    wanted = [replace(cell, episodes=episodes) for cell in cells("quick", "smoke", 1) for episodes in range(2, 102)]
    for cell in wanted:
        (kit.work / "cells" / f"{cell.key}.json").write_text(json.dumps({**row, "key": cell.key}))
    began = time.process_time()
    assert merge(kit.config("quick"), wanted) == 808
    assert time.process_time() - began < 2.0  # about 0.2 s


def test_shards_are_all_trainings_once_and_of_equal_size() -> None:
    every = cells("ablations")
    shares = [shard(every, k, 7) for k in range(1, 8)]
    assert sorted(cell.key for share in shares for cell in share) == sorted(cell.key for cell in every)
    trainings = [{cell.train_key for cell in share} for share in shares]
    assert sum(map(len, trainings)) == len(set().union(*trainings))
    assert max(map(len, trainings)) - min(map(len, trainings)) <= 1
    assert shard(every, 3, 7) == shard(list(reversed(every)), 3, 7)[::-1]


def test_every_method_says_what_it_asks_of_a_cluster() -> None:
    assert Method.resources == {"cpus": 1, "gpus": 0.0}


def test_one_row_is_made_again_by_its_key(config: ExperimentConfig, capsys) -> None:
    run_grid(config)
    before = (config.work / "tiny.csv").read_text()
    wanted = cells("tiny", "smoke", 1)[1]
    assert run_grid(replace(config, key=wanted.key)) == 0
    lines = capsys.readouterr().out.splitlines()
    now, recorded = (line.split("[")[1] for line in lines[-2:])
    assert "now" in lines[-2] and "recorded" in lines[-1] and now == recorded  # the same episodes, to the digit
    assert (config.work / "tiny.csv").read_text() == before
    with pytest.raises(ValueError, match="has no row with the key 'abc'"):
        run_grid(replace(config, key="abc"))


def test_a_grid_can_be_run_for_one_dataset_and_completed_later(config: ExperimentConfig, monkeypatch) -> None:
    other = Block(("test/hopper/elsewhere-v0",), (CLONING,), (0,), ({"mode": "sample"},))
    monkeypatch.setitem(grids.GRIDS, "tiny", (*grids.GRIDS["tiny"], other))
    assert run_grid(replace(config, dataset="replay")) == 0  # the other dataset does not exist, and is not asked for
    assert set(read_results(config.work / "tiny.csv")["dataset"]) == {DATASET}
    with pytest.raises(ValueError, match="no dataset of this grid is called 'hoper'"):
        run_grid(replace(config, dataset="hoper"))


def test_other_defaults_mean_another_training(monkeypatch) -> None:
    cell = cells("engine")[0]
    assert cell.train_key == replace(cell, training={**cell.training, "fusion": "late"}).train_key  # the default, said
    assert cell.train_key != replace(cell, training={**cell.training, "fusion": "early"}).train_key
    assert cell.train_key != replace(cell, preset="smoke").train_key
    assert cell.train_key == replace(cell, training={**cell.training, "device": "cpu"}).train_key
    assert cell.key != replace(cell, episodes=11).key


def test_notebooks_get_rows_and_traces_in_smoke(config: ExperimentConfig, monkeypatch) -> None:
    trainings = ({**AUTHORS, "return_weight": 0.0}, {**AUTHORS, "objective": "paper"})
    block = Block((DATASET,), trainings, (0,), ({"target": "fixed", "quantile": 0.9},), trace=True)
    monkeypatch.setitem(grids.GRIDS, "tiny", (block,))
    monkeypatch.setattr(experiments, "WORK", config.work)
    rows, folder = experiments.rows_for("tiny", "smoke", lambda cell: cell.training["objective"] == "authors")
    assert len(rows) == 1 and list(rows.return_weight) == [0.0] and list(rows["quantile"]) == [0.9]
    trace = read_trace(rows.key[0], 0.5, folder)
    first = trace[trace.episode == 0]
    assert 1 <= len(first) <= experiments.SMOKE_STEPS
    observed = sum(0.5**step * reward for step, reward in enumerate(first.reward))
    assert first.observed.iloc[0] == pytest.approx(observed, abs=1e-6)
    assert first.target.nunique() == 1  # the same wish at every step
    with pytest.raises(FileNotFoundError, match="no trace of the cell nothing"):
        read_trace("nothing", folder=folder)


def test_selecting_rows_understands_defaults() -> None:
    table = pd.DataFrame({"dataset": ["a", "a", "b"], "buckets": [None, 20, None]})
    assert list(select(table, dataset="a", buckets=None).index) == [0]
    assert list(select(table, buckets=20).index) == [1]
    assert list(select(table, negatives=None).index) == [0, 1, 2]  # nobody changed it
    assert select(table, negatives=4).empty


def test_datasets_have_an_order_and_short_names() -> None:
    ids = ["brrcrl/walker2d/expert-v0", "brrcrl/halfcheetah/medium-v0", "brrcrl/walker2d/medium-replay-v0",
           "brrcrl/hopper/medium-replay-v0", "other/ant/medium-v0"]  # fmt: skip
    ordered = order_datasets([*ids, ids[0]])
    assert [short_name(name) for name in ordered] == [
        "hopper medium-replay", "walker2d medium-replay", "walker2d expert", "halfcheetah medium", "ant medium",
    ]  # fmt: skip
