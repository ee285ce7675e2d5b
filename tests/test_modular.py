"""Modular couplings: their arithmetic, their choice of scales, and their straight-through gradient."""

import pytest
import torch

from ddf.base import FactorizedCategorical
from ddf.flow import Flow
from ddf.layers import ModularCoupling
from ddf.nets import MLP
from ddf.symbols import one_hot
from ddf.training import relaxed_log_prob
from tests.zoo import nothing


class Constant(MLP):
    """Predicts the same logits for every input."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(logits.shape[0], 1, logits.shape[1], hidden=8, layers=2)
        with torch.no_grad():
            self.stack[-1].bias[: logits.numel()] = logits.flatten()


def test_modular_coupling_scales_and_shifts() -> None:
    logits = torch.zeros(91, 2)
    logits[7 * 3, 0] = 5.0  # location 21
    logits[10, 1] = 5.0  # scale 10
    x = torch.stack([torch.zeros(91, dtype=torch.long), torch.arange(91)], dim=1)
    z = ModularCoupling(Constant(logits))(x, nothing)
    assert torch.equal(z[:, 1], (10 * torch.arange(91) + 21) % 91)


@pytest.mark.parametrize("k", [4, 6, 8, 9, 91])
def test_scales_that_are_not_invertible_are_never_chosen(k: int) -> None:
    logits = torch.zeros(k, 2)
    logits[:, 1] = torch.tensor([0.0 if s % 2 and s % 3 and s % 7 and s % 13 else 100.0 for s in range(k)])
    x = torch.stack([torch.zeros(k, dtype=torch.long), torch.arange(k)], dim=1)
    coupling = ModularCoupling(Constant(logits))
    z = coupling(x, nothing)
    assert sorted(z[:, 1].tolist()) == list(range(k))
    assert torch.equal(coupling.inverse(z, nothing), x)


def test_two_classes_have_only_one_scale() -> None:
    assert ModularCoupling.outputs_per_symbol(2, scale=True) == 1
    assert ModularCoupling.outputs_per_symbol(3, scale=True) == 2
    assert ModularCoupling.outputs_per_symbol(3, scale=False) == 1


def test_the_straight_through_gradient_is_that_of_the_softmax() -> None:
    """A linear function of the result has the gradient that the softmax would give instead of the choice."""
    k, temperature = 5, 0.3
    weights = torch.randn(k)
    x = torch.tensor([[0, 3]])
    net = Constant(torch.randn(k, 1))
    bias = net.stack[-1].bias
    vectors = ModularCoupling(net, scale=False, temperature=temperature).relax(one_hot(x, k), nothing)
    (vectors[0, :, 1] @ weights).backward()
    logits = bias.detach()[:k].clone().requires_grad_(True)
    chances = (logits / temperature).softmax(0)
    sum(chances[t] * weights[(3 + t) % k] for t in range(k)).backward()
    assert logits.grad is not None
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad[:k], logits.grad)


def test_the_plain_relaxation_is_the_sum_of_z_log_p() -> None:
    """This holds for very unequal p too: unlike with other powers, the gradient is not bounded."""
    torch.manual_seed(0)
    k = 5
    coupling = ModularCoupling(MLP(k, 1, 2, hidden=16), temperature=2.0)
    torch.nn.init.normal_(coupling.net.stack[-1].weight)
    flow = Flow([coupling], FactorizedCategorical(k, (2,)), (2,))
    torch.nn.init.normal_(flow.base.logits, std=10.0)
    x = torch.randint(k, (50, 2))
    weights = list(flow.parameters())
    relaxed = torch.autograd.grad(relaxed_log_prob(flow, x, power=0.0).sum(), weights)
    z = coupling.relax(one_hot(x, k, torch.float32), lambda symbols, logits: None)
    expected = torch.autograd.grad((z * flow.base.logits.log_softmax(0)).sum(), weights)
    for ours, theirs in zip(relaxed, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
