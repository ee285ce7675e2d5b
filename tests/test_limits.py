"""Columns with different numbers of classes: those that a column lacks have probability zero and are never sampled."""

import numpy as np
import pytest
import torch

import ddf
from ddf import architectures, spec
from ddf.base import FactorizedCategorical
from ddf.layers import ChannelSplit, DenoisingCoupling, DenoisingSplit, SplitPrior
from ddf.nets import MLP
from tests.zoo import everything, mlp, nothing, randomize

LIMITS = (2, 4, 1, 3)


def is_possible(x: torch.Tensor) -> torch.Tensor:
    return (x < torch.tensor(LIMITS)).all(dim=1)


@pytest.mark.parametrize("kind", ["priors", "splits"])
def test_impossible_classes_have_no_probability(kind: str) -> None:
    net = spec.MLPSpec(hidden=16, layers=3)
    flow = randomize(architectures.vectors(4, 4, net=net, limits=LIMITS, kind=kind).build())
    x = everything(4, (4,))
    probabilities = flow.log_prob(x, batch_size=256).exp().detach()
    assert float(probabilities[is_possible(x)].sum()) == pytest.approx(1)
    assert not probabilities[~is_possible(x)].any()
    assert is_possible(flow.sample(2000, torch.Generator().manual_seed(0), batch_size=2000)).all()


@pytest.mark.parametrize("top", [1, 2, 4])
def test_ranks_stay_within_the_limits(top: int) -> None:
    """Layers after a coupling can therefore have the limits of the symbols that it replaced."""
    coupling = DenoisingCoupling(mlp(4, 2, 2), top=top, limits=LIMITS[2:])
    x = everything(4, (4,))
    x = x[is_possible(x)]
    z = coupling(x, nothing)
    assert is_possible(z).all()
    assert torch.equal(coupling.inverse(z, nothing), x)
    assert len(z.unique(dim=0)) == len(x)


def test_the_base_smooths_only_possible_classes() -> None:
    base = FactorizedCategorical(4, (2,), limits=(2, 3)).fit(torch.tensor([[0, 2], [0, 2]]), smoothing=0.5)
    emitted: list[torch.Tensor] = []
    base(torch.tensor([[0, 0]]), lambda symbols, logits: emitted.append(logits.softmax(1)))
    torch.testing.assert_close(emitted[0][0, :, 0], torch.tensor([2.5, 0.5, 0, 0]) / 3)
    torch.testing.assert_close(emitted[0][0, :, 1], torch.tensor([0.5, 0.5, 2.5, 0]) / 3.5)


def test_data_beyond_the_limits_is_rejected() -> None:
    x = torch.randint(4, (200, 4), generator=torch.Generator().manual_seed(0))
    net = spec.MLPSpec(hidden=16, layers=3)
    for limits in ((4, 4, 4, 2), (3, 4, 4, 4)):
        flow = architectures.vectors(4, 4, net=net, limits=limits).build()
        with pytest.raises(ValueError, match=r"the data contains the symbol 3 in channel \d, but limits="):
            ddf.fit(flow, x, config=ddf.TrainingConfig(max_epochs=1), device="cpu", progress=False)
    beyond = architectures.vectors(4, 4, net=net, limits=LIMITS).build()
    beyond = beyond.log_prob(torch.tensor([[3, 3, 3, 3]])).detach()
    assert float(beyond) < -1e6


def test_flows_with_limits_have_no_integer_form() -> None:
    flow = architectures.vectors(4, 4, net=spec.MLPSpec(hidden=16, layers=3), limits=LIMITS).build()
    x = torch.zeros(10, 4, dtype=torch.long)
    with pytest.raises(ddf.DdfError, match="a flow with limits has no integer form"):
        ddf.export(flow, x, config=None)


def test_limits_are_checked_and_stored() -> None:
    net = MLP(4, 2, 2, hidden=8)
    assert SplitPrior(net, limits=[2, np.int64(3)]).limits == (2, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="limits=3 must be a sequence of numbers of classes"):
        SplitPrior(net, limits=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"limits=\(True, 3\) must be"):
        SplitPrior(net, limits=(True, 3))
    with pytest.raises(ValueError, match=r"limits=\(2, 5\) must be numbers of classes 1…4"):
        SplitPrior(net, limits=(2, 5))
    with pytest.raises(ValueError, match=r"limits=\(2,\) must have one number for each of 2 channels"):
        DenoisingSplit(net, ChannelSplit(2), limits=(2,)).output_shape((4,))
    with pytest.raises(ValueError, match=r"limits=\(1, 2, 3\) must have one number for each of 2 channels"):
        FactorizedCategorical(4, (2,), limits=(1, 2, 3))
    with pytest.raises(ValueError, match=r"limits=\(2,\) must have one number for each of 2 columns"):
        architectures.vectors(4, 2, limits=(2,))
    limited = architectures.vectors(4, 4, limits=LIMITS)
    assert spec.FlowSpec.from_json(limited.to_json()) == limited == limited.build().spec
    assert "limits" not in architectures.vectors(4, 4).to_json(), "models without limits must keep their fingerprints"
