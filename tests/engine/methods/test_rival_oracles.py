"""The losses of the rivals, and every gradient, against torchrl's: same weights, same batch, same draws, in float64.

Agreement is to 1e-9, relative and absolute: the two differ in the order of sums alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from synthetic import synthetic_dataset
from torch import Tensor, nn

from brrcrl_lib.base.devices import generator
from brrcrl_lib.critics import SquashedGaussian, Step
from brrcrl_lib.data.batch import Needs
from brrcrl_lib.methods.base import config_for, create
from brrcrl_lib.methods.cql import Draws

torchrl = pytest.importorskip("torchrl.objectives")
tensordict = pytest.importorskip("tensordict")
modules = pytest.importorskip("torchrl.modules")


def assert_equal(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def ready(name: str, **options: Any) -> tuple[Any, Step]:
    """A method in float64 whose target networks are not copies any more, and a batch with ends of episodes in it."""
    dataset = replace(synthetic_dataset(), discount=0.96875)  # torchrl keeps it in float32; this one it keeps exactly
    method: Any = create(config_for(name, "smoke", "box", device="cpu", **options), dataset.facts())
    for label, module in method.modules.items():
        module.double()
        if label.startswith("target"):
            for weight in module.parameters():
                weight.add_(0.1 * torch.randn(weight.shape, dtype=weight.dtype, generator=generator(3)))
    batch = dataset.sample(96, generator(0), Needs(next=True))
    assert 0 < int(batch.done.sum()) < 96
    step = Step.of(batch, method.actor)
    return method, Step(**{label: value.double() for label, value in vars(step).items()})


def as_tensordict(step: Step) -> Any:
    ended = (step.going_on == 0).unsqueeze(-1)
    following = {"observation": step.next_states, "reward": step.rewards.unsqueeze(-1)}
    following |= {"done": ended, "terminated": ended}
    fields = {"observation": step.states, "action": step.actions, "next": following}
    return tensordict.TensorDict(fields, [len(step.states)])


class Pair(nn.Module):
    """Q(s, a) for torchrl."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(net)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        return self.net(torch.cat([states, actions], -1))


def critics_of(method: Any) -> list[Any]:
    keys = {"in_keys": ["observation", "action"], "out_keys": ["state_action_value"]}
    return [tensordict.nn.TensorDictModule(Pair(net), **keys) for net in (method.critics.first, method.critics.second)]


class Outputs(nn.Module):
    """An actor's network, copied, with `finish` behind it."""

    def __init__(self, actor: Any, finish: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.net, self.finish = copy.deepcopy(actor.net), finish
        if hasattr(actor, "log_std"):
            self.log_std = nn.Parameter(actor.log_std.detach().clone())

    def forward(self, states: Tensor) -> Any:
        return self.finish(self, self.net(states))


def take_targets(loss: Any, method: Any) -> None:
    """Give torchrl's target critics the weights of ours."""
    slow = method.target_critics
    for (name, first), second in zip(slow.first.named_parameters(), slow.second.parameters(), strict=True):
        target = loss.target_qvalue_network_params.get(("module", "net", *name.split(".")))
        target.data.copy_(torch.stack([first, second]))


def theirs(parameters: Any) -> dict[str, Tensor]:
    """Gradients by name."""
    leaves: Iterator[Any] = parameters.items(True, True)
    return {".".join(key[1:]): value.grad for key, value in leaves if value.grad is not None}


def check_critics(method: Any, loss: Any) -> None:
    gradients = theirs(loss.qvalue_network_params)
    assert len(gradients) == len(list(method.critics.first.parameters()))
    for index, net in enumerate((method.critics.first, method.critics.second)):
        for name, weight in net.named_parameters():
            assert weight.grad is not None and weight.grad.abs().sum() > 0
            assert_equal(weight.grad, gradients[f"net.{name}"][index])


def check_actor(method: Any, parameters: Any) -> None:
    gradients = {name.removeprefix("0.module."): value for name, value in theirs(parameters).items()}
    ours = {name: weight.grad for name, weight in method.actor.named_parameters()}
    assert gradients.keys() == ours.keys()
    for name, value in gradients.items():
        assert ours[name] is not None and ours[name].abs().sum() > 0
        assert_equal(ours[name], value)


# -- TD3+BC ------------------------------------------------------------------------------------------------------


def test_td3_bc_has_the_losses_and_gradients_of_torchrl() -> None:
    method, step = ready("td3_bc")
    network = Outputs(method.actor, lambda _, outputs: outputs.tanh())
    actor = tensordict.nn.TensorDictModule(network, in_keys=["observation"], out_keys=["action"])
    bounds = (-torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    loss = torchrl.TD3BCLoss(actor, critics_of(method), bounds=bounds, loss_function="l2", alpha=2.5)
    loss.make_value_estimator(gamma=method.facts.discount)
    take_targets(loss, method)
    for name, weight in method.modules["target_actor"].net.named_parameters():
        loss.target_actor_network_params.get(("module", "net", *name.split("."))).data.copy_(weight)

    with torch.random.fork_rng():
        torch.manual_seed(5)
        noise = torch.randn_like(step.actions)
        torch.manual_seed(5)
        expected, _ = loss.qvalue_loss(as_tensordict(step))
    assert (noise.abs() * 0.2 > 0.5).any(), "the clip must be met for it to be compared"
    found = method.critic_loss(step, noise)
    expected.backward()
    found.backward()
    assert_equal(found, expected)
    check_critics(method, loss)

    expected, about = loss.actor_loss(as_tensordict(step))
    parts = method.actor_loss(step)
    expected.backward()
    parts["actor_loss"].backward()
    assert_equal(parts["actor_loss"], expected)
    assert_equal(parts["distance"], about["bc_loss"])
    check_actor(method, loss.actor_network_params)


# -- IQL ---------------------------------------------------------------------------------------------------------


def test_iql_has_the_losses_and_gradients_of_torchrl() -> None:
    method, step = ready("iql", temperature=30.0, reward_scale=1.0)
    method.modules["value"][-1].bias.data.add_(0.45)  # so that some advantages are negative
    method.actor.log_std.data.copy_(torch.tensor([-0.3, 0.1, 0.4]))
    head = Outputs(method.actor, lambda self, outputs: (outputs.tanh(), self.log_std.exp().expand_as(outputs)))
    module = tensordict.nn.TensorDictModule(head, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = modules.ProbabilisticActor(
        module, in_keys=["loc", "scale"], distribution_class=modules.IndependentNormal, spec=None
    )
    value = tensordict.nn.TensorDictModule(
        copy.deepcopy(method.modules["value"]), in_keys=["observation"], out_keys=["state_value"]
    )
    settings = {"loss_function": "l2", "temperature": 30.0, "expectile": 0.7}
    loss = torchrl.IQLLoss(actor, critics_of(method), value, **settings)
    loss.make_value_estimator(gamma=method.facts.discount)
    take_targets(loss, method)

    expected = loss(as_tensordict(step))
    (expected["loss_actor"] + expected["loss_qvalue"] + expected["loss_value"]).backward()
    found = method.losses(step)
    found["loss"].backward()
    advantage = method.target_critics(step.states, step.actions).amin(0) - method.modules["value"](step.states)[:, 0]
    assert 10 < int((30 * advantage > math.log(100)).sum()) < 86, "the limit must be met for it to be compared"
    assert 10 < int((advantage > 0).sum()) < 86, "and so must both sides of the expectile"
    assert_equal(found["actor_loss"], expected["loss_actor"])
    assert_equal(found["critic_loss"], expected["loss_qvalue"])
    assert_equal(found["value_loss"], expected["loss_value"])
    check_critics(method, loss)
    check_actor(method, loss.actor_network_params)
    gradients = theirs(loss.value_network_params)
    for name, weight in method.modules["value"].named_parameters():
        assert_equal(weight.grad, gradients[name])


# -- CQL ---------------------------------------------------------------------------------------------------------


def cql_draws(step: Step, count: int) -> Draws:
    """Random numbers in float64, of which torchrl will make its uniform ones again from the same seed."""
    size, dimensions = step.actions.shape
    with torch.random.fork_rng():
        torch.manual_seed(11)
        anywhere = torch.empty(size * count, dimensions, dtype=torch.float64).uniform_(-1, 1)
    shapes = {"backup": (size, dimensions), "actor": (size, dimensions)}
    shapes |= {"now": (size, count, dimensions), "following": (size, count, dimensions)}
    source = generator(7)
    normal = {name: torch.randn(shape, dtype=torch.float64, generator=source) for name, shape in shapes.items()}
    return Draws(anywhere=anywhere.view(size, count, dimensions), **normal)


def test_cql_has_the_losses_and_gradients_of_torchrl(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as torchrl 0.14.1 is the paper's CQL. With several sampled actions it takes the softmax over one of each
    source at a time, and it judges the actions drawn in s' by Q(s', .) instead of Q(s, .). So the gap is compared with
    one action per source, where s' = s; the next test has the whole of it, against the paper's equation."""
    method, step = ready("cql", sampled_actions=1)
    head = Outputs(method.actor, lambda _, outputs: (outputs.chunk(2, -1)[0], outputs.chunk(2, -1)[1].exp()))
    module = tensordict.nn.TensorDictModule(head, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = modules.ProbabilisticActor(
        module, in_keys=["loc", "scale"], distribution_class=modules.TanhNormal, spec=None,
        distribution_kwargs={"low": -1.0, "high": 1.0},
    )  # fmt: skip
    settings = {"loss_function": "l2", "num_random": 1, "target_entropy": -3.0}
    loss = torchrl.CQLLoss(actor, critics_of(method), min_q_weight=10.0, **settings)
    method.modules["temperature"].log.data.fill_(-0.3)
    loss.log_alpha.data = torch.tensor(-0.3, dtype=torch.float64)
    loss.make_value_estimator(gamma=method.facts.discount)
    take_targets(loss, method)
    draws = cql_draws(step, 1)
    queue: list[Tensor] = []

    def drawn(distribution: Any) -> tuple[Tensor, Tensor]:
        normal = distribution.base_dist.base_dist
        actions = (normal.loc + normal.scale * queue.pop(0)).tanh()
        return actions, distribution.log_prob(actions)

    monkeypatch.setattr("torchrl.objectives.cql.rsample_and_log_prob", drawn)
    data, still = as_tensordict(step), replace(step, next_states=step.states)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        queue += [draws.backup, draws.now.squeeze(1), draws.following.squeeze(1)]
        expected_error, _ = loss.q_loss(data)
        expected_gap, _ = loss.cql_loss(data.set(("next", "observation"), still.next_states))
    queue += [draws.actor]
    expected_actor, about = loss.actor_loss(data)
    expected_temperature, _ = loss.alpha_loss(about, mask_tensordict=data)
    (expected_error + expected_gap + expected_actor + expected_temperature).backward()

    now = method.actor(step.states)
    error, _ = method.critic_losses(step, now, draws)
    _, gap = method.critic_losses(still, now, draws)
    actor_loss, temperature_loss = method.actor_losses(step, now, draws.actor)
    (error + 10.0 * gap + actor_loss + temperature_loss).backward()
    assert_equal(error, expected_error)
    assert_equal(10.0 * gap, expected_gap)
    assert_equal(actor_loss, expected_actor)
    assert_equal(temperature_loss, expected_temperature)
    check_critics(method, loss)
    check_actor(method, loss.actor_network_params)
    assert_equal(method.modules["temperature"].log.grad, loss.log_alpha.grad)


def test_cql_sums_over_all_sampled_actions_of_a_state() -> None:
    """State by state and action by action, as the paper's equation reads."""
    count = 3
    method, step = ready("cql", sampled_actions=count)
    draws = cql_draws(step, count)
    with torch.no_grad():
        _, gap = method.critic_losses(step, method.actor(step.states), draws)
        expected = 0.0
        for net in (method.critics.first, method.critics.second):
            for row in range(len(step.states)):
                state, total = step.states[row], 0.0
                value = lambda action, net=net, state=state: net(torch.cat([state, action])).item()  # noqa: E731
                for index in range(count):
                    total += math.exp(value(draws.anywhere[row, index])) * 2**3
                    for states, noise in ((step.states, draws.now), (step.next_states, draws.following)):
                        mean, log_std = method.actor.net(states[row]).chunk(2)
                        raw = mean + log_std.exp() * noise[row, index]
                        normal = torch.distributions.Normal(mean, log_std.exp())
                        density = (normal.log_prob(raw).exp() / (1 - raw.tanh() ** 2)).prod().item()
                        total += math.exp(value(raw.tanh())) / density
                expected += (math.log(total) - value(step.actions[row])) / len(step.states)
    assert gap.item() == pytest.approx(expected, rel=1e-9)


def test_a_squashed_gaussian_is_a_density() -> None:
    """Its integral over the box is 1, by the mean of p(a) over a grid; far out log p is still finite."""
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[1:-1]
    one = SquashedGaussian(torch.tensor([[0.3]]).double(), torch.tensor([[-0.5]]).double())
    noise = (torch.atanh(grid) - 0.3) / math.exp(-0.5)
    actions, log_prob = one.sample(noise.view(1, -1, 1))
    torch.testing.assert_close(actions.flatten(), grid)
    assert (log_prob.exp().mean() * 2).item() == pytest.approx(1, abs=1e-3)
    assert torch.isfinite(
        SquashedGaussian(torch.zeros(1, 2), torch.zeros(1, 2)).sample(torch.full((1, 2), 30.0))[1]
    ).all()
