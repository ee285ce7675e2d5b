"""A net that looks at the pixels around, and the flow that is made of such nets."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ddf import FlowSpec, TrainingConfig, architectures, fit, spec
from ddf.codec import PRESETS, Archive, ArchiveWriter, Preset, train_codec
from ddf.layers import SplitPrior
from ddf.nets import ContextNet
from ddf.symbols import one_hot
from tests.zoo import VALUES, draw_maps, randomize

OFFSETS = ((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, -1, 0), (0, 2, -1))


def make(near: int = 3) -> ContextNet:
    return randomize(ContextNet(4, 2, 1, OFFSETS, near, hidden=(16, 8)))


def test_logits_have_the_layout_of_cross_entropy(device: str) -> None:
    net = make().to(device)
    x = torch.randint(4, (3, 2, 6, 7), device=device)
    logits = net(x)
    assert logits.shape == (3, 4, 1, 6, 7)
    assert net.output_shape((2, 6, None)) == (1, 6, None)
    F.cross_entropy(logits, torch.randint(4, (3, 1, 6, 7), device=device)).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_symbols_and_one_hot_vectors_are_the_same_to_it() -> None:
    net = make().double()
    x = torch.randint(4, (2, 2, 5, 6))
    vectors = one_hot(x, 4, torch.float64)
    torch.testing.assert_close(net(vectors), net(x))
    vectors.requires_grad_()
    logits = net(vectors)
    torch.testing.assert_close(logits, net(x))
    logits.sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.abs().sum() > 0


def test_a_pixel_reaches_those_that_look_at_it_and_no_others() -> None:
    net = make()
    x = torch.randint(4, (1, 2, 9, 9), generator=torch.Generator().manual_seed(0))
    for channel in range(2):
        changed = x.clone()
        changed[0, channel, 4, 5] = (changed[0, channel, 4, 5] + 1) % 4
        different = (net(changed) != net(x)).any(dim=1)[0, 0]
        looking = {(4 - row, 5 - column) for where, row, column in OFFSETS if where == channel}
        assert {tuple(place) for place in different.nonzero().tolist()} <= looking
        assert different.any()


def test_flat_places_are_looked_up() -> None:
    net = make(near=3)
    x = torch.full((1, 2, 8, 8), 2)
    x[0, 0, 6, 6] = 1
    logits = net(x)[0, :, 0]
    table = net.flat(torch.eye(4))[2]
    seen = F.pad(x, [2] * 4, value=4)
    for row in range(8):
        for column in range(8):
            near = [seen[0, c, 2 + row + i, 2 + column + j] for c, i, j in OFFSETS[:3]]
            assert torch.allclose(logits[:, row, column], table) == (len(set(map(int, near))) == 1)


def test_flat_places_are_found_at_once(device: str) -> None:
    net = make(near=4).to(device)
    generator = torch.Generator().manual_seed(0)
    for share in (0.02, 0.2):
        x = torch.where(torch.rand(3, 2, 9, 14, generator=generator) < share, 1, 2)
        symbols = F.pad(x, [net.reach] * 4, value=4).to(torch.int16)
        flat = net.is_flat(symbols)
        assert 0 < flat.sum() < flat.numel()
        assert torch.equal(net.is_flat_at_once(symbols.to(device)).cpu(), flat)


def test_a_map_that_is_flat_everywhere() -> None:
    net = ContextNet(4, 1, 1, ((0, 0, 0),), near=1, hidden=(3,))
    net(torch.full((1, 1, 6, 5), 2)).sum().backward()
    assert not net.stack[0].weight.grad.any()
    assert net.flat.weight.grad.any()


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="predicts one channel, but out_channels=2"):
        ContextNet(4, 2, 2, OFFSETS, near=3)
    with pytest.raises(ValueError, match="near=6 and 5 offsets in 2 channels do not go together"):
        ContextNet(4, 2, 1, OFFSETS, near=6)
    with pytest.raises(ValueError, match="in 1 channels do not go together"):
        ContextNet(4, 1, 1, OFFSETS, near=3)
    with pytest.raises(ValueError, match="at least one hidden layer"):
        ContextNet(4, 2, 1, OFFSETS, near=3, hidden=())
    with pytest.raises(ValueError, match="fine=2, but of 2 levels at least one is not fine"):
        architectures.label_maps(4, levels=2, fine=2)


@pytest.mark.parametrize(
    ("fine", "levels", "squared_distances"),
    [
        (0, 2, [1, 1, 2, 4, 4, 8]),
        (1, 2, [1] * 8 + [2] * 4 + [4, 4, 8]),
        (2, 3, [1] * 8 + [2] * 4 + [4] * 8 + [8] * 4 + [16, 16, 32]),
    ],
)
def test_every_pixel_is_predicted_from_the_nearest_that_are_known(
    fine: int, levels: int, squared_distances: list[int]
) -> None:
    """Where each offset is on the map, told by the layers that take the map apart."""
    flow = architectures.label_maps(3, levels, pixels=8, near=4, hidden=(8,), fine=fine).build()
    assert FlowSpec.from_json(flow.spec.to_json()) == flow.spec
    rows = torch.arange(64).view(1, 1, 64, 1).expand(1, 1, 64, 64)
    columns = rows.transpose(2, 3)
    places = [rows, columns]
    nearest = []
    for layer in flow.layer_list():
        if not isinstance(layer, SplitPrior):
            places = [layer.arrange(part) for part in places]
            continue
        (row_given, row), (column_given, column) = (layer.given_and_target(part) for part in places)
        i, j = row.shape[2] // 2, row.shape[3] // 2  # a pixel in the middle
        distances = [
            float(
                (row_given[0, c, i + down, j + right] - row[0, 0, i, j]) ** 2
                + (column_given[0, c, i + down, j + right] - column[0, 0, i, j]) ** 2
            )
            for c, down, right in layer.net.offsets
        ]
        every = ((row_given - row[0, 0, i, j]) ** 2 + (column_given - column[0, 0, i, j]) ** 2).flatten().sort().values
        assert distances == every[: len(distances)].tolist()
        nearest.append(distances[0])
        places = [row_given, column_given]
    assert nearest == squared_distances
    assert places[0].shape == (1, 1, 64 >> levels, 64 >> levels)


def test_it_learns() -> None:
    maps = torch.from_numpy(np.searchsorted(VALUES, np.stack(draw_maps(60, (32, 32), 4))))[:, None]
    flow = architectures.label_maps(4, levels=2, pixels=10, near=6, hidden=(16,)).build()
    before = float(flow.bits_per_dim(maps).mean())
    fit(flow, maps, config=TrainingConfig(batch_size=2, max_epochs=4, learning_rate=3e-3))
    after = float(flow.bits_per_dim(maps).mean())
    assert after < 0.35 < before
    z = flow.encode(maps[:4])
    assert torch.equal(flow.decode(z), maps[:4])


def test_a_codec_in_one_call(tmp_path: Path) -> None:
    """Maps of different sizes and values; what is coded is smaller than what a general compressor makes of it."""
    maps = [part[: 40 + i % 9, : 36 + i % 7] for i, part in enumerate(draw_maps(40, (48, 44), 4))]
    preset = Preset(pixels=10, near=6, hidden=(12,), fine=1)
    model = train_codec(maps, preset, steps=400, run=tmp_path / "run")
    assert model.classes.values == VALUES
    again = train_codec(maps, preset, steps=400, run=tmp_path / "run")
    assert again.fingerprint == model.fingerprint
    others = draw_maps(10, (47, 51), 4, seed=9)
    sizes = []
    for codec in (model, None):
        with ArchiveWriter(tmp_path / "a.ddf", codec, overwrite=True) as writer:
            for part in others:
                writer.add(part)
        archive = Archive(tmp_path / "a.ddf", codec)
        assert all(np.array_equal(one, two) for (_, one), two in zip(archive, others, strict=True))
        sizes.append(archive.size)
    assert sizes[0] < 0.8 * sizes[1]


def test_presets() -> None:
    for preset in PRESETS.values():
        flow = preset.flow(12)
        assert sum(isinstance(layer, spec.SqueezeSpec) for layer in flow.layers) == 7
    with pytest.raises(ValueError, match="preset='quick', but it must be one of fast, best"):
        train_codec([np.zeros((9, 9), np.uint8)] * 3, "quick")
    with pytest.raises(ValueError, match=r"not on uint8 of shape \(9, 9, 3\)"):
        train_codec([np.zeros((9, 9, 3), np.uint8)] * 3)
    with pytest.raises(ValueError, match="at least two label maps, not on 1"):
        train_codec([np.zeros((9, 9), np.uint8)])
    with pytest.raises(ValueError, match="400 different values"):
        train_codec([np.arange(400).reshape(20, 20)] * 3)
    with pytest.raises(ValueError, match="steps=0, but it must be a positive integer"):
        train_codec([np.zeros((9, 9), np.uint8)] * 3, steps=0)
    with pytest.raises(ValueError, match="does not fit 64 bits with a sign"):
        train_codec([np.full((9, 9), 1 << 63, np.uint64)] * 3)
    with pytest.raises(ValueError, match="are too small to train a codec on"):
        train_codec([np.zeros((1, 9), np.uint8)] * 3)
