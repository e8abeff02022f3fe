"""What a joint table believes about recorded states, and which of them are calm or critical by its own account."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from brrcrl_lib.methods.br_rcrl_joint import JointReturnModel, JointTable
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
def tables(model: JointReturnModel, source: States, steps: Tensor, batch: int = 256) -> JointTable:
    """The table of each of the recorded `steps` [n], on the CPU."""
    device = next(model.parameters()).device
    return JointTable(
        torch.cat([model(source.observations(chosen).to(device)).logits.cpu() for chosen in steps.split(batch)])
    )


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


def pull(table: JointTable, bucket: Tensor) -> Tensor:
    """KL(p(a | s, R >= theta) || p(a|s)) in nats, [n]: how far a target takes the agent from what the data do here.

    At most -log P(R >= theta | s), so that the adaptive rule is held by -log delta (Theorem 1), and Max by nothing.
    """
    wanted, usual = table.log_actions_reaching(bucket), table.log_actions()
    return (wanted.exp() * (wanted - usual)).sum(-1)


def gain(table: JointTable, buckets: ReturnBuckets, bucket: Tensor) -> Tensor:
    """What the target adds to the model's forecasts, [n]: E[R|s,a] under p(a | s, R >= theta), minus under p(a|s)."""
    change = table.log_actions_reaching(bucket).exp() - table.log_actions().exp()
    return (change * forecasts(table, buckets)).sum(-1)
