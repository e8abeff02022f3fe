"""`make bench`: how fast, measured side by side in one run, so that the ratios hold on any machine."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from brrcrl_lib.base.devices import generator
from brrcrl_lib.base.files import ROOT, write_json
from brrcrl_lib.base.limits import whole
from brrcrl_lib.base.settings import OutPath
from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.evaluate import evaluate
from brrcrl_lib.inference.optimizers import CrossEntropy, DerivativeFree, Langevin, Optimizer, Problem
from brrcrl_lib.methods.base import create
from brrcrl_lib.methods.br_rcrl import FUSIONS, BayesianModel, BrRcrlConfig, Negatives, bayesian_loss
from brrcrl_lib.study.analysis.literal import literal_loss, literal_minimise
from brrcrl_lib.study.experiments.results import AS_PLAYED, order_datasets, read_grid, select, short_name
from brrcrl_lib.study.figures.style import save_figure, use_house_style
from brrcrl_lib.tools.bench.frames import benchmark_frames
from brrcrl_lib.tools.bench.growth import draw_growth, growth, milliseconds
from brrcrl_lib.tools.bench.loading import benchmark_loading
from brrcrl_lib.tools.bench.updates import benchmark_updates
from brrcrl_lib.training import load_run

ENVIRONMENTS = {"hopper": "Hopper, 3-D", "walker2d": "Walker2d, 6-D"}


@dataclass(frozen=True)
class BenchConfig:
    """Measure speed side by side; the last line is JSON."""

    states: Annotated[int, whole(1, 10_000)] = 100
    """States of the dataset in which actions are chosen, each with random numbers of its own."""
    draws: Annotated[int, whole(1, 10_000)] = 3
    """Choices per state by the optimisers that take milliseconds; the large ones make one."""
    literal_states: Annotated[int, whole(1, 10_000)] = 5
    """States for the literal version of the paper's optimiser: it takes seconds for each."""
    repeats: Annotated[int, whole(1, 10_000)] = 15
    """Training steps timed per variant; the median counts."""
    out: OutPath = ROOT / "runs" / "bench.json"
    """Where the figures go as JSON too."""


def bench(config: BenchConfig) -> int:
    """Run every comparison, print tables, draw the plot, end with one line of JSON."""
    torch.set_num_threads(1)
    report: dict[str, Any] = {"threads": 1}
    for name, title in ENVIRONMENTS.items():
        run = load_run(ROOT / "data" / "models" / f"{name}-medium-replay-authors.safetensors", "cpu")
        dataset = load_dataset(run.about["dataset"])
        report[name] = {
            "acting": acting(run.model, dataset, config),
            "training": training(run.config, dataset, config),
            "lockstep": lockstep(run, dataset),
            "loading": benchmark_loading(run.about["dataset"]),
        }
        _print_section(title, report[name])
    report["fusion_and_return"] = fusion_and_return()
    _print_section("return with early and late fusion (recorded; mean over the training seeds that both have)",
                   report["fusion_and_return"])  # fmt: skip
    report["updates"] = benchmark_updates(config.repeats)
    _print_section("one update against torchrl's, same sizes (ms of CPU)", report["updates"])
    report["growth"] = growth(config.repeats)
    _print_section("how cost grows (ms)", report["growth"])
    report["frames"] = benchmark_frames()
    _print_section("Atari frames: a memory-mapped store against an array of stacks", report["frames"])
    draw(report)
    write_json(config.out, report)
    print(json.dumps(report))
    return 0


def matmul_speed(size: int = 1024) -> float:
    """Floating-point operations per second of this machine's float32 matrix product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / (milliseconds(lambda: a @ b, 31) / 1e3)


# -- acting ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def acting(model: BayesianModel, dataset: OfflineDataset, config: BenchConfig) -> dict[str, Any]:
    """Mean energy (lower is better) and milliseconds per action of each optimiser, one state at a time.

    `energy_gap_to_paper` is the default's mean energy minus that of the paper's optimiser in the same states, with
    the standard error of that mean over the states.
    """
    rows = torch.randperm(len(dataset), generator=generator(0))[: config.states]
    states = model.standardise(dataset.observations[rows])
    bucket = _thresholds(model, states, delta=0.1)
    optimizers: dict[str, Optimizer] = {
        "cem (default)": CrossEntropy(),
        "cem 64": CrossEntropy(64),
        "langevin": Langevin(),
        "dfo 256": DerivativeFree(256),
        "dfo 1,024": DerivativeFree(1024),
        "dfo 65,536": DerivativeFree(),
    }
    results: dict[str, Any] = {}
    found: dict[str, Tensor] = {}  # energies, [states] each
    for name, optimizer in optimizers.items():
        draws = 1 if name == "dfo 65,536" else config.draws
        started = time.perf_counter()
        energies = [
            _solve(model, states[i : i + 1], bucket[i : i + 1], optimizer, seed=draw * config.states + i)
            for draw in range(draws)
            for i in range(config.states)
        ]
        seconds = time.perf_counter() - started
        found[name] = torch.cat(energies).view(draws, config.states).mean(0)
        results[name] = {
            "energy": round(float(found[name].mean()), 4),
            "energy_few": round(float(found[name][: config.literal_states].mean()), 4),
            "ms": round(1e3 * seconds / len(energies), 2),
        }
    started = time.perf_counter()
    literal = [
        float(literal_minimise(model, states[i : i + 1], bucket[i : i + 1], DerivativeFree(), generator(i)).energies)
        for i in range(config.literal_states)
    ]
    results["dfo 65,536, literal"] = {
        "energy_few": round(sum(literal) / len(literal), 4),
        "ms": round(1e3 * (time.perf_counter() - started) / len(literal), 1),
    }
    gaps = found["cem (default)"] - found["dfo 65,536"]  # [states]
    return {
        "optimizers": results,
        "states": config.states,
        "speedup_over_literal": round(results["dfo 65,536, literal"]["ms"] / results["cem (default)"]["ms"], 1),
        "energy_gap_to_paper": round(float(gaps.mean()), 5),
        "energy_gap_error": round(float(gaps.std() / config.states**0.5), 5),
    }


def _thresholds(model: BayesianModel, states: Tensor, delta: float) -> Tensor:
    prior, encoded = model.prior(states), model.returns.encode(states)
    noise = torch.randn(256, prior.mean.shape[-1], generator=generator(0))
    probabilities = model.returns.log_probs(encoded, prior.sample(noise, torch.rand(256, generator=generator(1)))).exp()
    return model.buckets.threshold(probabilities.mean(1), delta)


def _solve(model: BayesianModel, state: Tensor, bucket: Tensor, optimizer: Optimizer, seed: int) -> Tensor:
    prior, encoded = model.prior(state), model.returns.encode(state)
    problem = Problem(lambda a: model.energy(prior, encoded, a, bucket), prior.sample, prior.low, prior.high)
    return optimizer.minimise(problem, generator(seed)).energies


# -- training ----------------------------------------------------------------------------------------------------


def training(trained: BrRcrlConfig, dataset: OfflineDataset, config: BenchConfig) -> dict[str, Any]:
    """Milliseconds of forward and backward pass: this library, the literal version, late fusion.

    The matrix product is timed just before and just after, and the faster counts: a machine's clock drifts.
    """
    before = matmul_speed()
    batch = dataset.sample(trained.batch_size, generator(0))
    negatives = Negatives.draw(batch.actions, trained.negatives, 0.5, generator(1))
    facts = dataset.facts()
    early, late = (create(BrRcrlConfig(hidden=trained.hidden, fusion=fusion), facts).model for fusion in FUSIONS)
    ours = milliseconds(lambda: bayesian_loss(early, batch, negatives)["loss"].backward(), config.repeats)
    speed = max(before, matmul_speed())
    literal = milliseconds(lambda: literal_loss(early, batch, negatives).backward(), config.repeats)
    fused = milliseconds(lambda: bayesian_loss(late, batch, negatives)["loss"].backward(), config.repeats)
    with torch.no_grad():
        difference = float(bayesian_loss(early, batch, negatives)["loss"] - literal_loss(early, batch, negatives))
    candidates = trained.batch_size * (trained.negatives + 1)
    weights = sum(layer.weight.numel() for layer in early.returns.trunk if isinstance(layer, torch.nn.Linear))
    operations = 3 * 2 * candidates * weights  # forward and twice as much backward
    return {
        "ours_ms": round(ours, 1),
        "literal_ms": round(literal, 1),
        "late_fusion_ms": round(fused, 1),
        "ours_over_literal": round(ours / literal, 3),
        "late_over_literal": round(fused / literal, 3),
        "loss_difference": abs(difference),
        "matmul_gflops": round(speed / 1e9, 1),
        "share_of_matmul_speed": round(operations / (ours / 1e3) / speed, 2),
    }


def fusion_and_return() -> dict[str, dict[str, float]]:
    """What late fusion does to the return: the recorded rows of the grid `ablations` that differ in nothing else."""
    rows = read_grid("ablations")
    table: dict[str, dict[str, float]] = {}
    for dataset in order_datasets(rows["dataset"]):
        early = select(rows, dataset=dataset, fusion="early")
        late = select(rows, dataset=dataset, **AS_PLAYED["br_rcrl"])
        late = late[late["train_seed"].isin(early["train_seed"])]
        if len(early) and len(late) == len(early):
            table[short_name(dataset)] = {
                "seeds": len(early),
                "early": round(float(early["return_mean"].mean()), 1),
                "late": round(float(late["return_mean"].mean()), 1),
            }
    return table


def lockstep(
    run: Any, dataset: OfflineDataset, episodes: int = 10, steps: int = 200, repeats: int = 5
) -> dict[str, Any]:
    """Steps per second of ten episodes side by side, and one after another; medians of taking turns."""

    def play(count: int, seed: int) -> tuple[int, float]:
        result = evaluate(run.policy(), dataset.make_env, episodes=count, seed=seed, max_steps=steps)
        return int(result.lengths.sum()), result.seconds

    def speed(played: list[tuple[int, float]]) -> float:
        return sum(count for count, _ in played) / sum(seconds for _, seconds in played)

    play(1, 0)
    rows = [(speed([play(episodes, 0)]), speed([play(1, seed) for seed in range(episodes)])) for _ in range(repeats)]
    ratios = [together / alone for together, alone in rows]
    return {
        "together_steps_per_s": round(median(together for together, _ in rows), 1),
        "alone_steps_per_s": round(median(alone for _, alone in rows), 1),
        "ratio": round(median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in sorted(ratios)],
    }


# -- showing -----------------------------------------------------------------------------------------------------


def _print_section(title: str, section: dict[str, Any], indent: str = "  ") -> None:
    print(title)
    for name, value in section.items():
        if isinstance(value, dict):
            _print_section(f"{indent}{name}", value, indent + "  ")
        else:
            print(f"{indent}{name:<28} {value}")


def draw(report: dict[str, Any]) -> None:
    """Energy against time for each optimiser (lower left is better), and how each cost grows.

    The literal search finds what its twin finds, so it is drawn at the same energy.
    """
    use_house_style()
    figure, (axes, below) = plt.subplots(2, 2, figsize=(11, 8.2))
    for axis, (name, title) in zip(axes, ENVIRONMENTS.items(), strict=True):
        acting = report[name]["acting"]
        rows = acting["optimizers"]
        for (label, row), marker in zip(rows.items(), "oPs^vD*", strict=True):
            energy = row.get("energy", rows["dfo 65,536"]["energy"])
            axis.plot(row["ms"], energy, marker, markersize=9, linestyle="none", label=label)
        axis.set(xscale="log", xlabel="milliseconds per action", ylabel="mean energy (lower is better)")
        axis.set_title(f"{title}: default {acting['speedup_over_literal']:,.0f}x as fast as literal")
        axis.margins(x=0.1, y=0.15)
    axes[0].legend(fontsize=8)
    for axis, (cost, table) in zip(below, report["growth"].items(), strict=True):
        draw_growth(axis, table)
        axis.set_title(f"How the cost of a {cost} grows")
    save_figure(figure, "bench_optimizers", "bench")
