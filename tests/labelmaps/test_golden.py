"""Golden archives of label maps. All golden archives are read in `tests/exact/test_golden.py`."""

import io
from pathlib import Path

import numpy as np
import pytest

from ddf.archive import Archive, ArchiveWriter
from ddf.archive.blocks import Method
from tests.reference_decoder import read_model
from tests.reference_labelmaps import LabelMaps
from tests.zoo import GOLDEN


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("labels-*.ddf")), ids=lambda path: path.stem)
def test_golden_archives_are_reproduced(path: Path) -> None:
    assert path.stat().st_size < 60_000
    archive = Archive(path)
    shared = int(path.stem[-1])
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, archive.model, embed_model=True, maps_per_block=shared) as writer:
        for name, array in archive.items():
            writer.add(array, name)
    assert buffer.getvalue() == path.read_bytes()
    by_codec = sum(block.count for block in archive.blocks() if block.kind.method == Method.CODEC)
    assert by_codec >= len(archive) // 2  # other methods would not test the codec


@pytest.mark.parametrize("name", ["labels-any", "labels-known"])
def test_the_reference_decoder_agrees(name: str, maps: list[np.ndarray], scenes: list[np.ndarray]) -> None:
    """Compare maps that are not in any archive, and the rank of each pixel."""
    model = Archive(GOLDEN / f"{name}-1.ddf").model
    tall = np.concatenate([scene[:40, :12] for scene in scenes])  # more rows than the kernel keeps
    for array in (maps[3], scenes[0], np.stack([scenes[1][:30, :30], scenes[2][:30, :30]]), tall):
        code = model.compress(array)
        reference = read_model(model.to_bytes())
        assert isinstance(reference, LabelMaps)
        assert np.array_equal(reference.decode(code, array.shape, array.dtype.str), array)
        if array is scenes[0] or array is tall:
            assert np.array_equal(np.reshape(reference.ranks, array.shape), model.explain(array).ranks)
