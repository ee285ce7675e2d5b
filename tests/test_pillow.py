"""Label maps as images of Pillow."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

import ddf.pillow
from ddf.archive import Archive, ArchiveWriter, FileWriter, WrongModelError
from ddf.errors import DdfError, NotLabelMapError
from ddf.labelmaps import CausalFlow, pretrained
from ddf.shapes import Array

MASK = np.kron(np.arange(12, dtype=np.uint8).reshape(3, 4), np.ones((15, 11), np.uint8))
PALETTE = bytes(range(36))


def image_of(mode: str) -> Image.Image:
    if mode == "P":
        image = Image.frombytes("P", MASK.shape[::-1], MASK.tobytes())
        image.putpalette(PALETTE)
        return image
    arrays = {"1": MASK > 5, "L": MASK, "I;16": MASK.astype(np.uint16) * 5000, "I": MASK.astype(np.int32) * -90_000}
    return Image.fromarray(arrays[mode])


def saved(image: Image.Image, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, "DDF", **options)
    file.seek(0)
    return file


def archived(array: Array) -> io.BytesIO:
    file = io.BytesIO()
    with ArchiveWriter(file, pretrained()) as archive:
        archive.add(array)
    file.seek(0)
    return file


@pytest.mark.parametrize("mode", ["1", "L", "P", "I;16", "I"])
def test_images_are_restored(mode: str, tmp_path: Path) -> None:
    image = image_of(mode)
    path = tmp_path / "mask.ddfm"
    image.save(path)
    with Image.open(path) as again:
        assert (again.format, again.mode, again.size) == ("DDF", mode, image.size)
        assert np.array_equal(np.asarray(again), np.asarray(image))
        assert again.getpalette() == image.getpalette()
        assert again.convert("RGB").tobytes() == image.convert("RGB").tobytes()
    assert np.array_equal(Archive(path)[0], np.asarray(image))


@pytest.mark.parametrize("transparency", [3, bytes([0, 128])])
def test_transparency_is_kept(transparency: int | bytes) -> None:
    image = image_of("P")
    image.info["transparency"] = transparency
    again = Image.open(saved(image))
    assert again.info["transparency"] == transparency
    assert again.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint32", "int64", "uint64", ">u2"])
def test_other_dtypes_become_images_of_32_bits(dtype: str) -> None:
    array = MASK.astype(dtype)
    again = Image.open(archived(array))
    assert again.mode == ("I;16" if dtype == ">u2" else "I")
    assert np.array_equal(np.asarray(again), array)


def test_files_from_archives_are_images(tmp_path: Path) -> None:
    image_of("P").save(tmp_path / "mask.png")
    with ArchiveWriter(tmp_path / "mask.ddf", pretrained()) as archive:
        FileWriter(archive).add(tmp_path / "mask.png", "mask.png")
    with Image.open(tmp_path / "mask.ddf") as image:
        assert image.mode == "P"
        assert image.tobytes() == MASK.tobytes()


def test_an_opened_image_behaves_like_others(tmp_path: Path) -> None:
    image_of("L").save(tmp_path / "mask.ddfm")
    image = Image.open(tmp_path / "mask.ddfm")
    assert image.crop((0, 0, 11, 30)).size == (11, 30)
    assert image.getpixel((43, 44)) == 11
    assert image.fp is None  # the file is closed once the pixels are decoded
    assert pickle.loads(pickle.dumps(Image.open(tmp_path / "mask.ddfm"))).tobytes() == MASK.tobytes()
    image.save(tmp_path / "mask.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "mask.png")), MASK)


def test_what_is_not_one_map_is_refused() -> None:
    two = io.BytesIO()
    with ArchiveWriter(two, pretrained()) as archive:
        archive.add(MASK)
        archive.add(MASK)
    for file, message in (
        (two, "contains 2 arrays, not one"),
        (archived(np.zeros((2, 3, 4), np.uint8)), r"an array of shape \(2, 3, 4\)"),
        (archived(np.zeros(5, np.uint8)), r"an array of shape \(5,\)"),
    ):
        file.seek(0)
        with pytest.raises(NotLabelMapError, match=message):
            Image.open(file)
    for label in (2**31, -(2**31) - 1):
        with pytest.raises(ValueError, match=f"has the label {label}, which does not fit into an image"):
            Image.open(archived(np.array([[0, label]], np.int64))).load()
    with pytest.raises(ValueError, match="cannot write an image of size 0 × 5"):
        saved(Image.new("L", (0, 5)))
    with pytest.raises(OSError, match="cannot write an image of mode RGB as a label map"):
        saved(image_of("P").convert("RGB"))


def test_damaged_files_are_errors() -> None:
    data = saved(image_of("P")).getvalue()
    with pytest.raises(UnidentifiedImageError):
        Image.open(io.BytesIO(b"\x89DDX" + data[4:]))
    whole = Image.open(io.BytesIO(data)).convert("RGB").tobytes()
    errors = 0
    for position in range(4, len(data), 3):
        damaged = io.BytesIO(data[:position] + bytes([data[position] ^ 8]) + data[position + 1 :])
        try:
            assert Image.open(damaged).convert("RGB").tobytes() == whole  # some records are stored twice
        except DdfError:
            errors += 1
    assert errors > 20


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    arrays = dict(pretrained().arrays)
    arrays["bias"] = arrays["bias"] + 1
    model = CausalFlow(arrays)
    model.save(tmp_path / "model.safetensors")
    for given in (model, tmp_path / "model.safetensors"):
        assert Image.open(saved(image_of("L"), model=given, embed_model=True)).tobytes() == MASK.tobytes()
        with pytest.raises(WrongModelError, match=model.fingerprint.hex()):
            Image.open(saved(image_of("L"), model=given)).load()


def test_the_plugin_is_documented_as_registered() -> None:
    assert Image.registered_extensions()[ddf.pillow.EXTENSION] == "DDF"
    assert Image.MIME["DDF"] == "application/x-ddf"
