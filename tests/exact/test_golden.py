"""Old archives are read on any machine, and reproduced byte for byte."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ddf.archive import Archive, ArchiveWriter
from ddf.archive.blocks import Method
from tests import reference_decoder
from tests.zoo import GOLDEN


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.ddf")), ids=lambda path: path.stem)
def test_golden_archives_are_read(path: Path) -> None:
    with np.load(path.with_suffix(".npz")) as file:
        expected = [file[str(i)] for i in range(len(file.files))]
    for found in (list(Archive(path).items()), reference_decoder.decode(path.read_bytes())):
        for (_, array), right in zip(found, expected, strict=True):
            assert np.array_equal(array, right)
            assert array.dtype == right.dtype


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*-1.ddf")), ids=lambda path: path.stem)
def test_golden_archives_are_reproduced(path: Path) -> None:
    """The bytes are the same with any number of threads."""
    archive = Archive(path)
    assert {block.kind.method for block in archive.blocks()} == set(Method)
    for threads in (1, 3):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer, archive.model, embed_model=True, threads=threads) as writer:
            for name, array in archive.items():
                writer.add(array, name)
        assert buffer.getvalue() == path.read_bytes()


@pytest.mark.parametrize(
    "environment",
    [
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"},
        {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OMP_NUM_THREADS": "2"},
    ],
    ids=lambda environment: environment["ONEDNN_MAX_CPU_ISA"],
)
def test_other_instruction_sets_write_the_same_bytes(environment: dict[str, str]) -> None:
    script = """
import io, sys
from ddf.archive import Archive, ArchiveWriter
for path in sys.argv[1:]:
    archive = Archive(path)
    buffer = io.BytesIO()
    with ArchiveWriter(buffer, archive.model, embed_model=True) as writer:
        for name, array in archive.items():
            writer.add(array, name)
    assert buffer.getvalue() == open(path, "rb").read(), path
"""
    paths = [str(path) for path in sorted(GOLDEN.glob("*-1.ddf"))]
    subprocess.run([sys.executable, "-c", script, *paths], check=True, env={**os.environ, **environment})
