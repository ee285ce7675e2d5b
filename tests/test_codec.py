"""What was compressed anywhere comes out as it was everywhere, or not at all."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ddf import TrainingConfig, architectures, fit, spec
from ddf.codec import (
    Archive,
    ArchiveWriter,
    DamagedArchiveError,
    IntegerFlow,
    ModelError,
    WrongModelError,
    compress,
    decompress,
    export,
    recover,
)
from ddf.codec.blocks import Method
from ddf.codec.coder import Decoder, Encoder, Prediction
from ddf.codec.frequencies import frequencies
from ddf.codec.integer import ExactAffine, InexactNetError, quantise_net
from ddf.codec.varint import read_varint, write_varint
from ddf.nets import MLP
from tests import reference_decoder
from tests.zoo import INTEGER_FLOWS, VALUES, draw_maps, exact

GOLDEN = Path(__file__).parent / "golden"
FIXED = 58
"""What an archive of one array costs beside its block."""


@pytest.fixture(scope="module")
def model() -> IntegerFlow:
    """An integer flow that has learned what discs look like."""
    found = Archive(GOLDEN / "label-maps-1.ddf").model
    assert found is not None
    return found


@pytest.fixture(scope="module")
def maps() -> list[np.ndarray]:
    return draw_maps(20, (43, 38), 4, seed=5)


def write(path: Path, model: IntegerFlow | None, arrays: list[np.ndarray], **options: object) -> bytes:
    with ArchiveWriter(path, model, overwrite=True, **options) as writer:
        for i, array in enumerate(arrays):
            writer.add(array, f"map {i}")
    return path.read_bytes()


# ---- Frequencies and the coder ---------------------------------------------------------------------------------------


@given(hnp.arrays(np.int32, st.tuples(st.integers(1, 5), st.integers(1, 300)), elements=st.integers(-(2**20), 2**20)))
def test_frequencies_add_up_and_follow_the_logits(logits: np.ndarray) -> None:
    found = frequencies(torch.from_numpy(logits)).numpy()
    assert (found >= 1).all()
    assert (found.sum(axis=1) == 65536).all()
    assert np.array_equal(found, reference_decoder.frequencies(logits.astype(np.int64)))
    for row, shares in zip(logits, found, strict=True):
        others = row < row.max()
        assert (np.diff(shares[others][np.argsort(row[others])]) >= 0).all()
        assert shares.argmax() == row.argmax()  # the first of the likeliest


def test_frequencies_are_those_of_a_softmax() -> None:
    logits = torch.randint(-2000, 2000, (100, 12), generator=torch.Generator().manual_seed(0))
    want = torch.softmax(logits.double() * np.log(2) / 256, dim=1) * 65536
    assert (frequencies(logits) - want).abs().max() < 24


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 90), st.integers(0, 2**32))
def test_the_coder_gives_back_what_it_got(classes: int, own: int, others: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    table = frequencies(torch.from_numpy(generator.integers(-9000, 9000, (classes, classes)))).numpy()
    # Rows that lie in memory column by column: the library under the coder takes them for others.
    rows = np.asfortranarray(frequencies(torch.from_numpy(generator.integers(-4000, 4000, (own, classes)))).numpy())
    place = generator.permutation(np.concatenate([generator.integers(0, classes, others), np.full(own, -1)]))
    prediction = Prediction(table, place, rows)
    symbols = generator.integers(0, classes, own + others)
    encoder = Encoder()
    encoder.put(symbols, prediction)
    code = encoder.finish()
    assert np.array_equal(Decoder(code).take(prediction), symbols)
    assert len(code) * 8 <= encoder.bits + 9
    if classes > 1:
        plain = reference_decoder.RangeDecoder(code)
        order, groups = prediction.groups()
        said = 0.0
        for which, shares in groups:
            for i, where in enumerate(order[which]):
                row = shares if shares.ndim == 1 else shares[i]
                assert plain.symbol(row) == symbols[where]
                said += 16 - np.log2(row[symbols[where]])
        assert abs(encoder.bits - said) < 0.1 + 1e-3 * said


@given(st.integers(0, 2**60))
def test_numbers_of_any_size(number: int) -> None:
    assert read_varint(b"x" + write_varint(number) + b"y", 1) == (number, 1 + len(write_varint(number)))


# ---- Integer flows ---------------------------------------------------------------------------------------------------


def code(model: IntegerFlow, x: np.ndarray) -> bytes:
    encoder = Encoder()
    for symbols, predictions in model.forward(x):
        for part, prediction in zip(symbols, predictions, strict=True):
            encoder.put(part, prediction)
    return encoder.finish()


def decode(model: IntegerFlow, data: bytes, batch: int, shape: tuple[int, ...]) -> np.ndarray:
    decoder = Decoder(data)
    return model.inverse(batch, shape, lambda predictions: np.stack([decoder.take(part) for part in predictions]))


@pytest.mark.parametrize("name", INTEGER_FLOWS)
def test_an_integer_flow_decodes_what_it_coded(name: str, device: str) -> None:
    make, shape = INTEGER_FLOWS[name]
    flow = make().to(device)
    assert flow.is_exact()
    x = flow.classes.to_symbols(np.stack(draw_maps(5, shape, flow.num_classes)))
    x = x[:, None] if len(shape) == 2 else x
    data = code(flow, x)
    assert np.array_equal(decode(flow, data, 5, x.shape[1:]), x)
    assert code(make(), x) == data, "on a CPU it is the same"


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (30, 2), (8, 8), (13, 7), (24, 17)])
def test_maps_of_any_size(model: IntegerFlow, size: tuple[int, int]) -> None:
    x = np.random.default_rng(0).integers(0, 4, (3, 1, *size))
    assert np.array_equal(decode(model, code(model, x), 3, (1, *size)), x)


def test_what_is_predicted_of_a_map_depends_on_that_map_alone(model: IntegerFlow, maps: list[np.ndarray]) -> None:
    x = model.classes.to_symbols(np.stack(maps))[:, None]
    together = model.forward(x)
    for i in (0, 7, 19):
        for (symbols, predictions), (alone, (prediction,)) in zip(together, model.forward(x[i : i + 1]), strict=True):
            assert np.array_equal(symbols[i], alone[0])
            assert np.array_equal(predictions[i].place, prediction.place)
            assert np.array_equal(predictions[i].rows, prediction.rows)


def test_a_net_is_not_asked_about_flat_places(model: IntegerFlow) -> None:
    x = np.full((1, 1, 64, 64), 2)
    asked = sum(len(prediction.rows) for _, (prediction,) in model.forward(x))
    assert asked < x.size / 4  # at the edges
    assert len(code(model, x)) < 40  # of which the base, 64 pixels, takes most


def test_a_model_file_is_the_model(tmp_path: Path) -> None:
    for make, shape in INTEGER_FLOWS.values():
        flow = make()
        flow.save(tmp_path / "model")
        again = IntegerFlow.load(tmp_path / "model")
        assert again.fingerprint == flow.fingerprint
        assert again.to_bytes() == flow.to_bytes()
        x = flow.classes.to_symbols(np.stack(draw_maps(2, shape, flow.num_classes)))
        x = x[:, None] if len(shape) == 2 else x
        assert code(again, x) == code(flow, x)
    fingerprints = {make().fingerprint for make, _ in INTEGER_FLOWS.values()}
    assert len(fingerprints) == len(INTEGER_FLOWS)
    flow = architectures.label_maps(4, levels=1).build()
    flow.save(tmp_path / "float")
    with pytest.raises(ModelError, match="holds no integer flow; `export` makes one"):
        IntegerFlow.load(tmp_path / "float")
    data = bytearray((tmp_path / "model").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(ModelError, match="damaged"):
        IntegerFlow.load(tmp_path / "model")


def test_export_costs_next_to_nothing() -> None:
    maps = np.stack(draw_maps(150, (32, 32), 4, seed=2))
    symbols = torch.from_numpy(np.searchsorted(VALUES, maps))[:, None]
    train, test = symbols[:130], symbols[130:]
    flow = architectures.label_maps(4, levels=2, pixels=10, near=6, hidden=(16,)).build()
    fit(flow, train, config=TrainingConfig(batch_size=4, max_epochs=4, learning_rate=3e-3))
    before = {name: tensor.clone() for name, tensor in flow.state_dict().items()}
    want = float(flow.bits_per_dim(test).mean())
    integer = export(flow, train)
    encoder = Encoder()
    for parts, predictions in integer.forward(test.numpy()):
        for part, prediction in zip(parts, predictions, strict=True):
            encoder.put(part, prediction)
    assert encoder.bits / test.numel() < 1.01 * want
    assert all(torch.equal(tensor, before[name]) for name, tensor in flow.state_dict().items()), "the flow is as it was"


def test_export_of_couplings() -> None:
    """Each layer is trained on what the integer layers before it leave."""
    maps = np.stack(draw_maps(80, (8, 8), 3, seed=2)) % 3
    data = torch.from_numpy(maps.astype(np.int64))[:, None]
    net = spec.DenseNetSpec(blocks=1, hidden=16)
    layers = (spec.SqueezeSpec(), spec.DenoisingCouplingSpec(net, top=3), spec.SplitPriorSpec(net))
    flow = spec.FlowSpec(3, (1, 8, 8), layers).build()
    config = TrainingConfig(batch_size=8, max_epochs=6, learning_rate=3e-3)
    fit(flow, data, config=config)
    integer = export(flow, data, config=TrainingConfig(batch_size=8, max_epochs=2, learning_rate=1e-3))
    archive = compress(maps, integer)
    assert np.array_equal(decompress(archive, integer), maps)
    assert len(archive) * 8 < 1.1 * float(flow.bits_per_dim(data).sum()) * 64 + 8 * FIXED + 64


def test_a_net_that_sums_too_much_is_carried_by_doubles_or_refused() -> None:
    affine = ExactAffine(torch.ones(1, 4000, 3, 3), torch.zeros(1), input_bits=7)
    affine.eval()
    assert affine.bound() > 1 << 24
    assert affine.weight.dtype == torch.float64
    assert affine.is_exact()
    small = ExactAffine(torch.ones(1, 4), torch.zeros(1), input_bits=7).eval()
    assert small.weight.dtype == torch.float32
    assert small.is_exact()
    weight = 1 - torch.rand(1, 900, 3, 3, generator=torch.Generator().manual_seed(0)) / 4
    middle = ExactAffine(weight, torch.zeros(1), input_bits=7).eval()
    assert middle.tap_bound() < 1 << 24 < middle.bound()
    assert middle.weight.dtype == torch.float32
    assert middle.is_exact()
    assert middle.fixed is not None
    ones = torch.full((1, 900, 3, 3), 127.0)
    sums = middle._fixed_products(ones, middle.fixed[0])
    assert int(sums[0, 0, 1, 1]) == 127 * int(middle.fixed[0].long().sum())
    with pytest.raises(InexactNetError, match="fit no accumulator"):
        ExactAffine(torch.ones(1, 4), torch.full((1,), 1e30), input_bits=7).eval()


def test_a_device_that_cannot_add_is_not_used(model: IntegerFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = IntegerFlow.from_bytes(model.to_bytes())
    right = ExactAffine._fixed_products
    monkeypatch.setattr(
        ExactAffine,
        "_fixed_products",
        lambda self, x, weight: right(self, x, weight) + (1 if x.dtype == torch.float32 else 0),
    )
    with pytest.warns(UserWarning, match="double is used"):
        flow.to("cpu")
    assert flow.is_exact()
    x = np.random.default_rng(0).integers(0, 4, (1, 1, 20, 20))
    assert code(flow, x) == code(model, x)


def test_what_has_no_integer_form() -> None:
    with pytest.raises(InexactNetError, match="there is no integer form of MLP"):
        quantise_net(MLP(3, 1, 1, activation="tanh"), [])
    with pytest.raises(ModelError, match="there is no integer form of ModularCoupling"):
        export(architectures.eight_gaussians("modular").build(), torch.zeros(4, 2, dtype=torch.long))


# ---- Archives --------------------------------------------------------------------------------------------------------


def assorted() -> list[np.ndarray]:
    """Arrays that the model was made for, and others."""
    generator = np.random.default_rng(0)
    discs = draw_maps(4, (26, 30), 4, seed=8)
    return [
        discs[0],
        discs[1].astype(np.int64),
        discs[2].astype(">i2"),
        np.stack(discs),
        np.stack(discs)[:, None][None][0],
        discs[0].astype(bool),
        discs[3] + 1,
        np.array(3, dtype=np.uint8),
        np.array(-7, dtype=np.int32),
        np.empty((0, 5), dtype=np.uint16),
        np.empty((3, 0), dtype=np.uint8),
        generator.integers(-(2**62), 2**62, (3, 4)),
        generator.integers(0, 2**64 - 1, 9, dtype=np.uint64),
        generator.integers(0, 255, (2, 3, 4, 5), dtype=np.uint8),
        np.zeros((1, 1, 1, 1, 1, 2), dtype=np.int8),
        discs[0][::2, ::-1],
    ]


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 3}, {"embed_model": True}, {"batch_size": 4}])
def test_every_array_of_integers_comes_back(tmp_path: Path, model: IntegerFlow, options: dict[str, object]) -> None:
    arrays = assorted()
    write(tmp_path / "a.ddf", model, arrays, **options)
    archive = Archive(tmp_path / "a.ddf", None if "embed_model" in options else model)
    assert len(archive) == len(arrays)
    for (name, got), (i, want) in zip(archive, enumerate(arrays), strict=True):
        assert name == f"map {i}"
        assert got.dtype == want.dtype.newbyteorder("=")
        assert got.shape == want.shape
        assert np.array_equal(got, want)
    for (_, got), (_, again) in zip(archive, archive.items(batch_size=3), strict=True):
        assert np.array_equal(got, again)
    methods = {block.kind.method for block in archive.blocks()}
    assert methods == {Method.MODEL, Method.LZMA, Method.RAW}
    decoded = reference_decoder.decode((tmp_path / "a.ddf").read_bytes(), model.to_bytes())
    assert all(np.array_equal(got, want) for (_, got), want in zip(decoded, arrays, strict=True))


@settings(deadline=None, max_examples=40)
@given(hnp.arrays(st.sampled_from(["u1", "i1", "u2", "<i4", ">i8", "?"]), hnp.array_shapes(min_dims=0, min_side=0)))
def test_any_array_comes_back(array: np.ndarray) -> None:
    data = compress(array, None)
    again = decompress(data)
    assert np.array_equal(again, array)
    assert again.shape == array.shape
    assert len(data) <= array.nbytes + 64


def test_no_array_of_integers(model: IntegerFlow) -> None:
    with pytest.raises(TypeError, match="an archive holds arrays of integers, but this one has the dtype float64"):
        compress(np.zeros((3, 3)), model)


def test_arrays_are_found_by_name_and_number(tmp_path: Path, model: IntegerFlow) -> None:
    arrays = draw_maps(50, (20, 20), 4)
    with ArchiveWriter(tmp_path / "a.ddf", model) as writer:
        for i, array in enumerate(arrays):
            writer.add(array[: 10 + i % 3], f"ordner {i % 4}/größe {i}.png" if i % 5 else "")
    archive = Archive(tmp_path / "a.ddf", model)
    for i in (49, 0, 17, 16, 15, 31, 33, 48):
        assert np.array_equal(archive[i], arrays[i][: 10 + i % 3])
        if i % 5:
            name = f"ordner {i % 4}/größe {i}.png"
            assert name in archive
            assert np.array_equal(archive[name], arrays[i][: 10 + i % 3])
    assert np.array_equal(archive[-1], arrays[-1][: 10 + 49 % 3])
    with pytest.raises(KeyError, match="holds no array called 'x'"):
        archive["x"]
    with pytest.raises(IndexError, match="holds 50 arrays, but number 50 was asked for"):
        archive[50]


def test_random_access_reads_little(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    write(tmp_path / "a.ddf", model, maps * 1, embed_model=False)
    archive = Archive(tmp_path / "a.ddf", model)
    read: list[int] = []
    kept = archive._bytes
    archive._bytes = lambda start, count: (read.append(count), kept(start, count))[1]  # type: ignore[method-assign,func-returns-value]
    archive[18]
    assert sum(read) < archive.size / 3


def test_names_are_unique(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
        writer.add(np.arange(3), "a")
        with pytest.raises(ValueError, match="there is an array called 'a' already"):
            writer.add(np.arange(3), "a")
        with pytest.raises(ValueError, match="contains a zero"):
            writer.add(np.arange(3), "a\0")
    assert Archive(tmp_path / "a.ddf").names == ["a"]


def test_what_a_map_costs_beyond_the_models_bits(tmp_path: Path, model: IntegerFlow) -> None:
    """8 bytes if it stands on its own; in blocks 0.2 % and 16 bytes for each block."""
    maps = draw_maps(64, (43, 38), 4, seed=11)
    for per_block in (1, 16, 64):
        buffer = io.BytesIO()
        writer = ArchiveWriter(buffer, model, maps_per_block=per_block)
        for array in maps:
            writer.add(array)
        writer.close()
        archive = Archive(buffer.getvalue(), model)
        assert {block.kind.method for block in archive.blocks()} == {Method.MODEL}
        blocks = -(-len(maps) // per_block)
        most = 8 * blocks if per_block == 1 else 0.002 * writer.bits / 8 + 16 * blocks
        assert archive.size <= FIXED + writer.bits / 8 + most


def test_an_archive_of_one_is_small(model: IntegerFlow, maps: list[np.ndarray]) -> None:
    for array in maps:
        buffer = io.BytesIO()
        writer = ArchiveWriter(buffer, model)
        writer.add(array)
        writer.close()
        assert len(buffer.getvalue()) <= FIXED + writer.bits / 8 + 8


def test_archives_can_be_added_to(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    path = tmp_path / "a.ddf"
    for first in range(0, 20, 7):
        with ArchiveWriter(path, model, append=True, embed_model=True) as writer:
            for i, array in enumerate(maps[first : first + 7], first):
                writer.add(array, f"{i}")
            with pytest.raises(ValueError, match="there is an array called '0' already"):
                writer.add(maps[0], "0")
    archive = Archive(path)
    assert archive.names == [str(i) for i in range(20)]
    assert all(np.array_equal(archive[str(i)], array) for i, array in enumerate(maps))
    assert all(np.array_equal(got, want) for (_, got), want in zip(archive, maps, strict=True))
    other = exact(architectures.label_maps(4, levels=1).build())
    with pytest.raises(WrongModelError, match=model.fingerprint.hex()):
        ArchiveWriter(path, other, append=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ddf"]


def test_truths_may_be_any_bytes(tmp_path: Path) -> None:
    truths = np.array([0, 255, 1, 7], dtype=np.uint8).view(np.bool_)  # as Pillow has them
    write(tmp_path / "a.ddf", None, [truths])
    assert Archive(tmp_path / "a.ddf")[0].tolist() == [False, True, True, True]


def test_existing_files_are_not_replaced_unasked(tmp_path: Path) -> None:
    write(tmp_path / "a.ddf", None, [np.arange(3)])
    with pytest.raises(FileExistsError, match="overwrite=True replaces it, append=True adds to it"):
        ArchiveWriter(tmp_path / "a.ddf", None)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ArchiveWriter(tmp_path / "no" / "a.ddf", None)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ddf"]


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 3}])
def test_several_processes_make_and_read_the_same_archive(
    tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray], options: dict[str, int]
) -> None:
    arrays = [*maps, *assorted()]
    alone = write(tmp_path / "one.ddf", model, arrays, **options)
    assert write(tmp_path / "two.ddf", model, arrays, processes=2, **options) == alone
    archive = Archive(tmp_path / "one.ddf", model)
    for (one_name, one), (two_name, two) in zip(archive, archive.items(2, processes=2), strict=True):
        assert one_name == two_name
        assert np.array_equal(one, two)
        assert one.dtype == two.dtype


def test_a_wrong_model_is_named(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    data = compress(maps[0], model)
    with pytest.raises(WrongModelError, match=f"needs the model {model.fingerprint.hex()}, but none was given"):
        decompress(data)
    other = exact(architectures.label_maps(4, levels=1).build())
    with pytest.raises(WrongModelError, match=f"but the one given is {other.fingerprint.hex()}"):
        decompress(data, other)
    assert np.array_equal(decompress(compress(maps[0], model, embed_model=True), other), maps[0])


def test_encoding_is_verified(model: IntegerFlow, maps: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    right = IntegerFlow.inverse

    def wrong(self: IntegerFlow, *arguments: object) -> np.ndarray:
        x = right(self, *arguments)  # type: ignore[arg-type]
        x[0, 0, 0, 0] = (x[0, 0, 0, 0] + 1) % 4
        return x

    monkeypatch.setattr(IntegerFlow, "inverse", wrong)
    with pytest.raises(RuntimeError, match="did not decode to itself; nothing was written"):
        compress(maps[0], model)
    compress(maps[0], model, verify=False)


# ---- Damage ----------------------------------------------------------------------------------------------------------


def check_damaged(data: bytes, model: IntegerFlow, want: dict[str, np.ndarray]) -> None:
    """Right data or a clear error, and never anything else."""
    try:
        archive = Archive(data, model)
        for name, array in archive:
            assert np.array_equal(array, want[name])
    except (DamagedArchiveError, WrongModelError):
        pass


def test_every_changed_byte_and_every_cut_is_noticed(tmp_path: Path, model: IntegerFlow) -> None:
    arrays = [*draw_maps(3, (12, 11), 4), np.arange(4)]
    want = {f"map {i}": array for i, array in enumerate(arrays)}
    data = write(tmp_path / "a.ddf", model, arrays)
    generator = np.random.default_rng(0)
    for i in range(len(data)):
        for change in (1, 128, int(generator.integers(1, 256))):
            damaged = bytearray(data)
            damaged[i] ^= change
            check_damaged(bytes(damaged), model, want)
        with pytest.raises(DamagedArchiveError):
            Archive(data[:i], model)


def test_no_array_passes_for_another() -> None:
    """Every byte of a small archive changed to many others: by name and number there is the right array or none."""
    buffer = io.BytesIO()
    arrays = [np.full(4, i, np.uint8) for i in range(6)]
    with ArchiveWriter(buffer, None) as writer:
        for i, array in enumerate(arrays):
            writer.add(array, f"m{i}" if i % 2 else "")
    data = buffer.getvalue()
    for i in range(len(data)):
        for value in {*range(0, 256, 9), data[i] ^ 1, data[i] ^ 2, data[i] ^ 3}:
            damaged = bytearray(data)
            damaged[i] = value
            try:
                archive = Archive(bytes(damaged))
            except (DamagedArchiveError, WrongModelError):
                continue
            for number, array in enumerate(arrays):
                for which in (number, f"m{number}"):
                    with contextlib.suppress(DamagedArchiveError, KeyError, IndexError):
                        assert np.array_equal(archive[which], array)
            found = recover(bytes(damaged))
            assert len(found.arrays) >= 5
            assert (len(found.arrays) == 6) or found.lost


@pytest.mark.parametrize("shape", [(3000, 1, 1), (1, 300000), (40000, 2), (2, 2, 2, 3), (1, 70, 9)])
def test_thin_maps_cost_no_more_than_others(model: IntegerFlow, shape: tuple[int, ...]) -> None:
    """Padding must not make a thousand times as many pixels of them as there are."""
    array = np.zeros(shape, dtype=np.uint8)
    assert np.array_equal(decompress(compress(array, model), model), array)
    assert model.padded_pixels((1, 1, 300000)) == 8 * 300000


def test_large_maps_are_cut_into_tiles(model: IntegerFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddf.codec.blocks.TILE", 32)
    array = draw_maps(1, (70, 50), 4)[0]
    seen = []
    right = IntegerFlow.forward
    monkeypatch.setattr(IntegerFlow, "forward", lambda self, x: (seen.append(x.shape), right(self, x))[1])
    assert np.array_equal(decompress(compress(array, model), model), array)
    assert seen == [(1, 1, 32, 32), (1, 1, 32, 18)] * 2 + [(1, 1, 6, 32), (1, 1, 6, 18)]


def test_bad_arguments_are_named(tmp_path: Path, model: IntegerFlow) -> None:
    array = np.zeros((4, 4), np.uint8)
    with pytest.raises(TypeError, match="the model must be an IntegerFlow, as"):
        compress(array, "model.safetensors")  # type: ignore[arg-type]
    with pytest.raises(IsADirectoryError, match="is a folder"):
        ArchiveWriter(tmp_path, None)
    with pytest.raises(ValueError, match="one or the other"):
        ArchiveWriter(tmp_path / "a", None, append=True, overwrite=True)
    with pytest.raises(TypeError, match="to a path or a file that is open"):
        ArchiveWriter(5, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="processes=0, but it must be a positive integer"):
        ArchiveWriter(tmp_path / "a", None, processes=0)
    with ArchiveWriter(tmp_path / "a", None) as writer:
        writer.add(array, "x")
        with pytest.raises(TypeError, match="the name of an array is a text, not 5"):
            writer.add(array, 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no text that can be written as UTF-8"):
            writer.add(array, "\udcff")
    archive = Archive(tmp_path / "a")
    with pytest.raises(TypeError, match="by its name or its number, not by None"):
        archive[None]  # type: ignore[index]
    archive.close()
    with pytest.raises(ValueError, match="is closed"):
        archive[0]


def test_recovery_without_header_or_model(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    data = bytearray(write(tmp_path / "a.ddf", model, [*maps[:3], np.arange(4)], embed_model=True))
    data[8] ^= 1
    found = recover(bytes(data))
    assert len(found.arrays) == 4
    assert found.lost
    data = bytearray(write(tmp_path / "a.ddf", model, [*maps[:3], np.arange(4)]))
    found = recover(bytes(data))
    assert [name for name, _ in found.arrays] == ["map 3"]
    assert model.fingerprint.hex() in found.lost[0]


def test_a_shared_block_without_contents_is_no_obstacle(tmp_path: Path) -> None:
    arrays = [np.full(40, i) for i in range(9)]
    data = write(tmp_path / "a.ddf", None, arrays, maps_per_block=3)
    blocks = list(Archive(data).blocks())
    end = data.index(blocks[1].payload) + len(blocks[1].payload)
    length = 1 + 3 * len(b"\5map 0") + 4 + len(blocks[1].payload)  # how many, their names, the checksum, the code
    head = write_varint(length << 2)
    start = end - length - len(head)
    assert data[start:].startswith(head)
    damaged = data[:start] + write_varint(0) + data[end:]
    found = recover(damaged)
    assert [int(array[0]) for _, array in found.arrays] == [0, 1, 2, 6, 7, 8]
    assert found.lost


def test_random_damage(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    arrays = [*maps, *assorted()]
    want = {f"map {i}": array for i, array in enumerate(arrays)}
    for options in ({}, {"maps_per_block": 5}):
        data = write(tmp_path / "a.ddf", model, arrays, **options)
        generator = np.random.default_rng(1)
        for _ in range(60):
            damaged = bytearray(data)
            kind = generator.integers(4)
            first, length = generator.integers(len(data)), generator.integers(1, 40)
            if kind == 0:
                damaged[first : first + length] = generator.bytes(length)
            elif kind == 1:
                del damaged[first : first + length]
            elif kind == 2:
                damaged[first:first] = generator.bytes(length)
            else:
                other = generator.integers(len(data))
                damaged[first : first + length] = data[other : other + length]
            check_damaged(bytes(damaged), model, want)


@pytest.mark.parametrize("options", [{}, {"maps_per_block": 2}])
def test_one_damaged_map_does_not_take_the_others_along(
    tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray], options: dict[str, int]
) -> None:
    arrays = [array[: 20 + i % 2] for i, array in enumerate(maps)]
    want = {f"map {i}": array for i, array in enumerate(arrays)}
    data = write(tmp_path / "a.ddf", model, arrays, **options)
    whole = recover(data, model)
    assert not whole.lost
    assert len(whole.arrays) == len(arrays)
    generator = np.random.default_rng(2)
    for i in generator.choice(len(data), 60, replace=False):
        damaged = bytearray(data)
        damaged[i] ^= int(generator.integers(1, 256))
        found = recover(bytes(damaged), model)
        assert found.lost
        assert len(found.arrays) >= len(arrays) - options.get("maps_per_block", 1)
        for name, array in found.arrays:
            assert np.array_equal(array, want[name])


def test_a_cut_archive_gives_back_what_is_whole(tmp_path: Path, model: IntegerFlow, maps: list[np.ndarray]) -> None:
    data = write(tmp_path / "a.ddf", model, maps)
    found = recover(data[: len(data) // 2], model)
    assert 5 < len(found.arrays) < 15
    for name, array in found.arrays:
        assert np.array_equal(array, maps[int(name.split()[1])])


def test_no_archive_at_all(tmp_path: Path) -> None:
    for data in (b"", b"PK", b"\x89PNG\r\n\x1a\n" + bytes(100)):
        with pytest.raises(DamagedArchiveError, match="is no ddf archive"):
            Archive(data)
        with pytest.raises(DamagedArchiveError):
            recover(data)


def test_a_kill_leaves_the_old_archive_or_nothing(tmp_path: Path) -> None:
    script = """
import os, signal, sys
import numpy as np
from ddf.codec import ArchiveWriter
writer = ArchiveWriter(sys.argv[1], None, overwrite=True)
for i in range(50):
    writer.add(np.random.default_rng(i).integers(0, 200, 5000), str(i))
if len(sys.argv) > 2:
    os.kill(os.getpid(), signal.SIGKILL)
writer.close()
"""
    old = write(tmp_path / "old.ddf", None, [np.arange(5)])
    for name in ("old.ddf", "new.ddf"):
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path / name), "kill"], check=False)
        assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "old.ddf").read_bytes() == old
    assert not (tmp_path / "new.ddf").exists()


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def make_a_mistake() -> None:
        with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
            writer.add(np.arange(3))
            raise KeyError("a mistake")

    with pytest.raises(KeyError):
        make_a_mistake()
    assert list(tmp_path.iterdir()) == []


# ---- For years, on any machine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.ddf")), ids=lambda path: path.stem)
def test_golden_archives_are_read(path: Path) -> None:
    with np.load(path.with_suffix(".npz")) as file:
        want = [file[str(i)] for i in range(len(file.files))]
    for found in (list(Archive(path)), reference_decoder.decode(path.read_bytes())):
        for (_, array), right in zip(found, want, strict=True):
            assert np.array_equal(array, right)
            assert array.dtype == right.dtype


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*-1.ddf")), ids=lambda path: path.stem)
def test_golden_archives_are_written_again(path: Path) -> None:
    """The same bytes as ever, whatever the size of the batch."""
    archive = Archive(path)
    for batch_size in (1, 4):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, archive.model, embed_model=True, batch_size=batch_size) as writer:
            for name, array in archive:
                writer.add(array, name)
        assert buffer.getvalue() == path.read_bytes()


@pytest.mark.parametrize(
    "environment",
    [
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"},
    ],
    ids=lambda environment: environment["ATEN_CPU_CAPABILITY"],
)
def test_other_instruction_sets_write_the_same(environment: dict[str, str]) -> None:
    script = """
import io, sys
from ddf.codec import Archive, ArchiveWriter
for path in sys.argv[1:]:
    archive = Archive(path)
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, archive.model, embed_model=True) as writer:
        for name, array in archive:
            writer.add(array, name)
    assert buffer.getvalue() == open(path, "rb").read(), path
"""
    paths = [str(path) for path in sorted(GOLDEN.glob("*-1.ddf"))]
    subprocess.run([sys.executable, "-c", script, *paths], check=True, env={**os.environ, **environment})
