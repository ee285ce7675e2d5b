"""The numbers and the inequality of the paper's appendices A and B."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddf.base import FactorizedCategorical
from ddf.flow import Flow
from ddf.layers import DenoisingCoupling
from ddf.nets import MLP


class BestGuess(MLP):
    """The classifier of the appendices: predicts x_2 from x_1 as well as their joint counts allow."""

    def __init__(self, counts: torch.Tensor) -> None:
        super().__init__(2, 1, 1, hidden=8, layers=2)
        self.counts = counts

    def body(self, planes: torch.Tensor) -> torch.Tensor:
        logits = planes[:, :2] @ self.counts.to(planes.dtype)
        return torch.nn.functional.pad(logits, (0, self.out_planes - 2))


def bits(counts: torch.Tensor, coupled: bool) -> float:
    """Return the best log-likelihood in bits of a factorized distribution, before or after the coupling."""
    x = torch.cat([torch.tensor([[i, j]]).repeat(int(counts[i, j]), 1) for i in (0, 1) for j in (0, 1)])
    layers = [DenoisingCoupling(BestGuess(counts), top=2)] if coupled else []
    flow = Flow(layers, FactorizedCategorical(2, (2,)), (2,))
    z = torch.cat(flow.encode(x, batch_size=len(x)).parts, 1)
    flow.base.fit(z, smoothing=1e-9)
    return -2 * flow.bits_per_dim(x, batch_size=len(x)).mean().item()


def test_appendix_a() -> None:
    counts = torch.tensor([[4, 2], [1, 3]])
    assert f"{bits(counts, coupled=False):.2f}" == "-1.97"
    assert f"{bits(counts, coupled=True):.2f}" == "-1.85"


def test_appendix_a_swaps_the_two_events() -> None:
    counts = torch.tensor([[4, 2], [1, 3]])
    coupling = DenoisingCoupling(BestGuess(counts), top=2)
    x = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    assert coupling(x, lambda symbols, logits: None).tolist() == [[0, 0], [0, 1], [1, 1], [1, 0]]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 30), min_size=4, max_size=4).filter(any))
def test_appendix_b(table: list[int]) -> None:
    counts = torch.tensor(table).view(2, 2)
    assert bits(counts, coupled=True) >= bits(counts, coupled=False) - 1e-6
