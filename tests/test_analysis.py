"""Where the bits go, and the intermediate states of samples."""

import numpy as np
import pytest
import torch

from ddf.analysis import bits_of, states_of
from ddf.base import FactorizedCategorical
from ddf.layers import ChannelSplit, DenoisingCoupling, ModularCoupling, Squeeze
from tests.zoo import INTEGER_FLOWS, LAYERS, Flow, dense, layer_flow, randomize


def samples(shape: tuple[int, ...], k: int, count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(k, size=(count, *shape))


@pytest.mark.parametrize("name", [name for name in LAYERS if "shuffle" not in name])
def test_the_bits_of_all_symbols_add_up_to_those_of_the_sample(name: str, device: str) -> None:
    flow = layer_flow(name, 3).to(device)
    x = samples(flow.shape, 3)
    found = bits_of(flow, x)
    expected = flow.bits_per_dim(torch.from_numpy(x).to(device)).cpu().numpy() * x[0].size
    assert found.by_symbol.shape == x.shape
    np.testing.assert_allclose(found.by_symbol.reshape(5, -1).sum(axis=1), expected, rtol=1e-5)
    assert sum(bits for _, _, bits in found.by_layer) == pytest.approx(expected.sum(), rel=1e-5)
    assert sum(count for _, count, _ in found.by_layer) == x.size


@pytest.mark.parametrize("name", INTEGER_FLOWS)
def test_the_bits_of_integer_flows_add_up_too(name: str, device: str) -> None:
    make, shape = INTEGER_FLOWS[name]
    model = make().to(device)
    x = samples(shape if len(shape) == 1 else (1, *shape), model.num_classes)
    expected = model.bits_per_dim(torch.from_numpy(x)).cpu().numpy() * x[0].size
    np.testing.assert_allclose(bits_of(model, x).by_symbol.reshape(5, -1).sum(axis=1), expected)


@pytest.mark.parametrize("kind", [DenoisingCoupling, ModularCoupling])
def test_states_show_what_a_coupling_changes(kind: type, device: str) -> None:
    split = ChannelSplit(1)
    coupling = (
        DenoisingCoupling(dense(3, 1, 3), top=3, partition=split)
        if kind is DenoisingCoupling
        else ModularCoupling(dense(3, 1, 3), scale=False, partition=split)
    )
    base = randomize(FactorizedCategorical(3, (4, 2, 3)))
    flow = Flow([Squeeze(), coupling], base, (1, 4, 6)).to(device)
    x = samples((1, 4, 6), 3)[0]
    data, after = states_of(flow, x)
    assert data.layer == "data"
    assert np.array_equal(data.symbols, x[0])
    assert not data.changed.any()
    given = np.zeros((4, 6), dtype=bool)
    given[::2, ::2] = True  # the first of four channels
    assert np.array_equal(after.changed, ~given)
    assert np.array_equal(after.symbols[given], x[0][given])
    z = flow.encode(torch.from_numpy(x[None]).to(device)).parts[-1].cpu()
    assert np.array_equal(after.symbols, Squeeze().restore(z)[0, 0].numpy())


def test_states_show_what_a_split_prior_keeps() -> None:
    make, shape = INTEGER_FLOWS["couplings"]
    model = make()
    states = states_of(model, samples((1, *shape), 3)[0])
    assert [state.left for state in states] == [48, 48, 24, 24]
    for state in states:
        assert (state.symbols >= 0).sum() == state.left
        assert state.changed.shape == state.symbols.shape


def test_symbols_of_another_shape_are_rejected() -> None:
    import ddf

    make, shape = INTEGER_FLOWS["any-size"]
    model, x = make(), np.zeros((2, 1, *shape), dtype=np.int64)
    assert len(ddf.analysis.states_of(model, x[0])) > 1  # `import ddf` is enough
    for wrong in (x[0], x[0, 0], np.zeros((2, 2, *shape), dtype=np.int64)):
        with pytest.raises(ValueError, match=r"pass samples of shape \(samples, 1, any, any\), not an array"):
            bits_of(model, wrong)
    for wrong in (x, x[0, 0]):
        with pytest.raises(ValueError, match=r"pass one sample of shape \(1, any, any\), not an array"):
            states_of(model, wrong)
