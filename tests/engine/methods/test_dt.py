"""Decision Transformer: causal, blind to padding, equal to torch's own blocks; plays as if it had seen everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from supervised_cases import (
    TINY,
    batch_of,
    check_company,
    check_loading,
    check_never_looks,
    check_refuses_discrete,
    undiscounted,
)
from synthetic import synthetic_dataset
from torch import nn

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.data.batch import Needs
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.methods.base import create
from brrcrl_lib.methods.dt import ALL, STATES, Block, DecisionTransformer, Dropout, DtAct, DtConfig, paper_target
from brrcrl_lib.training import fit

SMALL = {"context": 4, "layers": 2, "width": 8, "heads": 2, "warmup": 15, "max_episode": 30}


def tiny(**options) -> DtConfig:
    return DtConfig(**{**TINY, **SMALL, **options})


@pytest.fixture
def data() -> OfflineDataset:
    return undiscounted(synthetic_dataset())


def model_of(data: OfflineDataset, **options) -> DecisionTransformer:
    """A model whose weights are large enough for everything to matter."""
    model = create(tiny(**options), data.facts()).model
    for weight in model.parameters():
        weight.data.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    return model


def parts(batch) -> tuple[torch.Tensor, ...]:
    return batch.observations, batch.actions, batch.returns, batch.timesteps, batch.mask


# -- windows -----------------------------------------------------------------------------------------------------


def test_windows_against_a_literal_loop(data) -> None:
    indices = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:60]
    batch = data.batch(indices, Needs(context=7))
    starts, padded = data.starts.tolist(), 0
    for row, index in enumerate(indices.tolist()):
        first = max(start for start in starts if start <= index)
        steps = list(range(max(first, index - 6), index + 1))
        missing = 7 - len(steps)
        padded += missing
        assert batch.mask[row].tolist() == [False] * missing + [True] * len(steps)
        assert batch.timesteps[row, missing:].tolist() == [step - first for step in steps]
        for place, step in enumerate(steps, start=missing):
            assert torch.equal(batch.observations[row, place], data.observations[step])
            assert torch.equal(batch.actions[row, place], data.actions[step])
            assert batch.returns[row, place] == data.rtg[step]
    assert padded > 0


# -- the network -------------------------------------------------------------------------------------------------


def test_a_later_token_never_changes_an_earlier_prediction(data) -> None:
    model = model_of(data)
    batch = data.batch(torch.tensor([20, 27]), Needs(context=4))
    values = parts(replace(batch, mask=torch.ones_like(batch.mask)))
    before = model(*values)
    for which in range(4):  # observation, action, return, time
        for place in range(4):
            changed = [value.clone() for value in values]
            changed[which][:, place] = changed[which][:, place] + 5
            after = model(*changed)
            from_here = place + 1 if which == 1 else place  # an action is predicted before it is seen
            assert torch.equal(before[:, :from_here], after[:, :from_here])
            assert (before[:, from_here:] != after[:, from_here:]).any(-1).all()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_padding_never_matters(data, dropout: float) -> None:
    method = create(tiny(dropout=dropout), data.facts())
    batch = data.batch(torch.tensor([0, 1, 2, 20, 21]), Needs(context=4))
    hole = ~batch.mask
    assert hole.sum() == 3 + 2 + 1
    garbage = replace(
        batch,
        observations=torch.where(hole.unsqueeze(-1), torch.tensor(777.0), batch.observations),
        actions=torch.where(hole.unsqueeze(-1), torch.tensor(-99.0), batch.actions),
        returns=torch.where(hole, torch.tensor(1e5), batch.returns),
        timesteps=torch.where(hole, torch.tensor(29), batch.timesteps),
    )
    seen = []
    for values in (batch, garbage):
        method.model.zero_grad()
        loss = method.loss(values, torch.Generator().manual_seed(4))["loss"]
        loss.backward()
        seen.append((loss.detach(), {name: weight.grad.clone() for name, weight in method.model.named_parameters()}))
    assert torch.equal(seen[0][0], seen[1][0])
    for name in seen[0][1]:
        torch.testing.assert_close(seen[0][1][name], seen[1][1][name], atol=1e-8, rtol=1e-5)


def test_every_token_may_look_somewhere() -> None:
    """A row of attention without a single place to look would be 0 / 0 on some devices."""
    mask = torch.tensor([[False, False, True], [False, True, True]])
    allowed = DecisionTransformer._allowed(torch.zeros(2, 9, 1), mask)
    assert allowed.shape == (2, 1, 9, 9) and allowed.any(-1).all()
    for row in range(2):
        for now in range(9):
            seen = [past for past in range(9) if past == now or (past < now and mask[row, past // 3])]
            assert allowed[row, 0, now].nonzero().squeeze(-1).tolist() == seen


def test_a_padded_window_predicts_as_the_short_one(data) -> None:
    model = model_of(data)
    batch = data.batch(torch.tensor([1]), Needs(context=4))
    short = data.batch(torch.tensor([1]), Needs(context=2))
    assert short.mask.all() and batch.mask.sum() == 2
    torch.testing.assert_close(model(*parts(batch))[:, 2:], model(*parts(short)[:4]), atol=1e-6, rtol=1e-5)


def test_a_block_equals_torchs_own() -> None:
    torch.manual_seed(0)
    block = Block(12, 3)
    other = nn.TransformerEncoderLayer(12, 3, 48, dropout=0.0, norm_first=True, batch_first=True)
    state = block.state_dict()
    joined = {kind: torch.cat([state[f"{name}.{kind}"] for name in ("query", "key", "value")])
              for kind in ("weight", "bias")}  # fmt: skip
    other.load_state_dict({
        "self_attn.in_proj_weight": joined["weight"], "self_attn.in_proj_bias": joined["bias"],
        "self_attn.out_proj.weight": state["out.weight"], "self_attn.out_proj.bias": state["out.bias"],
        "linear1.weight": state["mlp.0.weight"], "linear1.bias": state["mlp.0.bias"],
        "linear2.weight": state["mlp.2.weight"], "linear2.bias": state["mlp.2.bias"],
        "norm1.weight": state["norm_attention.weight"], "norm1.bias": state["norm_attention.bias"],
        "norm2.weight": state["norm_mlp.weight"], "norm2.bias": state["norm_mlp.bias"],
    })  # fmt: skip
    tokens = torch.randn(2, 9, 12)
    allowed = torch.ones(9, 9, dtype=torch.bool).tril()
    expected = other(tokens, src_mask=~allowed)
    found = block(tokens, ALL, allowed[None, None], Dropout())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    rows = block(tokens, STATES, allowed[None, None], Dropout())
    torch.testing.assert_close(rows, expected[:, 1::3], atol=1e-5, rtol=1e-5)


def test_the_model_against_a_literal_one(data) -> None:
    """One window without padding, token by token, with attention written out."""
    model = model_of(data, heads=1)
    batch = data.batch(torch.tensor([24]), Needs(context=4))
    assert batch.mask.all()
    tokens = []
    for place in range(4):
        time = model.embed_time.weight[batch.timesteps[0, place]]
        scaled = (batch.returns[0, place] / 1000).view(1)  # the paper's scale: the data come from Hopper
        state = (batch.observations[0, place] - data.observations.mean(0)) / data.observations.std(0, correction=0)
        for layer, value in ((model.embed_return, scaled), (model.embed_state, state),
                             (model.embed_action, batch.actions[0, place])):  # fmt: skip
            tokens.append(model.norm_embedded(layer.weight @ value + layer.bias + time))
    for block in model.blocks:
        normal = [block.norm_attention(token) for token in tokens]
        updated = []
        for now, token in enumerate(tokens):
            scores = torch.stack([block.query(normal[now]) @ block.key(normal[past]) for past in range(now + 1)])
            weights = (scores / 8**0.5).softmax(0)
            seen = sum(weight * block.value(normal[past]) for past, weight in enumerate(weights))
            token = token + block.out(seen)
            hidden = (block.mlp[0].weight @ block.norm_mlp(token) + block.mlp[0].bias).clamp(min=0)
            updated.append(token + block.mlp[2].weight @ hidden + block.mlp[2].bias)
        tokens = updated
    expected = torch.stack([model.action(model.norm_out(token)).tanh() for token in tokens[1::3]])
    torch.testing.assert_close(model(*parts(batch))[0], expected, atol=1e-5, rtol=1e-4)


def test_the_loss_against_a_literal_one(data) -> None:
    method = create(tiny(dropout=0.0), data.facts())
    batch = data.batch(torch.tensor([0, 1, 2, 25]), Needs(context=4))
    predicted = method.model(*parts(batch)).detach()
    errors = [float((predicted[row, place, number] - batch.actions[row, place, number]) ** 2)
              for row in range(4) for place in range(4) if batch.mask[row, place] for number in range(3)]  # fmt: skip
    assert len(errors) == 3 * (1 + 2 + 3 + 4)
    assert method.loss(batch, None)["loss"].item() == pytest.approx(sum(errors) / len(errors), rel=1e-5)


def test_dropout_keeps_the_mean_and_repeats_itself() -> None:
    values = torch.ones(200_000)
    one, two = (Dropout(0.3, torch.Generator().manual_seed(5))(values) for _ in range(2))
    assert torch.equal(one, two)
    assert one.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert one.mean() == pytest.approx(1, abs=0.01) and (one == 0).float().mean() == pytest.approx(0.3, abs=0.01)
    assert Dropout()(values) is values


def test_boxes_of_any_size_are_read_in_units(data) -> None:
    wide = replace(data, actions=3 + 2 * data.actions, action_low=torch.ones(3), action_high=torch.full((3,), 5.0))
    losses = []
    for source in (data, wide):
        method = create(tiny(), source.facts())
        losses.append(method.loss(batch_of(method, source), torch.Generator().manual_seed(0))["loss"])
    torch.testing.assert_close(*losses, atol=1e-6, rtol=1e-5)
    policy = create(tiny(), wide.facts()).policy(DtAct(), None)
    policy.reset(5)
    actions = policy.act(wide.observations[:5])
    assert (actions >= 1).all() and (actions <= 5).all()


# -- playing -----------------------------------------------------------------------------------------------------


def test_alone_as_in_company_and_as_a_literal_rerun(data) -> None:
    method = create(tiny(), data.facts())
    model = method.modules["model"] = model_of(data)
    steps, act = 9, DtAct(target_return=50.0)
    observations = data.observations[: steps * 4].view(steps, 4, 11)
    rewards = torch.linspace(0, 3, steps * 4).view(steps, 4).double()
    check_company(lambda: method.policy(act, None), observations, rewards)

    policy = method.policy(act, None)
    policy.reset(4)
    taken: list[torch.Tensor] = []
    for step in range(steps):
        actions = policy.act(observations[step])
        for episode in range(4):
            past = range(max(0, step - 3), step + 1)  # a context of four steps
            returns = [50.0 - float(rewards[:t, episode].sum()) for t in past]
            done = [taken[t][episode] if t < step else torch.full((3,), 9.0) for t in past]  # the last: unseen
            window = (observations[list(past), episode], torch.stack(done), torch.tensor(returns), torch.tensor(past))
            expected = model(*(value.unsqueeze(0) for value in window))[0, -1]
            torch.testing.assert_close(actions[episode], expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(policy.trace["target"], (50 - rewards[:step].sum(0)).float())
        taken.append(actions)
        policy.observe(rewards[step])


def test_steps_beyond_the_longest_episode_share_an_embedding(data) -> None:
    model = model_of(data)
    batch = data.batch(torch.tensor([24]), Needs(context=4))
    far = [parts(replace(batch, timesteps=torch.full((1, 4), step))) for step in (29, 30, 5_000)]
    assert torch.equal(model(*far[0]), model(*far[1])) and torch.equal(model(*far[0]), model(*far[2]))


def test_targets_are_the_papers_or_the_datas(data) -> None:
    facts = data.facts()
    assert facts.env == "Hopper-v5"
    published = replace(facts, dataset="d4rl/hopper/medium-replay-v2")  # whatever these data reach
    assert DtAct().rule(published).value == 3600 and DtAct(share=0.5).rule(published).value == 1800
    assert facts.return_range[1] < 3600 and DtAct().rule(facts).value == facts.return_range[1]
    assert DtAct().rule(replace(facts, return_range=(0.0, 4_000.0))).value == 3600
    assert paper_target(replace(facts, env="mujoco/HalfCheetah-v4")) == 12_000
    assert paper_target(replace(facts, env="Walker2d-v2")) == 5_000
    for other in (replace(facts, env="Pendulum-v1"), replace(facts, env=None), replace(facts, discount=0.9)):
        assert DtAct().rule(other).value == facts.return_range[1]
        assert tiny().scale(other) == max(map(abs, facts.return_range))
    assert DtAct(target_return=7).rule(facts).value == 7
    assert tiny().scale(facts) == 1000 and tiny(return_scale=3).scale(facts) == 3
    discounted = DtAct().rule(replace(facts, discount=0.5))
    discounted.reset(1)
    discounted.observe(torch.ones(1))
    assert discounted.wanted.item() == pytest.approx((facts.return_range[1] - 1) / 0.5)


# -- training ----------------------------------------------------------------------------------------------------


def test_a_loaded_run_plays_alike(data, tmp_path: Path) -> None:
    check_loading(tiny(), data, tmp_path)


def test_training_and_acting_never_look_at_a_value(data) -> None:
    check_never_looks(tiny(), data)


def test_discrete_data_is_refused(data) -> None:
    check_refuses_discrete(tiny(), data)


def test_learning_lowers_the_loss(data) -> None:
    run = fit(tiny(steps=200, width=16, dropout=0.0, learning_rate=3e-3, log_every=20), data)
    assert run.metrics[-1]["loss"] < 0.85 * run.metrics[0]["loss"]


def test_the_rate_rises_and_gradients_are_clipped(data, monkeypatch) -> None:
    method = create(tiny(warmup=4, learning_rate=1e-2, gradient_clip=1e-3), data.facts())
    seen: list[SimpleNamespace] = []
    optimizer = method.optimizers["adamw"]
    step = type(optimizer).step

    def spy(self) -> None:
        norm = torch.stack([weight.grad.norm() for weight in method.model.parameters()]).norm()
        seen.append(SimpleNamespace(rate=self.param_groups[0]["lr"], norm=float(norm)))
        step(self)

    monkeypatch.setattr(type(optimizer), "step", spy)
    for number in range(6):
        method.update(batch_of(method, data), number, torch.Generator().manual_seed(number))
    assert [entry.rate for entry in seen] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])
    assert [entry.norm for entry in seen] == pytest.approx([1e-3] * 6, rel=1e-2)
    assert optimizer.param_groups[0]["weight_decay"] == 1e-4


@pytest.mark.parametrize("options", [{"mixed_precision": True}, {"heads": 1}, {"context": 1}, {"weight_decay": 0.0}])
def test_every_switch_trains(data, options: dict) -> None:
    assert len(fit(tiny(**options), data).metrics) == 4


@pytest.mark.parametrize(("options", "message"), [
    ({"context": 0}, "context must be at least 1"),
    ({"heads": 3}, "width must be a multiple of heads"),
    ({"dropout": 1.0}, "dropout must lie in"),
    ({"gradient_clip": 0.0}, "gradient_clip must lie in"),
    ({"return_scale": -1.0}, "return_scale must lie in"),
    ({"warmup": 0}, "warmup must be at least 1"),
    ({"weight_decay": -1.0}, "weight_decay must lie in"),
])  # fmt: skip
def test_wrong_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**options)


@pytest.mark.parametrize("options", [{"share": 0.0}, {"target_return": float("nan")}, {"target_return": float("inf")}])
def test_wrong_targets_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        DtAct(**options)


def test_presets() -> None:
    paper = with_preset(DtConfig, "paper", "box")
    assert (paper.layers, paper.heads, paper.width, paper.context, paper.dropout) == (3, 1, 128, 20, 0.1)
    assert (paper.steps, paper.batch_size, paper.learning_rate, paper.warmup) == (100_000, 64, 1e-4, 10_000)
    assert with_preset(DtConfig, "smoke", "box").steps == 40
