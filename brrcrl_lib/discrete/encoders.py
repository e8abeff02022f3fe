"""From an observation to features: an MLP for vectors, a small convolutional network for stacked frames."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.models import Standardiser, mlp

ENCODERS = {
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
                raise ValueError(f"frames of {tuple(shape)} are too small for the {kind} encoder; Atari's are 84 x 84")
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
        raise ValueError(f"unknown encoder '{kind}'{did_you_mean(kind, ('auto', *ENCODERS))}")
    if pixels != (kind != "mlp") or len(shape) not in (1, 3):
        raise ValueError(f"encoder '{kind}' cannot read observations of shape {tuple(shape)}; auto takes one that can")
    return PixelEncoder(shape, kind) if pixels else VectorEncoder(shape[0], hidden)
