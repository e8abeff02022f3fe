"""The grid of games: declared as asked for, rows that know their data, what is missing named; old keys stay."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from frame_cases import fresh_policies, small_store

from brrcrl_lib.data import open as opening
from brrcrl_lib.methods.base import method_named
from brrcrl_lib.study.claims.summary import summarise, variants
from brrcrl_lib.study.experiments import grids
from brrcrl_lib.study.experiments import running as experiments
from brrcrl_lib.study.experiments.grids import Block, cells
from brrcrl_lib.study.experiments.results import (
    AS_PLAYED,
    REQUIRED,
    RESULTS,
    order_datasets,
    read_grid,
    read_results,
    read_trace,
    select,
    short_name,
)
from brrcrl_lib.study.experiments.running import ExperimentConfig, rows_for, run_grid
from brrcrl_lib.tools.publishing.pack import export_sample
from brrcrl_lib.tools.publishing.samples import import_sample

RECORDED = ("engine", "targets", "delta_sweep", "ablations", "rtg_independence", "target_vs_observed")
TD = {"method": "br_rcrl_joint", "objective": "distributional_td"}


# -- what is declared ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", RECORDED)
def test_recorded_keys_are_still_those_of_cells(grid: str) -> None:
    with (RESULTS / f"{grid}.csv").open() as file:
        keys = {row["key"] for row in csv.DictReader(file)}
    assert keys and keys <= {cell.key for cell in cells(grid)}


def test_the_grid_of_games_is_what_was_asked_for() -> None:
    found = cells("atari")
    rules = {("adaptive", delta) for delta in (0.9, 0.5, 0.2, 0.1, 0.05, 0.01, 0.001)}
    rules |= {("max", None), ("dt_schedule", None), ("clone", None)}
    expected = set()
    for game, seeds in (("breakout", (0, 1, 2)), ("pong", (0, 1, 2)), ("qbert", (0,)), ("seaquest", (0,))):
        for seed in seeds:
            base = (f"ladder/{game}", seed)
            expected |= {(*base, "br_rcrl_joint", objective, *rule)
                         for objective in ("monte_carlo", "distributional_td") for rule in rules}  # fmt: skip
            rivals = (("max", None), ("dt_schedule", None), ("adaptive", 0.1))
            expected |= {(*base, "vanilla", None, *rule) for rule in rivals}
            expected.add((*base, "cloning", None, "clone", None))
    described = [
        (
            cell.dataset,
            cell.seed,
            cell.method,
            cell.training.get("objective"),
            "clone" if cell.act.get("clone") or cell.method == "cloning" else cell.act["target"],
            cell.act.get("delta"),
        )
        for cell in found
    ]
    assert len(described) == len(set(described)) == len({cell.key for cell in found})
    assert set(described) == expected
    traced = {item for item, cell in zip(described, found, strict=True) if cell.trace}
    assert traced == {
        (f"ladder/{game}", 0, "br_rcrl_joint", objective, *rule)
        for game in ("breakout", "pong")
        for objective in ("monte_carlo", "distributional_td")
        for rule in (("adaptive", 0.1), ("max", None))
    }
    assert all(1_000 <= cell.max_steps < 27_000 for cell in found)


def test_a_cap_is_part_of_what_is_measured_but_not_of_what_is_trained() -> None:
    cell = cells("atari")[0]
    other = replace(cell, max_steps=17)
    assert other.train_key == cell.train_key and other.key != cell.key
    assert {cell.dataset for cell in cells("atari", "smoke")} == {
        "sample/breakout", "sample/pong", "sample/qbert", "sample/seaquest",
    }  # fmt: skip


def test_games_have_an_order_and_short_names() -> None:
    ids = ["ladder/seaquest", "sample/pong", "ladder/pong", "ladder/qbert", "ladder/breakout", "alone",
           "brrcrl/halfcheetah/expert-v0"]  # fmt: skip
    ordered = [short_name(name) for name in order_datasets(ids)]
    assert ordered == ["halfcheetah expert", "breakout", "qbert", "pong", "pong sample", "seaquest", "alone"]
    played, defaults = AS_PLAYED["br_rcrl_joint"], method_named("br_rcrl_joint").Act()
    for name in set(played) - {"method", "objective", "epsilon"}:  # None means 0.01 in games
        assert played[name] == getattr(defaults, name)


# -- running -------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """A kit of its own: no stores and no samples yet, games of 40 decisions."""
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path / "frames"))
    monkeypatch.setattr(opening, "SAMPLES", tmp_path / "data" / "atari")
    world_of = grids.world_of
    monkeypatch.setattr(grids, "world_of", lambda name: replace(world_of(name), max_steps=40))
    fresh_policies(tmp_path / "policies" / "qbert", "qbert")
    return tmp_path


def test_a_grid_names_a_missing_store_and_never_mixes_two(here: Path, monkeypatch, capsys) -> None:
    small = {"steps": 3, "batch_size": 4}
    rules = ({"target": "adaptive", "delta": 0.1}, {"target": "max"})
    first = Block(("ladder/qbert",), ({**TD, **small},), (0,), rules[:1], trace=True)
    absent = Block(("ladder/pong",), ({**TD, **small},), (0,), rules[:1])
    monkeypatch.setitem(grids.GRIDS, "tiny", (first, absent))
    store = small_store(here / "frames", "qbert", here / "policies" / "qbert")
    config = ExperimentConfig("tiny", episodes=2, workers=2, work=here / "work", results=here / "results")
    assert run_grid(config) == 1
    printed = capsys.readouterr().out
    assert "no frame store 'ladder/pong' in" in printed  # and the other game was played
    assert "`brrcrl data rollout --ladder pong --steps 200000 --seed 0` builds it" in printed
    path = config.results / "tiny.csv"
    table = read_results(path)
    assert set(REQUIRED) <= set(table) and len(table) == 1
    row = table.iloc[0]
    assert (row.dataset, row.method, row.objective, row.env) == (
        "ladder/qbert", "br_rcrl_joint", "distributional_td", "ALE/Qbert-v5",
    )  # fmt: skip
    assert row.fingerprint == store.fingerprint and row.max_steps == 40 and row.cut_off == 2
    assert json.loads(row.variant) == small and json.loads(row["play"])["frame_skip"] == 4
    trace = read_trace(row.key, row.discount, config.results, row.reward_clip)
    assert list(trace.groupby("episode").size()) == [40, 40] and not trace.isna().any().any()
    last = trace[trace.episode == 1].iloc[-1]
    assert last.observed == min(1, last.reward)
    # One more cell of the same training: on another store of that name it is not measured.
    monkeypatch.setitem(grids.GRIDS, "tiny", (replace(first, acts=rules),))
    before = path.read_text()
    shutil.rmtree(here / "frames/ladder/qbert")
    small_store(here / "frames", "qbert", here / "policies" / "qbert", seed=0, max_frames=800)
    assert run_grid(config) == 1
    assert "tiny.csv was measured on other data of that name (fingerprint" in capsys.readouterr().out
    assert path.read_text() == before


def test_smoke_runs_on_shipped_samples(here: Path, monkeypatch, capsys) -> None:
    whole = small_store(here / "elsewhere", "qbert", here / "policies" / "qbert")
    export_sample(whole, here / "data/atari/qbert.npz")
    import_sample(here / "data/atari/qbert.npz", here / "frames" / "sample" / "qbert")
    monkeypatch.setattr(experiments, "WORK", here / "work")
    seen = {("br_rcrl_joint", "distributional_td", "adaptive", 0.1), ("br_rcrl_joint", "monte_carlo", "max", None)}
    seen |= {("vanilla", None, "dt_schedule", None), ("cloning", None, None, None)}

    def chosen(cell: grids.Cell) -> bool:
        settings = (cell.method, cell.training.get("objective"), cell.act.get("target"), cell.act.get("delta"))
        return cell.dataset == "sample/qbert" and settings in seen

    rows, folder = rows_for("atari", "smoke", chosen)
    assert len(rows) == 4 and set(rows["dataset"]) == {"sample/qbert"} and set(rows["preset"]) == {"smoke"}
    assert (rows["max_steps"] == experiments.SMOKE_STEPS).all() and rows["fingerprint"].nunique() == 1
    assert len(read_trace(select(rows, target="max")["key"].iloc[0], 0.95, folder)) == 2 * experiments.SMOKE_STEPS
    differences = {"TD": {"objective": "distributional_td"}, "vanilla": {"method": "vanilla", "target": "dt_schedule"}}
    settings = variants(differences, "br_rcrl_joint")
    assert list(summarise(rows, settings)["setting"]) == ["TD", "vanilla"]
    # The command that makes a row again finds the cell, and the same score to the digit.
    key = select(rows, method="cloning")["key"].iloc[0]
    again = ExperimentConfig("atari", "smoke", episodes=2, key=key, work=here / "again")
    capsys.readouterr()
    assert run_grid(again) == 0
    returns = select(read_grid("atari", folder), key=key)["returns"].iloc[0]
    assert returns in capsys.readouterr().out


def test_an_unknown_game_is_named(here: Path) -> None:
    with pytest.raises(ValueError, match=r"no dataset of this grid is called 'pnog' .*ladder/pong"):
        run_grid(ExperimentConfig("atari", dataset="pnog", work=here, results=here))
