"""Arrays of zarr, formats 2 and 3: round trips of every dtype, in other processes, and errors."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

import ddf.numcodecs
import ddf.zarr
from ddf import registry
from ddf.archive.chunks import decode_chunk, encode_chunk
from ddf.errors import DamagedFileError, WrongModelError
from ddf.labelmaps import CausalFlow, pretrained
from ddf.shapes import Array
from tests import reference_decoder

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", ">u2", ">i4", ">i8")


def maps(dtype: str, count: int = 3, seed: int = 0) -> Array:
    """Return maps (count, 45, 61) with labels from the whole range of the dtype."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        labels = np.array([0, 1])
    else:
        limits = np.iinfo(kind)
        labels = np.array([limits.min, 0, 1, 7, 100, limits.max], dtype=kind)
    return labels[rng.integers(len(labels), size=(count, 5, 7)).repeat(9, 1).repeat(9, 2)[:, :, :61]].astype(kind)


@pytest.fixture
def other() -> CausalFlow:
    arrays = dict(pretrained().arrays)
    arrays["bias"] = arrays["bias"] + 1
    return CausalFlow(arrays)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DDF_MODELS", raising=False)
    monkeypatch.setattr(registry, "_in_use", {})


# ---- Chunks


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (0, 4), (45, 61), (2, 3, 20, 20)])
def test_chunks_are_restored(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.resize(maps(dtype), shape)
    again = decode_chunk(encode_chunk(array, pretrained()), pretrained(), shape, np.dtype(dtype))
    assert np.array_equal(again, array)
    assert again.shape == shape
    assert again.dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("array", [maps("int32", 1)[0, :20, :30], np.arange(5), np.zeros((3, 0), np.uint8)], ids=str)
def test_chunks_have_the_documented_format(array: Array) -> None:
    assert np.array_equal(reference_decoder.chunk(encode_chunk(array, pretrained()), pretrained().to_bytes()), array)


def test_codes_of_numcodecs_have_the_documented_format() -> None:
    array = np.asfortranarray(maps(">u2", 1)[0, :12, :20])
    data = ddf.numcodecs.LabelCodec().encode(array)
    assert data[0] == 1
    assert np.array_equal(reference_decoder.chunk(data[1:], pretrained().to_bytes()), array.T)


def test_every_damaged_byte_of_a_chunk_is_noticed(other: CausalFlow) -> None:
    array = maps("uint8", 1)
    data = encode_chunk(array, pretrained())
    for i in range(len(data)):
        for damaged in (data[:i], data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]):
            with pytest.raises(DamagedFileError):
                decode_chunk(damaged, pretrained(), array.shape, array.dtype)
    with pytest.raises(DamagedFileError):
        decode_chunk(data + b"\0", pretrained(), array.shape, array.dtype)
    with pytest.raises(DamagedFileError, match="encoded with another model"):
        decode_chunk(data, other)
    with pytest.raises(DamagedFileError, match="holds an array of shape"):
        decode_chunk(data, pretrained(), (1, 2, 3))
    with pytest.raises(DamagedFileError, match="holds uint8, not int64"):
        decode_chunk(data, pretrained(), None, np.dtype("int64"))


# ---- zarr 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_are_restored(dtype: str, tmp_path: Path) -> None:
    x = maps(dtype)
    options: dict[str, Any] = {"serializer": ddf.zarr.LabelCodec(), "compressors": None}
    array = zarr.create_array(tmp_path / "a.zarr", data=x, chunks=(2, 30, 40), **options)
    assert np.array_equal(np.asarray(array[:]), x)
    again = zarr.open_array(tmp_path / "a.zarr")
    assert again.dtype == x.dtype.newbyteorder("=")
    assert np.array_equal(np.asarray(again[1:, 3:33, 50]), x[1:, 3:33, 50])


def test_chunks_are_smaller_than_those_of_zstd(tmp_path: Path) -> None:
    x = maps("uint8", 8)
    ours = zarr.create_array(
        tmp_path / "a", data=x, chunks=(1, 45, 61), serializer=ddf.zarr.LabelCodec(), compressors=None
    )
    usual = zarr.create_array(tmp_path / "b", data=x, chunks=(1, 45, 61))
    assert ours.nbytes_stored() < usual.nbytes_stored()


@pytest.mark.parametrize("inner", [(1, 45, 61), (1, 15, 20)])
def test_shards(inner: tuple[int, ...], tmp_path: Path) -> None:
    x = maps("uint16", 4)
    shards = tuple(2 * side for side in inner)
    array = zarr.create_array(
        tmp_path / "a", data=x, chunks=inner, shards=shards, serializer=ddf.zarr.LabelCodec(), compressors=None
    )
    assert np.array_equal(np.asarray(array[:]), x)
    array[1, 3:9, 4:50] = 7
    x[1, 3:9, 4:50] = 7
    assert np.array_equal(np.asarray(zarr.open_array(tmp_path / "a")[:]), x)


def test_chunks_that_are_not_label_maps_are_restored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i, x in enumerate((rng.integers(0, 1 << 40, 500), rng.integers(0, 256, (40, 50), dtype=np.uint8))):
        array = zarr.create_array(tmp_path / str(i), data=x, serializer=ddf.zarr.LabelCodec(), compressors=None)
        assert np.array_equal(np.asarray(array[:]), x)


def test_other_processes_need_no_registration(tmp_path: Path) -> None:
    x = maps("uint8")
    zarr.create_array(tmp_path / "a", data=x, chunks=(1, 45, 61), serializer=ddf.zarr.LabelCodec(), compressors=None)
    zarr.create_array(tmp_path / "b", data=x, chunks=(1, 45, 61), zarr_format=2, compressors=ddf.numcodecs.LabelCodec())
    script = "import sys, zarr; print(sum(int(zarr.open_array(path)[:].sum()) for path in sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a"), str(tmp_path / "b")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == str(2 * int(x.sum())), done.stderr


def test_the_metadata_names_the_model_only(other: CausalFlow, tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "a", shape=(4, 5), dtype="uint8", serializer=ddf.zarr.LabelCodec(other), compressors=None
    )
    codecs = json.loads((tmp_path / "a" / "zarr.json").read_text())["codecs"]
    assert codecs == [{"name": "ddf.labels", "configuration": {"model": other.fingerprint.hex()}}]


def test_a_missing_model_is_named_and_can_be_supplied(other: CausalFlow, tmp_path: Path) -> None:
    x = maps("uint8")
    for name, location in (("a", None), ("b", str(tmp_path / "models"))):
        codec = ddf.zarr.LabelCodec(other, location=location)
        zarr.create_array(tmp_path / name, data=x, chunks=(1, 45, 61), serializer=codec, compressors=None)
    with pytest.raises(WrongModelError, match=f"this zarr array needs the model {other.fingerprint.hex()}: add it"):
        zarr.open_array(tmp_path / "a")[:]
    registry.add_model(other, tmp_path / "models")
    assert np.array_equal(np.asarray(zarr.open_array(tmp_path / "b")[:]), x)
    registry._in_use.clear()
    with pytest.raises(WrongModelError):
        zarr.open_array(tmp_path / "a")[:]
    registry.add_model(other)
    assert np.array_equal(np.asarray(zarr.open_array(tmp_path / "a")[:]), x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "http://127.0.0.1:9/secret"}, "is not a fingerprint"),
        ({"model": "/etc/passwd"}, "is not a fingerprint"),
        ({"model": None}, "is not a fingerprint"),
        ({}, "is not a fingerprint"),
        ({"model": "0" * 32, "location": 5}, "neither a path nor a URL"),
        ({"model": "0" * 32, "future": 1}, "unknown settings"),
    ],
)
def test_metadata_names_nothing_but_models(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Metadata comes with the data: opening an array must not open files or URLs of its choice as models."""
    zarr.create_array(tmp_path / "a", shape=(4, 5), dtype="u1", serializer=ddf.zarr.LabelCodec(), compressors=None)
    path = tmp_path / "a" / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["codecs"][0]["configuration"] = settings
    path.write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match=message):
        zarr.open_array(tmp_path / "a")
    with pytest.raises(ValueError, match=message):
        numcodecs.get_codec({"id": "ddf.labels", **settings})


def test_models_that_do_not_exist_are_errors() -> None:
    for codec in (ddf.zarr.LabelCodec, ddf.numcodecs.LabelCodec):
        with pytest.raises(FileNotFoundError, match="there is no model file 'pretrained', and no model with a finger"):
            codec("pretrained")
        with pytest.raises(ValueError, match="location=5 is neither a path nor a URL"):
            codec(location=5)
        assert codec(pretrained().fingerprint.hex().upper()).model == pretrained().fingerprint.hex()


def test_arrays_and_codecs_are_pickled_with_their_model(other: CausalFlow, tmp_path: Path) -> None:
    x = maps("uint8")
    array = zarr.create_array(
        tmp_path / "a", data=x, chunks=(1, 45, 61), serializer=ddf.zarr.LabelCodec(other), compressors=None
    )
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(array))[:]), x)
    codec = ddf.numcodecs.LabelCodec(other)
    assert np.array_equal(pickle.loads(pickle.dumps(codec)).decode(codec.encode(x)), x)


def test_arrays_of_floats_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"ddf.labels compresses arrays of integers or truth values, not of float32"):
        zarr.create_array(tmp_path / "a", shape=(4, 5), dtype="float32", serializer=ddf.zarr.LabelCodec())
    with pytest.raises(TypeError, match="not of float64"):
        ddf.numcodecs.LabelCodec().encode(np.zeros((4, 5)))


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "a", data=maps("uint8"), chunks=(3, 45, 61), serializer=ddf.zarr.LabelCodec(), compressors=None
    )
    chunk = tmp_path / "a" / "c" / "0" / "0" / "0"
    data = bytearray(chunk.read_bytes())
    data[-3] ^= 4
    chunk.write_bytes(data)
    with pytest.raises(DamagedFileError, match="a chunk is damaged"):
        zarr.open_array(tmp_path / "a")[:]


# ---- zarr 2


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_format_2_are_restored(dtype: str, order: Any, tmp_path: Path) -> None:
    x = maps(dtype)
    zarr.create_array(
        tmp_path / "a", data=x, chunks=(2, 30, 40), zarr_format=2, order=order,
        compressors=ddf.numcodecs.LabelCodec(), fill_value=0,
    )  # fmt: skip
    again = zarr.open_array(tmp_path / "a")
    assert again.dtype == x.dtype
    assert np.array_equal(np.asarray(again[:]), x)


def test_numcodecs_finds_the_codec_by_its_configuration() -> None:
    codec = ddf.numcodecs.LabelCodec(location="s3://bucket/models", verify=False)
    config = codec.get_config()
    assert config == json.loads(json.dumps(config))
    again = numcodecs.get_codec(dict(config))
    assert isinstance(again, ddf.numcodecs.LabelCodec)
    assert again.get_config() == config
    x = maps("int16")
    out = np.empty_like(x)
    again.decode(codec.encode(x), out=out)
    assert np.array_equal(out, x)


def test_the_order_in_memory_is_kept() -> None:
    codec = ddf.numcodecs.LabelCodec()
    x = maps("uint8")
    for array in (x, np.asfortranarray(x), x[:, ::2], x.transpose(1, 2, 0)):
        flat = array.reshape(-1, order="A")
        assert np.array_equal(codec.decode(codec.encode(array)).reshape(-1), flat)


def test_large_arrays_are_refused() -> None:
    data = ddf.numcodecs.LabelCodec().encode(np.zeros((100, 100), np.uint8))
    with pytest.raises(ddf.DdfError, match="a chunk"):
        ddf.numcodecs.LabelCodec(max_bytes=5000).decode(data)
