"""Decision Transformer (Chen et al. 2021): actions predicted from the last K steps of wanted returns, states, actions.

    R_1 s_1 a_1  R_2 s_2 a_2  ...  R_K s_K          each token sees itself and what came before it
        |            |                 |
        a_1          a_2               a_K           predicted where the state stands; loss (a - a_predicted)^2

R_t is the undiscounted reward-to-go while training, and what is still wanted while playing: R <- R - r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Batch, Facts, Needs
from brrcrl_lib.inference.targets import DecisionTransformerSchedule
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.settings import SMOKE, MethodConfig, at_least, in_range
from brrcrl_lib.nets import Standardiser
from brrcrl_lib.policies import Policy, TargetPolicy
from brrcrl_lib.worlds import DatasetName

PAPER_TARGETS = {"hopper": 3_600.0, "halfcheetah": 12_000.0, "walker2d": 5_000.0}
"""What the released code asks for in each world, on D4RL; its second target is half of that (`share 0.5`)."""
PAPER_SCALE = 1_000.0
"""What it divides returns by in these worlds."""


# -- configuration -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DtConfig(MethodConfig):
    """Decision Transformer. Sizes are its paper's; steps and warm-up are not, because on a CPU they would take hours.

    Differs from the paper in how windows are drawn: it draws the first step of a window uniformly and cuts the window
    at the end of the episode, we draw the last step and cut at the start. Both train every length of context from 1 to
    K and average over all steps that are there; but ours shows the first K - 1 steps of an episode as often as those in
    its middle and the last K - 1 less often, the paper's the other way round.
    """

    batch_size: int = 64
    """Windows per step."""
    learning_rate: float = 1e-4
    """AdamW's learning rate after the warm-up."""
    discount: float | None = 1.0
    """gamma of the reward-to-go; the paper's is undiscounted."""
    context: int = 20
    """K, the steps that the model sees."""
    layers: int = 3
    """Transformer blocks."""
    heads: int = 1
    """Attention heads."""
    width: int = 128
    """Size of a token."""
    dropout: float = 0.1
    """Share of numbers dropped from the embedded tokens and from what each block adds to them, while training."""
    weight_decay: float = 1e-4
    """AdamW's weight decay."""
    warmup: int = 600
    """Steps over which the learning rate rises linearly. The paper takes 10,000 of its 100,000."""
    gradient_clip: float = 0.25
    """Gradients longer than this are shortened to it."""
    max_episode: int = 1_024
    """Steps that have an embedding of their own; later ones share the last."""
    return_scale: float | None = None
    """Returns are divided by this; None: 1,000 in the paper's worlds (undiscounted), else the data's largest size."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**SMOKE, "batch_size": 16, "context": 5, "layers": 2, "width": 32, "warmup": 10},
        "paper": {"steps": 100_000, "warmup": 10_000, "held_out": 0.0, "checkpoint_every": 5_000},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "context", "layers", "heads", "width", "warmup", "max_episode")
        at_least(self, 0, "weight_decay")
        in_range(self, "dropout", 0, 1, open_high=True)
        in_range(self, "gradient_clip", 0, float("inf"), open_low=True)
        in_range(self, "return_scale", 0, float("inf"), open_low=True)
        if self.width % self.heads:
            raise KitError(f"width must be a multiple of heads; got {self.width} and {self.heads}")

    def scale(self, facts: Facts) -> float:
        """What returns are divided by."""
        if self.return_scale is not None:
            return self.return_scale
        return PAPER_SCALE if paper_target(facts) else max(map(abs, facts.return_range)) or 1.0


@dataclass(frozen=True)
class DtAct:
    """How a Decision Transformer is made to act."""

    target_return: float | None = None
    """Return to ask for at the start; None: its paper's for the world (hopper 3,600, halfcheetah 12,000, walker2d
    5,000), which were chosen for D4RL's data. Other data are asked for no more than their best reward-to-go, and for
    that in other worlds and where returns are discounted or clipped."""
    share: float = 1.0
    """Ask for this share of it."""

    def __post_init__(self) -> None:
        in_range(self, "target_return", float("-inf"), float("inf"))
        in_range(self, "share", 0, float("inf"), open_low=True)

    def rule(self, facts: Facts) -> DecisionTransformerSchedule:
        start = default_target(facts) if self.target_return is None else self.target_return
        return DecisionTransformerSchedule(self.share * start, discount=facts.discount)


def default_target(facts: Facts) -> float:
    """The paper's target on D4RL's data; on others the smaller one of it and of the data's best.

    Differs from the paper, which asks for the same whatever the data reach: a model that never saw so large a return
    answers by extrapolation, and on data that are not D4RL's nobody has checked how.
    """
    published, best = paper_target(facts), facts.return_range[1]
    if published is None:
        return best
    return published if DatasetName.parse(facts.dataset).namespace == "d4rl" else min(published, best)


def paper_target(facts: Facts) -> float | None:
    """What the paper's code asks for in this world; None in other worlds and where returns are counted otherwise."""
    world = (facts.env or "").split("/")[-1].rpartition("-v")[0].lower()
    return PAPER_TARGETS.get(world) if facts.discount == 1 and facts.reward_clip is None else None


# -- networks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dropout:
    """Zeroes a share of numbers and scales the rest up; draws from a generator, so that a resumed run draws alike."""

    share: float = 0.0
    generator: torch.Generator | None = None

    def __call__(self, values: Tensor) -> Tensor:
        if self.share == 0:
            return values
        kept = coins(values.shape, 1 - self.share, values.device, self.generator)
        return values * kept.to(values.dtype).div_(1 - self.share)


def coins(shape: torch.Size, share: float, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Booleans of which `share` are True, to 1 in 65,536: four are cut from each random number of 64 bits.

    Drawn one by one, they took a tenth of an update.
    """
    count = math.prod(shape)
    drawn = torch.empty((count + 3) // 4, dtype=torch.int64, device=device)
    bits = drawn.random_(-(2**63), None, generator=generator).view(torch.int16)[:count]
    return (bits < round(share * 65_536) - 32_768).view(shape)


class Block(nn.Module):
    """A transformer block as in GPT-2: attention and an MLP, each on normalised tokens and added to them.

    Differs from the paper: attention weights are not dropped, because torch's fused attention would draw them from the
    global generator.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(inplace=True), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor, rows: slice, allowed: Tensor, drop: Dropout) -> Tensor:
        """The `rows` of tokens [B, T, width] after they have looked where they may: `allowed` [B, 1, T, T]."""
        normal = self.norm_attention(tokens)
        query = self._split(self.query(normal[:, rows]))  # [B, heads, rows, width / heads]
        key, value = self._split(self.key(normal)), self._split(self.value(normal))  # [B, heads, T, width / heads]
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed[:, :, rows])
        tokens = tokens[:, rows] + drop(self.out(seen.transpose(1, 2).flatten(2)))
        return tokens + drop(self.mlp(self.norm_mlp(tokens)))

    def _split(self, values: Tensor) -> Tensor:
        return values.unflatten(-1, (self.heads, -1)).transpose(1, 2)


ALL, STATES, LAST_STATE = slice(None), slice(1, None, 3), slice(-2, -1)
"""Of tokens (R, s, a, R, s, a, ...): all, those of states, that of the last state."""


class DecisionTransformer(nn.Module):
    """Predicted actions from windows of wanted returns, states and actions.

    Actions are read, predicted and compared in units of their box, [-1, 1]: where the box is that already, as in the
    paper's worlds, nothing changes.
    """

    def __init__(self, config: DtConfig, facts: Facts) -> None:
        super().__init__()
        size, width = facts.observation_shape[0], config.width
        low, high = torch.tensor(facts.action_low), torch.tensor(facts.action_high)
        self.standardise = Standardiser(*(facts.standardisation or (torch.zeros(size), torch.ones(size))))
        self.register_buffer("middle", (high + low) / 2)
        self.register_buffer("reach", (high - low) / 2)
        self.context, self.scale = config.context, config.scale(facts)
        self.embed_time = nn.Embedding(config.max_episode, width)
        self.embed_return, self.embed_state = nn.Linear(1, width), nn.Linear(size, width)
        self.embed_action = nn.Linear(len(low), width)
        self.norm_embedded, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.layers))
        self.action = nn.Linear(width, len(low))
        for layer in self.blocks.modules():
            if isinstance(layer, nn.Linear):  # as GPT-2 begins
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        returns: Tensor,
        timesteps: Tensor,
        mask: Tensor | None = None,
        drop: Dropout | None = None,
        rows: slice = STATES,
    ) -> Tensor:
        """Predicted actions in units of the box, [B, K, m]; only the last one, [B, 1, m], for `rows` LAST_STATE.

        Raw observations [B, K, k], actions [B, K, m], returns [B, K], timesteps [B, K]; `mask` [B, K] is False where a
        step is none. An action token is seen by later steps only, so the last one may be anything.
        """
        drop = drop or Dropout()
        time = self.embed_time(timesteps.clamp(max=self.embed_time.num_embeddings - 1))
        parts = (
            self.embed_return((returns / self.scale).unsqueeze(-1)),
            self.embed_state(self.standardise(observations)),
            self.embed_action(self.in_units(actions)),
        )
        tokens = torch.stack([part + time for part in parts], dim=2).flatten(1, 2)  # [B, 3K, width]: R, s, a, R, ...
        tokens = drop(self.norm_embedded(tokens))
        allowed = self._allowed(tokens, mask)
        *early, last = self.blocks
        for block in early:
            tokens = block(tokens, ALL, allowed, drop)
        tokens = last(tokens, rows, allowed, drop)  # nobody reads what the last block makes of other tokens
        return self.action(self.norm_out(tokens)).tanh()

    @staticmethod
    def _allowed(tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Who may look where, [B or 1, 1, 3K, 3K]: back in time, and never at a step that is none.

        Every token may look at itself, so that no row is empty: what a masked step sees is never seen by others.
        """
        count = tokens.shape[1]
        square = torch.ones(count, count, dtype=torch.bool, device=tokens.device)
        causal = square.tril()[None, None]
        if mask is None:
            return causal
        return causal & (mask.repeat_interleave(3, dim=1)[:, None, None, :] | (causal & square.triu()))

    def in_units(self, actions: Tensor) -> Tensor:
        return (actions - cast(Tensor, self.middle)) / cast(Tensor, self.reach)

    def in_box(self, units: Tensor) -> Tensor:
        return cast(Tensor, self.middle) + units * cast(Tensor, self.reach)


# -- policy ------------------------------------------------------------------------------------------------------


@dataclass
class DtPolicy(TargetPolicy):
    """Plays what the model predicts after the last K steps, asking for what is left of the target."""

    target: DecisionTransformerSchedule
    model: DecisionTransformer = field(kw_only=True)
    _past: tuple[Tensor, ...] = field(default=(), init=False, repr=False)
    """Observations [B, T, k], actions [B, T, m] and wanted returns [B, T] of the last T < K steps."""
    _step: int = field(default=0, init=False)

    def reset(self, episodes: int) -> None:
        super().reset(episodes)
        self._past, self._step = (), 0

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        model = self.model
        wanted = self.target.wanted.to(observations.device, torch.float32)
        unknown = torch.zeros(len(observations), len(cast(Tensor, model.reach)), device=observations.device)
        window = tuple(now.unsqueeze(1) for now in (observations, unknown, wanted))
        if self._past:
            window = tuple(torch.cat([past, now], dim=1) for past, now in zip(self._past, window, strict=True))
        seen = window[0].shape[1]
        timesteps = torch.arange(self._step + 1 - seen, self._step + 1, device=observations.device)
        timesteps = timesteps.expand(len(observations), -1)
        actions = model.in_box(model(*window, timesteps, rows=LAST_STATE).squeeze(1))
        states, taken, returns = window
        taken = torch.cat([taken[:, :-1], actions.unsqueeze(1)], dim=1)
        first = max(0, seen - model.context + 1)
        self._past, self._step = (states[:, first:], taken[:, first:], returns[:, first:]), self._step + 1
        self.trace = {"target": wanted}
        return actions

    def keep(self, active: Tensor) -> None:
        super().keep(active)
        self._past = tuple(past[active.to(past.device)] for past in self._past)


# -- method ------------------------------------------------------------------------------------------------------


class Dt(Method):
    """Decision Transformer."""

    name = "dt"
    summary = "Decision Transformer (Chen et al. 2021): actions from a window of wanted returns, states and actions"
    kinds = ("box",)
    needs = Needs(context=20)  # `build` takes the configuration's own
    Config = DtConfig
    Act = DtAct
    config: DtConfig

    def build(self) -> dict[str, nn.Module]:
        self.needs = Needs(context=self.config.context)
        return {"model": DecisionTransformer(self.config, self.facts)}

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        config = self.config
        return {
            "adamw": torch.optim.AdamW(
                self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
            )
        }

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Squared error per number of an action, averaged over the steps that are there."""
        assert batch.mask is not None
        model, drop = self.model, Dropout(self.config.dropout, generator)
        units = model(batch.observations, batch.actions, batch.returns, batch.timesteps, batch.mask, drop)
        errors = (units - model.in_units(batch.actions)).square().mean(-1)  # [B, K]
        return {"loss": (errors * batch.mask).sum() / batch.mask.sum()}

    def update(self, batch: Batch, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        """One step of AdamW; the learning rate follows from `step` alone, so that a resumed run takes the same."""
        optimizer = self.optimizers["adamw"]
        for group in optimizer.param_groups:
            group["lr"] = self.config.learning_rate * min(1.0, (step + 1) / self.config.warmup)
        with self.precision():
            parts = self.loss(batch, generator)
        optimizer.zero_grad(set_to_none=True)
        parts["loss"].backward()
        clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
        optimizer.step()
        return {name: value.detach() for name, value in parts.items()}

    def policy(self, act: DtAct, generator: torch.Generator | None) -> Policy:
        return DtPolicy(act.rule(self.facts), reward_clip=self.facts.reward_clip, model=self.model)
