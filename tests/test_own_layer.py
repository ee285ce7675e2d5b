"""User-defined layers, partitions and nets can do everything that the built-in ones can."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ddf
from ddf import analysis, plain, spec
from ddf.archive import Archive, ArchiveWriter
from ddf.errors import UnknownKindError
from ddf.layers import Conditional, Draw, Emit, Layer, LayerSpec, Movement, Partition
from ddf.plain import register
from ddf.shapes import Shape
from tests.zoo import PlainNet, draw_maps

K = 3


class RowDifference(Layer):
    """Subtracts from each row the row above, modulo K."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        above = torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, :-1]], dim=2)
        return (x.long() - above.long()).remainder(K).to(x.dtype)

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        return z.long().cumsum(dim=2).remainder(K).to(z.dtype)


@dataclass(frozen=True)
class RowDifferenceSpec(LayerSpec, builds=RowDifference):
    def build(self, num_classes: int, shape: Shape) -> RowDifference:
        return RowDifference()


@register
@dataclass(frozen=True)
class RowParity(Partition):
    """Splits a map into its even and its odd rows."""

    def shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        half = (shape[0], (shape[1] or 0) // 2, shape[2])
        return half, half

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :, 0::2], x[:, :, 1::2]

    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([a, b], dim=3).flatten(2, 3)


class OddRows(Conditional):
    """Factors out the odd rows, predicted from the even ones."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net, RowParity())

    def output_shape(self, shape: Shape) -> Shape:
        return self.checked_part_shapes(shape)[0]

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        even, odd = self.split(x)
        emit(odd, self.predict(even))
        return even

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        return self.merge(z, draw(self.predict(z)).to(z.dtype))

    def follow(self, places: Tensor) -> Movement:
        return Movement(*self.split(places))


@dataclass(frozen=True)
class OddRowsSpec(LayerSpec, builds=OddRows):
    net: spec.NetSpec

    def build(self, num_classes: int, shape: Shape) -> OddRows:
        return OddRows(self.net.build(num_classes, *RowParity().shapes(shape)))


def test_custom_layers_are_trained_saved_exported_compressed_sampled_and_explained(tmp_path: Path) -> None:
    maps = np.stack(draw_maps(60, (8, 8), K))
    x = torch.from_numpy(maps.astype(np.int64))[:, None]
    net = spec.DenseNetSpec(blocks=1, hidden=16)
    layers = (
        RowDifferenceSpec(),
        OddRowsSpec(net),
        spec.SqueezeSpec(),
        spec.DenoisingCouplingSpec(net, top=K),
    )
    flow = spec.FlowSpec(K, (1, 8, 8), layers).build(seed=0)
    before = float(flow.bits_per_dim(x).mean())
    ddf.fit(flow, x, config=ddf.TrainingConfig(batch_size=8, max_epochs=8, learning_rate=3e-3))
    bits = float(flow.bits_per_dim(x).mean())
    assert bits < 0.6 * before

    flow.save(tmp_path / "flow")
    again = ddf.load(tmp_path / "flow")
    assert isinstance(again, ddf.Flow)
    assert again.spec == flow.spec
    assert torch.equal(again.log_prob(x), flow.log_prob(x))
    assert torch.equal(again.decode(flow.encode(x)), x)

    model = ddf.export(flow, x, config=ddf.TrainingConfig(batch_size=8, max_epochs=1, learning_rate=3e-4))
    exact_bits = float(model.bits_per_dim(x).mean())
    assert exact_bits < 1.05 * bits
    model.save(tmp_path / "model")
    loaded = ddf.load(tmp_path / "model")
    assert isinstance(loaded, ddf.IntegerFlow)
    with ArchiveWriter(tmp_path / "maps.ddf", model, maps_per_block=60) as writer:
        for one in maps:
            writer.add(one)
    with Archive(tmp_path / "maps.ddf", loaded) as archive:
        assert all(np.array_equal(one, two) for one, two in zip(archive.values(), maps, strict=True))
    code = model.compress(maps)
    assert code is not None
    assert abs(8 * len(code) / maps.size - exact_bits) < 0.01

    for either in (flow, model):
        samples = either.sample(4, torch.Generator().manual_seed(0))
        assert samples.shape == (4, 1, 8, 8)
        found = analysis.bits_of(either, x[:5].numpy())
        expected = either.bits_per_dim(x[:5]) * 64
        np.testing.assert_allclose(found.by_symbol.reshape(5, -1).sum(axis=1), expected.numpy(), rtol=1e-6)
        assert [name for name, _, _ in found.by_layer] == ["1 OddRows", "base"]
        states = analysis.states_of(either, x[0].numpy())
        assert [(state.layer, state.left) for state in states] == [
            ("data", 64),
            ("0 RowDifference", 64),
            ("1 OddRows", 32),
            ("3 DenoisingCoupling", 32),
        ]
        assert np.array_equal(states[2].symbols, states[1].symbols[0::2])


def test_an_archive_with_an_unknown_layer_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = spec.FlowSpec(K, (1, 8, 8), (RowDifferenceSpec(),)).build()
    maps = np.stack(draw_maps(4, (8, 8), K))
    model = ddf.export(flow, torch.from_numpy(maps.astype(np.int64))[:, None], config=None)
    with ArchiveWriter(tmp_path / "maps.ddf", model, maps_per_block=4, embed_model=True) as writer:
        for one in maps:
            writer.add(one)
    assert np.array_equal(Archive(tmp_path / "maps.ddf")[3], maps[3])
    monkeypatch.delitem(plain._KINDS, "RowDifference")
    with pytest.raises(UnknownKindError, match="unknown kind 'RowDifference'; first import the module that defines it"):
        _ = Archive(tmp_path / "maps.ddf").model


def test_a_plain_module_is_trained_as_a_classifier() -> None:
    """Train an embedding to predict the next symbol."""
    first = torch.randint(8, (2000, 1), generator=torch.Generator().manual_seed(0))
    x = torch.cat([first, (first * 3 + 1) % 8], dim=1)
    coupling = ddf.DenoisingCoupling(PlainNet(8), top=8, num_classes=8)
    flow = ddf.Flow([coupling], ddf.FactorizedCategorical(8, (2,)), (2,))
    ddf.fit(flow, x, config=ddf.TrainingConfig(max_epochs=20, learning_rate=1e-2))
    assert float(flow.bits_per_dim(x).mean()) < 1.6  # 1.5 bits are needed for the first symbol
    assert torch.equal(flow.decode(flow.encode(x)), x)


def test_a_layer_that_changes_the_shape_must_implement_follow() -> None:
    class Half(Layer):
        def output_shape(self, shape: Shape) -> Shape:
            return ((shape[0] or 0) // 2, *shape[1:])

        def forward(self, x: Tensor, emit: Emit) -> Tensor:
            emit(x[:, 1:], torch.zeros(len(x), 2, 1))
            return x[:, :1]

        def inverse(self, z: Tensor, draw: Draw) -> Tensor:
            return torch.cat([z, draw(torch.zeros(len(z), 2, 1))], dim=1)

    flow = ddf.Flow([Half()], ddf.FactorizedCategorical(2, (1,)), (2,))
    x = torch.tensor([[0, 1]])
    assert torch.equal(flow.decode(flow.encode(x)), x)
    with pytest.raises(TypeError, match="layer 0: Half changes the shape of its input; implement `follow`"):
        analysis.bits_of(flow, x.numpy())


class Mistaken(Layer):
    """A layer with a mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def forward(self, x: Tensor, emit: Emit) -> Tensor:
        return {"range": x + 1, "dtype": x.double(), "inverse": (x + 1) % K}[self.mistake]

    def inverse(self, z: Tensor, draw: Draw) -> Tensor:
        return z


@dataclass(frozen=True)
class MistakenSpec(LayerSpec, builds=Mistaken):
    mistake: str

    def build(self, num_classes: int, shape: Shape) -> Mistaken:
        return Mistaken(self.mistake)


def test_mistakes_in_layers_are_reported() -> None:
    x = torch.randint(K, (20, 2), generator=torch.Generator().manual_seed(0))
    config = ddf.TrainingConfig(max_epochs=1)

    def flow(mistake: str) -> ddf.Flow:
        return spec.FlowSpec(K, (2,), (MistakenSpec(mistake),)).build()

    with pytest.raises(ValueError, match=r"a layer emits symbols outside 0…2"):
        flow("range").log_prob(x)
    with pytest.raises(ValueError, match=r"the output of layer 0, Mistaken contains the symbol 3"):
        ddf.fit(flow("range"), x, config=config, device="cpu")
    with pytest.raises(TypeError, match=r"layer 0: Mistaken returned torch.float64, but symbols are integers"):
        flow("dtype").log_prob(x)
    with pytest.raises(ddf.DdfError, match="does not restore its input: the `inverse` of a layer must undo"):
        ddf.export(flow("inverse"), x, config=None)


def test_parameters_that_are_not_trained_cause_a_warning() -> None:
    layer = Mistaken("inverse")
    layer.scale = nn.Parameter(torch.ones(1))
    flow = ddf.Flow([layer], ddf.FactorizedCategorical(K, (2,)), (2,))
    with pytest.warns(UserWarning, match="layer 0: Mistaken has parameters, but only the nets of `NetLayer`s"):
        ddf.fit(flow, torch.randint(K, (20, 2)), config=ddf.TrainingConfig(max_epochs=1), device="cpu")
