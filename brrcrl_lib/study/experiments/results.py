"""Read recorded results back: every row checked, a broken one named with its line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.rewards import reward_to_go
from brrcrl_lib.worlds import DatasetName

RESULTS = ROOT / "data" / "results"
REQUIRED = ("key", "dataset", "env", "method", "objective", "variant", "train_seed", "return_mean",
            "returns", "score", "reference", "train_steps", "train_seconds", "preset", "versions",
            "revision")  # fmt: skip
ALWAYS = ("key", "dataset", "method", "variant", "train_seed", "return_mean", "returns", "train_steps", "train_seconds",
          "preset", "versions", "revision")  # fmt: skip
"""Columns that no row may leave empty."""
TRACE_COLUMNS = ("episode", "step", "reward", "target", "predicted")

AS_PLAYED: dict[str, dict[str, Any]] = {
    "br_rcrl": {
        "method": "br_rcrl", "objective": "authors", "target": "adaptive", "delta": 0.1, "clone": False,
        "source": "prior_samples", "optimizer": "cem", "samples": None, "mode": "best",
        "return_weight": None, "uniform_share": None, "buckets": None, "bucket_range": None, "negatives": None,
        "fusion": None, "top_share": None,
    },
    "br_rcrl_joint": {
        "method": "br_rcrl_joint", "objective": "monte_carlo", "target": "adaptive", "delta": 0.1, "clone": False,
        "mode": "best", "epsilon": 0.01,
    },
    "vanilla": {"method": "vanilla", "target": "adaptive", "delta": 0.1, "top_share": None},
    "cloning": {"method": "cloning", "top_share": None},
}  # fmt: skip
"""Each method as the kit plays it, setting by setting: what a variant differs from."""


def read_results(path: Path) -> pd.DataFrame:
    """The rows of a results file; a broken one is named with its line."""
    if not path.exists():
        raise FileNotFoundError(f"no results at {path}; `brrcrl experiments run {path.stem}` makes them")
    try:
        table = pd.read_csv(path, float_precision="round_trip", dtype={"key": str})
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise KitError(f"{path.name} is not a readable CSV file: {' '.join(str(error).split())}") from None
    missing = [name for name in REQUIRED if name not in table.columns]
    if missing:
        raise KitError(f"{path.name} lacks the columns {', '.join(missing)}")
    for line, row in enumerate(table.to_dict("records"), start=2):
        problem = row_problem(row)
        if problem:
            raise KitError(f"{path.name}, line {line}: {problem}")
    if table["key"].duplicated().any():
        raise KitError(f"{path.name} holds the cell {table['key'][table['key'].duplicated()].iloc[0]} twice")
    return table


def row_problem(row: Mapping[Any, Any]) -> str | None:
    """What makes a row of a results file or of a finished cell unusable, if something does."""
    for name in ALWAYS:
        value = row.get(name)
        if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
            return f"{name} is missing"
    for name in ("train_seed", "train_steps", "train_seconds", "return_mean"):
        if not _is_number(row[name]):
            return f"{name} is '{row[name]}', which is no number"
    returns, mean = _decoded(row["returns"]), row["return_mean"]
    if not isinstance(returns, list) or not returns or not all(map(_is_number, returns)):
        return "returns is not a list of numbers"
    if abs(sum(returns) / len(returns) - mean) > 0.01 * max(1.0, abs(mean)):
        return f"return_mean {mean} is not the mean of returns"
    broken = [name for name in ("variant", "versions") if not isinstance(_decoded(row[name]), dict)]
    return f"{broken[0]} is not a JSON object" if broken else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _decoded(value: Any) -> Any:
    """A list or an object of a row: as it is in a cell's file, as text in a CSV file."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


def read_grid(grid: str, folder: Path = RESULTS) -> pd.DataFrame:
    """The recorded rows of a grid, with every setting of a training that varies as a column of its own."""
    table = read_results(folder / f"{grid}.csv")
    variants = [json.loads(text) for text in table["variant"]]
    for name in sorted({name for variant in variants for name in variant}):
        table[name] = [variant.get(name) for variant in variants]
    return table


def select(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Rows whose columns have the wanted values; None stands for a setting left at its default."""
    chosen = pd.Series(True, index=table.index)
    for name, value in wanted.items():
        if name in table:
            chosen &= table[name].isna() if value is None else table[name] == value
        elif value is not None:
            return table.iloc[:0]
    return table[chosen]


def read_trace(
    key: str, discount: float = 0.99, folder: Path = RESULTS, reward_clip: float | None = None
) -> pd.DataFrame:
    """What a recorded cell asked for and got at every step; `observed` is the discounted reward-to-go that followed.

    Rows of games say their `discount` and `reward_clip`: with these, `observed` is in the units of the target.
    """
    path = folder / "traces" / f"{key}.csv.gz"
    if not path.exists():
        raise FileNotFoundError(f"no trace of the cell {key} ships; its grid keeps none, or has not been run")
    trace = pd.read_csv(path)
    missing = [name for name in TRACE_COLUMNS if name not in trace]
    if missing:
        raise ValueError(f"{path.name} lacks the columns {', '.join(missing)}")
    lengths = trace.groupby("episode").size().to_numpy()
    rewards = trace["reward"] if reward_clip is None else trace["reward"].clip(-reward_clip, reward_clip)
    return trace.assign(observed=reward_to_go(rewards.to_numpy(), lengths, discount))


def command(grid: str, key: str) -> str:
    """What makes one recorded row again."""
    return f"brrcrl experiments run {grid} --key {key} --work runs/again"


def short_name(dataset_id: str) -> str:
    """`brrcrl/hopper/medium-replay-v0` -> `hopper medium-replay`, `ladder/pong` -> `pong`."""
    return DatasetName.parse(dataset_id).short


def model_name(dataset_id: str) -> str:
    """How files of a dataset's models begin: `brrcrl/hopper/medium-replay-v0` -> `hopper-medium-replay`,
    `ladder/pong` -> `pong-ladder`."""
    return DatasetName.parse(dataset_id).model_name


def order_datasets(names: Iterable[str]) -> list[str]:
    """Datasets in the order of the kit: hopper, walker2d, halfcheetah; replay, medium, medium-expert, expert; games."""
    return sorted(set(names), key=lambda name: DatasetName.parse(name).sort_key)
