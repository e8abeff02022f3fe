"""What a joint table believes about recorded states, and which of them are calm or critical by its own account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from brrcrl_lib.discrete.models import JointReturnModel
from brrcrl_lib.discrete.table import JointTable
from brrcrl_lib.returns import ReturnBuckets


class States(Protocol):
    """Where observations come from: a frame store, for example."""

    def observations(self, indices: Tensor) -> Tensor:
        """Observations [B, ...] of the steps `indices` [B]."""
        ...


def spread_steps(lengths: Any, count: int, stack: int = 4) -> Tensor:
    """Up to `count` steps, evenly spaced over games of `lengths` [games], without those whose stack is partly black."""
    games = torch.as_tensor(lengths, dtype=torch.int64)
    age = torch.arange(int(games.sum())) - (games.cumsum(0) - games).repeat_interleave(games)  # [steps]
    settled = torch.nonzero(age >= stack - 1).flatten()
    return settled[torch.linspace(0, len(settled) - 1, min(count, len(settled))).round().long()]


@torch.no_grad()
def tables(
    model: JointReturnModel,
    source: States,
    steps: Tensor,
    change: Callable[[Tensor], Tensor] | None = None,
    batch: int = 256,
) -> JointTable:
    """The table of each of the recorded `steps` [n]; with `change`, after that was done to the observations."""
    device = next(model.parameters()).device
    logits = []
    for chosen in steps.split(batch):
        observations = source.observations(chosen)
        observations = observations if change is None else change(observations)
        logits.append(model(observations.to(device)).logits.cpu())
    return JointTable(torch.cat(logits))


def one_state(table: JointTable, index: int) -> JointTable:
    """The table of one state, still with a batch dimension."""
    return JointTable(table.logits[index : index + 1])


def forecasts(table: JointTable, buckets: ReturnBuckets) -> Tensor:
    """E[R|s,a] of every action, [n, A]."""
    return table.log_returns_of_actions().exp() @ buckets.decode(torch.arange(buckets.count))


def stakes(table: JointTable, buckets: ReturnBuckets) -> Tensor:
    """How much the choice of action matters, [n]: the standard deviation of E[R|s,a] over a ~ p(a|s).

    Weighting by p(a|s) leaves out actions that the data hardly ever take, and of which the model knows little.
    """
    prior, values = table.log_actions().exp(), forecasts(table, buckets)
    mean = (prior * values).sum(-1, keepdim=True)
    return (prior * (values - mean).square()).sum(-1).sqrt()


def calm_and_critical(table: JointTable, buckets: ReturnBuckets) -> tuple[int, int]:
    """The states in which the choice of action matters least and most, by the model's own forecasts."""
    found = stakes(table, buckets)
    return int(found.argmin()), int(found.argmax())


def chance(table: JointTable, bucket: Tensor) -> Tensor:
    """P(R >= theta | s) [n], with theta the lower edge of `bucket` [n]: the denominator of p(a | s, R >= theta)."""
    return (-table.energy(bucket)).exp().sum(-1)


def grain(strength: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """A change that no player would see: every pixel [B, ...] uint8 moves by up to `strength` grey levels."""

    def add(observations: Tensor) -> Tensor:
        noise = torch.randint(-strength, strength + 1, observations.shape, generator=generator)
        return (observations.int() + noise).clamp(0, 255).to(torch.uint8)

    return add


def flips(before: JointTable, after: JointTable, rule: Callable[[JointTable], Tensor]) -> float:
    """Share of the states whose likeliest action of p(a | s, R >= theta) changes; `rule` gives theta's bucket [n]."""
    first, second = (table.log_actions_reaching(rule(table)).argmax(-1) for table in (before, after))
    return float((first != second).float().mean())
