"""The denoising split: how its corrections are counted, and what they gain."""

import numpy as np
import pytest
import torch

import ddf
from ddf.layers import ChannelSplit, DenoisingSplit, SplitPrior
from ddf.layers.denoising_split import DenoisingSplitSpec
from ddf.nets import MLP
from ddf.spec import FlowSpec, MLPSpec
from tests.zoo import as_flow, dense, everything, mlp, randomize

K = 5


class Overconfident(torch.nn.Module):
    """A classifier whose logits are multiplied by a factor."""

    def __init__(self, net: torch.nn.Module, factor: float) -> None:
        super().__init__()
        self.net, self.factor = net, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * self.factor


def sampled(n: int, seed: int) -> torch.Tensor:
    """Draw pairs from the distribution of a net: the second symbol given the first."""
    prior = SplitPrior(mlp(K, 1, 1))
    flow = as_flow(prior, (2,), K)
    return flow.sample(n, torch.Generator().manual_seed(seed), batch_size=n)


def test_a_denoising_split_without_counts_is_a_split_prior() -> None:
    x = everything(3, (4, 1, 1))
    net = dense(3, 2, 2)
    one, other = as_flow(DenoisingSplit(net), (4, 1, 1), 3), as_flow(SplitPrior(net), (4, 1, 1), 3)
    torch.testing.assert_close(one.log_prob(x), other.log_prob(x), atol=2e-3, rtol=0)  # logits on a grid of 1/1024


@pytest.mark.parametrize("factor", [3.0, 0.3])
def test_counts_correct_the_confidence_of_the_net(factor: float) -> None:
    net = Overconfident(mlp(K, 1, 1), factor)
    prior, split = SplitPrior(net, num_classes=K), DenoisingSplit(net, num_classes=K)
    split.set_counts(split.count(sampled(20_000, seed=1).split(1000)))
    x = sampled(20_000, seed=2)
    truth, uncorrected, corrected = (
        float(as_flow(layer, (2,), K).bits_per_dim(x, batch_size=20_000).mean())
        for layer in (SplitPrior(mlp(K, 1, 1)), prior, split)
    )
    assert uncorrected > truth + 0.01
    assert corrected < truth + 0.25 * (uncorrected - truth)


def test_counts_do_not_change_a_calibrated_net() -> None:
    net = mlp(K, 1, 1)
    split = DenoisingSplit(net)
    split.set_counts(split.count([sampled(20_000, seed=1)]))
    x = sampled(20_000, seed=2)
    prior = float(as_flow(SplitPrior(net), (2,), K).bits_per_dim(x, batch_size=20_000).mean())
    assert float(as_flow(split, (2,), K).bits_per_dim(x, batch_size=20_000).mean()) < prior + 0.001


def test_counts_add_up() -> None:
    split = DenoisingSplit(dense(K, 1, 3), ChannelSplit(1))
    x = torch.randint(K, (30, 4, 2, 2), generator=torch.Generator().manual_seed(0))
    counts = split.count(x.split(7))
    assert counts.shape == (2, 40, 8, 4, K)
    occurred, expected = counts
    assert occurred.sum() == 30 * 3 * 4
    torch.testing.assert_close(occurred.sum(-1), expected.sum(-1))
    torch.testing.assert_close(counts, split.count([x]))
    assert split.count([]).sum() == 0
    assert not split.set_counts(split.count([])).table.any()
    assert DenoisingSplit(mlp(2, 1, 1)).table.shape == (40, 2)


def test_fit_counts_on_validation_data(tmp_path: object) -> None:
    """Check this also for a resumed run, and after export, which counts again because its nets differ."""
    x = sampled(3000, seed=3)
    flow = FlowSpec(K, (2,), (DenoisingSplitSpec(MLPSpec(hidden=16, layers=3)),)).build(seed=0)
    config = ddf.TrainingConfig(max_epochs=3, learning_rate=1e-2)
    ddf.fit(flow, x[:2000], validation=x[2000:], config=config, run=tmp_path, device="cpu", progress=False)
    layer = flow.layers[0]
    assert isinstance(layer, DenoisingSplit)
    assert layer.table.any()
    assert torch.equal(layer.table, DenoisingSplit(layer.net).set_counts(layer.count([x[2000:]])).table)
    again = randomize(FlowSpec(K, (2,), (DenoisingSplitSpec(MLPSpec(hidden=16, layers=3)),)).build(seed=0))
    ddf.fit(again, x[:2000], validation=x[2000:], config=config, run=tmp_path, device="cpu", progress=False)
    assert torch.equal(again.log_prob(x), flow.log_prob(x))
    model = ddf.export(flow, x[:2000], validation=x[2000:])
    assert torch.equal(model.layers[0].table, model.layers[0].set_counts(model.layers[0].count([x[2000:]])).table)
    code = model.compress(x[:500].numpy().astype(np.uint8))
    assert code is not None
    assert abs(8 * len(code) / 1000 - float(model.bits_per_dim(x[:500]).mean())) < 0.05


def test_one_class_and_two() -> None:
    for k in (1, 2):
        flow = as_flow(DenoisingSplit(mlp(k, 1, 1)), (2,), k)
        x = everything(k, (2,))
        ddf.fit(flow, x.repeat(40, 1), config=ddf.TrainingConfig(max_epochs=1), device="cpu", progress=False)
        assert torch.equal(flow.decode(flow.encode(x)), x)
        assert float(flow.log_prob(x).exp().sum()) == pytest.approx(1)
        assert flow.sample(3, torch.Generator().manual_seed(0)).max() < k


def test_the_net_must_fit_the_partition() -> None:
    with pytest.raises(ValueError, match="DenoisingSplit: the net predicts symbols of shape"):
        DenoisingSplit(MLP(4, 1, 2)).output_shape((2,))
