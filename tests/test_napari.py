"""The reader of napari."""

import importlib
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import yaml

from ddf.archive import ArchiveWriter
from ddf.errors import DdfError
from ddf.labelmaps import pretrained
from ddf.napari import get_reader

MASK = np.kron(np.eye(3, dtype=np.uint16) * 900, np.ones((9, 7), np.uint16))


def test_maps_become_layers(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", pretrained()) as archive:
        archive.add(MASK, "mask")
        archive.add(np.arange(9), "vector")
        archive.add(np.stack([MASK, MASK + 1]))
    reader = get_reader(str(tmp_path / "a.ddf"))
    assert reader is not None
    layers = reader(str(tmp_path / "a.ddf"))
    assert [(options, kind) for _, options, kind in layers] == [({"name": "mask"}, "labels"), ({"name": "2"}, "labels")]
    assert np.array_equal(layers[0][0], MASK)
    assert np.array_equal(layers[1][0], np.stack([MASK, MASK + 1]))
    assert get_reader([str(tmp_path / "a.ddf"), "b.png"]) is None


def test_large_archives_are_cut_and_empty_ones_refused(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", pretrained(), maps_per_block=200) as archive:
        for _ in range(120):
            archive.add(MASK)
    reader = get_reader(str(tmp_path / "a.ddf"))
    assert reader is not None
    assert len(reader(str(tmp_path / "a.ddf"))) == 100
    with ArchiveWriter(tmp_path / "b.ddf", pretrained()) as archive:
        pass
    with pytest.raises(DdfError, match="contains no label maps"):
        reader(str(tmp_path / "b.ddf"))


def test_the_manifest_names_the_reader() -> None:
    (entry,) = entry_points(group="napari.manifest", name="discrete-denoising-flows")
    assert entry.value == "ddf:napari.yaml"
    manifest = yaml.safe_load((files("ddf") / "napari.yaml").read_text())
    assert manifest["name"] == "discrete-denoising-flows"
    module, _, name = manifest["contributions"]["commands"][0]["python_name"].partition(":")
    assert getattr(importlib.import_module(module), name) is get_reader
