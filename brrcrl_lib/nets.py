"""The parts that the methods' networks are made of: encoders of observations, and distributions of actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Facts

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    sizes = (inputs, *hidden)
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class Standardiser(nn.Module):
    """(s - mean) / std, with the statistics of the training data kept beside the weights."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, observations: Tensor) -> Tensor:
        return (observations - cast(Tensor, self.mean)) / cast(Tensor, self.std)


class DistributionNet(nn.Module):
    """log p(. | s) over a number of classes, [B, classes], for states [B, k]: an MLP and a softmax."""

    def __init__(self, inputs: int, classes: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp(inputs, hidden, classes)

    def forward(self, states: Tensor) -> Tensor:
        return self.net(states).float().log_softmax(-1)


# -- encoders ----------------------------------------------------------------------------------------------------

ENCODERS = {
    "none": "standardised vectors as they are; whoever reads them brings the layers",
    "mlp": "linear layers with ReLU on standardised vectors",
    "nature": "the network of Mnih et al. (2015): 32, 64 and 64 filters, 512 features; what the released code uses",
    "light": "the network of Mnih et al. (2013): 16 and 32 filters, 256 features; a third of the multiplications",
}
CONVOLUTIONS = {  # (filters, size, stride) of each layer, and the features at the end
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "light": (((16, 8, 4), (32, 4, 2)), 256),
}


class VectorEncoder(nn.Module):
    """Standardised vectors [B, k] through an MLP; without hidden layers, the standardised vectors themselves."""

    def __init__(self, observation_size: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        self.standardise = Standardiser(torch.zeros(observation_size), torch.ones(observation_size))
        self.width = hidden[-1] if hidden else observation_size
        self.net = nn.Sequential(mlp(observation_size, hidden[:-1], hidden[-1]), nn.ReLU()) if hidden else nn.Identity()

    def forward(self, observations: Tensor) -> Tensor:
        """Features [B, width]."""
        return self.net(self.standardise(observations))


def channels_last(observations: Tensor) -> Tensor:
    """Frames [B, frames, height, width] as floats, laid out as convolutions like them; anything else as it is.

    They are moved while they are bytes, which is cheaper. The gradient of the first convolution then takes about
    two thirds of the time. Twice does nothing more, so a batch that several networks read is moved before the first.
    """
    if observations.ndim != 4:
        return observations
    return observations.contiguous(memory_format=torch.channels_last).float()


class PixelEncoder(nn.Module):
    """Stacked frames [B, frames, height, width] of 0..255; bytes cross to the device, and are scaled there.

    Until statistics of the data are loaded into its standardiser, that divides by 255.
    """

    def __init__(self, shape: Sequence[int], kind: str = "nature") -> None:
        super().__init__()
        channels, height, width = shape
        self.standardise = Standardiser(torch.zeros(height, width), torch.tensor(255.0))
        convolutions, self.width = CONVOLUTIONS[kind]
        layers: list[nn.Module] = []
        for filters, size, stride in convolutions:
            layers += [nn.Conv2d(channels, filters, size, stride), nn.ReLU()]
            channels, height, width = filters, (height - size) // stride + 1, (width - size) // stride + 1
            if min(height, width) < 1:
                raise KitError(f"frames of {tuple(shape)} are too small for the {kind} encoder; Atari's are 84 x 84")
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, self.width), nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        """Features [B, width]."""
        return self.net(self.standardise(channels_last(observations)))


Encoder = VectorEncoder | PixelEncoder


def make_encoder(kind: str, shape: Sequence[int], hidden: Sequence[int]) -> Encoder:
    """The encoder for observations of `shape`; `auto` takes mlp for vectors and light for frames."""
    pixels = len(shape) == 3
    if kind == "auto":
        kind = "light" if pixels else "mlp"
    if kind not in ENCODERS:
        raise KitError(f"unknown encoder '{kind}'{did_you_mean(kind, ('auto', *ENCODERS))}")
    if pixels != (kind in CONVOLUTIONS) or len(shape) not in (1, 3):
        raise KitError(f"encoder '{kind}' cannot read observations of shape {tuple(shape)}; auto takes one that can")
    return PixelEncoder(shape, kind) if pixels else VectorEncoder(shape[0], () if kind == "none" else hidden)


# -- distributions of actions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GaussianMixture:
    """A batch of action distributions, one per state: diagonal Gaussians, optionally mixed and tanh-squashed."""

    mean: Tensor  # [B, K, m]
    log_std: Tensor  # [B, K, m]
    log_weight: Tensor  # [B, K], normalised
    low: Tensor  # [m], used by the squashed version and for clipping samples
    high: Tensor  # [m]
    squash: bool

    def nll(self, actions: Tensor) -> Tensor:
        """-log p(a|s) of one action per state, [B, m], averaged over the batch."""
        return -self.log_prob(actions.unsqueeze(1)).mean()

    def log_prob(self, actions: Tensor) -> Tensor:
        """log p(a|s) [B, N] of actions [B, N, m]; exact."""
        correction: Tensor | float = 0.0
        if self.squash:
            half = (self.high - self.low) / 2
            unit = ((actions - self.low) / half - 1).clamp(-1 + 1e-6, 1 - 1e-6)
            actions = torch.atanh(unit)
            correction = (torch.log1p(-unit.square()) + half.log()).sum(-1)  # log |da/du|
        z = (actions.unsqueeze(2) - self.mean.unsqueeze(1)) * (-self.log_std).exp().unsqueeze(1)  # [B, N, K, m]
        per_component = -0.5 * z.square().sum(-1) - (self.log_std + HALF_LOG_TWO_PI).sum(-1).unsqueeze(1)
        if self.mean.shape[1] == 1:
            return per_component.squeeze(2) - correction
        return torch.logsumexp(per_component + self.log_weight.unsqueeze(1), dim=2) - correction

    def sample(self, noise: Tensor, uniform: Tensor) -> Tensor:
        """Actions [B, N, m] inside the box, from standard normal `noise` and `uniform`.

        The random numbers are [B, N, m] and [B, N], or [N, m] and [N] to be shared by all states: then a state's
        samples do not depend on its neighbours in the batch.
        """
        if self.mean.shape[1] == 1:
            mean, log_std = self.mean, self.log_std  # [B, 1, m]
        else:
            cumulative = self.log_weight.exp().cumsum(-1)[:, None, :-1]  # [B, 1, K - 1]
            component = (uniform.unsqueeze(-1) > cumulative).sum(-1)  # [B, N]
            index = component.unsqueeze(-1).expand(-1, -1, self.mean.shape[-1])
            mean, log_std = self.mean.gather(1, index), self.log_std.gather(1, index)
        actions = mean + log_std.exp() * noise
        return self.squashed(actions) if self.squash else self.clip(actions)

    def squashed(self, raw: Tensor) -> Tensor:
        return self.low + (raw.tanh() + 1) * (self.high - self.low) / 2

    def clip(self, actions: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(actions, self.low), self.high)

    def mode(self) -> Tensor:
        """The mean of the heaviest component, [B, m], inside the box: what behaviour cloning plays."""
        best = self.log_weight.argmax(-1)[:, None, None].expand(-1, 1, self.mean.shape[-1])
        mean = self.mean.gather(1, best).squeeze(1)
        return self.squashed(mean) if self.squash else self.clip(mean)


class GaussianHead(nn.Module):
    """From the outputs of a network, [B, size], to a `GaussianMixture` over a box of actions. Has no weights."""

    def __init__(
        self,
        low: Tensor,
        high: Tensor,
        components: int = 1,
        squash: bool = False,
        log_std_range: tuple[float, float] = (-4.0, 15.0),
    ) -> None:
        super().__init__()
        self.action_size, self.components, self.squash, self.log_std_range = len(low), components, squash, log_std_range
        self.size = components * (2 * self.action_size + 1)
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, outputs: Tensor) -> GaussianMixture:
        shape = (len(outputs), self.components, self.action_size)
        split = [self.components * self.action_size] * 2 + [self.components]
        mean, log_std, weight = outputs.split(split, dim=-1)
        return GaussianMixture(
            mean.view(shape),
            log_std.view(shape).clamp(*self.log_std_range),
            weight.log_softmax(-1),
            cast(Tensor, self.low),
            cast(Tensor, self.high),
            self.squash,
        )


@dataclass(frozen=True)
class Categorical:
    """A batch of distributions over discrete actions."""

    log_probs: Tensor  # [B, A]

    def nll(self, actions: Tensor) -> Tensor:
        """-log p(a|s) of one action per state, [B], averaged over the batch."""
        return nn.functional.nll_loss(self.log_probs, actions)

    def mode(self) -> Tensor:
        """The likeliest action, [B]."""
        return self.log_probs.argmax(-1)


class CategoricalHead(nn.Module):
    """From logits [B, A] to a `Categorical`. Has no weights."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.size = count

    def forward(self, outputs: Tensor) -> Categorical:
        return Categorical(outputs.float().log_softmax(-1))


def make_head(facts: Facts, **gaussian: Any) -> GaussianHead | CategoricalHead:
    """The head for the data's actions; `gaussian` are the options of `GaussianHead`."""
    if facts.action_count is not None:
        return CategoricalHead(facts.action_count)
    return GaussianHead(torch.tensor(facts.action_low), torch.tensor(facts.action_high), **gaussian)
