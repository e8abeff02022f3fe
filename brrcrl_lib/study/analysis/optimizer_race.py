"""Optimisers side by side, on the same states: what each finds, how long it takes, how often it asks for an energy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from brrcrl_lib.base.devices import generator
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.inference.optimizers import Optimizer, Problem
from brrcrl_lib.inference.threshold import return_distribution
from brrcrl_lib.methods.br_rcrl import BayesianModel


@torch.no_grad()
def adaptive_problem(model: BayesianModel, observations: Tensor, delta: float, samples: int = 256) -> Problem:
    """What an optimiser faces in the states [B, k]: E^delta with theta_delta from `samples` actions of the prior."""
    states = model.standardise(observations)
    prior, encoded = model.prior(states), model.returns.encode(states)
    noise = torch.randn(samples, prior.mean.shape[-1], generator=generator(0))
    uniform = torch.rand(samples, generator=generator(1))
    distribution = return_distribution(model, states, prior, encoded, "prior_samples", noise, uniform)
    bucket = model.buckets.threshold(distribution, delta)
    return Problem(lambda a: model.energy(prior, encoded, a, bucket), prior.sample, prior.low, prior.high)


def slice_problem(problem: Problem, dimensions: tuple[int, int], at: Tensor) -> Problem:
    """The problem of one state with all action dimensions but two held at `at` [m]."""
    chosen = list(dimensions)

    def embed(actions: Tensor) -> Tensor:  # [1, N, 2] -> [1, N, m]
        full = at.expand(1, actions.shape[1], -1).clone()
        full[..., chosen] = actions
        return full

    def sample(noise: Tensor, uniform: Tensor) -> Tensor:
        padded = torch.zeros(len(noise), len(at))
        padded[:, chosen] = noise
        return problem.sample_prior(padded, uniform)[..., chosen]

    return Problem(lambda a: problem.energy(embed(a)), sample, problem.low[chosen], problem.high[chosen])


@torch.no_grad()
def energy_grid(problem: Problem, points: int = 101) -> tuple[Tensor, Tensor, Tensor]:
    """Every energy of a two-dimensional problem: axes x [points], y [points], and energies [points (y), points (x)]."""
    x, y = (
        torch.linspace(float(low), float(high), points) for low, high in zip(problem.low, problem.high, strict=True)
    )
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(1, -1, 2)
    return x, y, problem.energy(grid).reshape(points, points)


def evaluations(optimizer: Optimizer, problem: Problem) -> int:
    """How many energies the optimiser asks for to choose one action."""
    asked = 0

    def counted(actions: Tensor) -> Tensor:
        nonlocal asked
        asked += actions.shape[1]
        return problem.energy(actions)

    optimizer.minimise(replace(problem, energy=counted), generator(0))
    return asked


def race(model: BayesianModel, observations: Tensor, delta: float, optimizers: Mapping[str, Optimizer]) -> pd.DataFrame:
    """Mean energy, milliseconds per action and energies asked for by each optimiser, in one state [1, k] at a time."""
    problems = [adaptive_problem(model, row.unsqueeze(0), delta) for row in observations]
    rows = []
    for name, optimizer in optimizers.items():
        asked = evaluations(optimizer, problems[0])  # also warms up
        started = time.perf_counter()
        with torch.no_grad():
            energies = [float(optimizer.minimise(problem, generator(i)).energies) for i, problem in enumerate(problems)]
        ms = 1e3 * (time.perf_counter() - started) / len(problems)
        rows.append({"optimizer": name, "energy": sum(energies) / len(energies), "ms": ms, "evaluations": asked})
    return pd.DataFrame(rows)


# -- reading a race ----------------------------------------------------------------------------------------------

YARDSTICK = "dfo 65,536"
"""The paper's optimiser at its own size, without the work done twice."""


def verdict(table: pd.DataFrame) -> dict[str, Any]:
    """The fastest optimiser that reaches the yardstick's mean energy, and how it compares.

    Where the full-size optimiser did not run (smoke), the largest that did is the yardstick.
    """
    rows: Any = table.set_index("optimizer")  # Any: pandas' stubs send mypy round in circles here
    yardstick = YARDSTICK if YARDSTICK in rows.index else [name for name in rows.index if name.startswith("dfo")][-1]
    good = rows[(rows["energy"] <= rows.loc[yardstick, "energy"] + 5e-4) & (rows.index != f"{yardstick}, literal")]
    picked = good["ms"].idxmin()
    literal = f"{YARDSTICK}, literal"
    faster = rows["ms"] / rows.loc[picked, "ms"]
    return {
        "picked": picked,
        "against": yardstick,
        "times_faster": faster[yardstick],
        "than_literal": faster[literal] if literal in rows.index else None,
        "energy_gap": rows.loc[picked, "energy"] - rows.loc[yardstick, "energy"],
    }


def headline(verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    """What the races say: the factor against a DFO that wastes nothing first, then against the literal one."""
    rows = list(verdicts.values())
    if len({row["picked"] for row in rows}) > 1:
        return "The fastest optimiser at the largest DFO's energy: " + ", ".join(
            f"{row['picked']} ({title})" for title, row in verdicts.items()
        )
    faster, naive = (
        " and ".join(f"{row[key]:,.0f}" for row in rows if row[key]) for key in ("times_faster", "than_literal")
    )
    told = f"{rows[0]['picked']} gets as low as {rows[0]['against']}, {faster} times faster"
    return told + (f"\n({naive} times faster than a literal transcription)" if naive else "")


def read_bench(path: Path = ROOT / "data" / "results" / "bench.json") -> dict[str, Any]:
    """The report that `make bench` recorded."""
    if not path.exists():
        raise FileNotFoundError(f"no recorded bench at {path.name}; `brrcrl bench --out {path}` makes it")
    return json.loads(path.read_text())


def bench_table(report: Mapping[str, Any], environment: str) -> pd.DataFrame:
    """The race of the optimisers in a bench report: columns optimizer, energy, ms.

    The literal version runs on fewer states; it is the same search, so the energy shown is that of its fast twin.
    """
    rows = report[environment]["acting"]["optimizers"]
    twin = {name: row.get("energy", rows[name.removesuffix(", literal")]["energy"]) for name, row in rows.items()}
    table = pd.DataFrame([{"optimizer": name, "energy": twin[name], "ms": row["ms"]} for name, row in rows.items()])
    return table.sort_values("ms", ignore_index=True)
