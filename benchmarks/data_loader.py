"""Time data loaders that read label maps from an archive and from a folder of PNG files.

    python benchmarks/data_loader.py --maps ~/camvid/testannot --workers 2

Prints maps per second for each of several epochs, without and with the cache of decoded maps. The same maps are read by
the same number of workers, in the same random order, and both kinds of data set return tensors.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import ddf
from ddf.data.drawn import draw_scenes
from ddf.registry import codec_of
from ddf.shapes import Array
from ddf.torch import ArchiveDataset


class Folder(Dataset[torch.Tensor]):
    """A folder of PNG files, as in most training scripts."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.png"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        with Image.open(self.paths[number]) as image:
            return torch.from_numpy(np.array(image))


def kept(folder: Path) -> ArchiveDataset:
    """Return a data set whose maps an earlier one has decoded."""
    for _ in range(2):
        data = ArchiveDataset(folder / "maps.ddf", cache_folder=folder, keep_cache=True)
        list(data)  # type: ignore[call-overload]
    return data


def epochs(data: Dataset[torch.Tensor], count: int, workers: int, persistent: bool) -> list[float]:
    """Return the duration of each epoch in seconds, including the start of the workers (once, if persistent)."""
    torch.manual_seed(0)
    loader = DataLoader(
        data, batch_size=8, shuffle=True, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        for _ in loader:
            pass
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", type=Path, help="folder of PNG files of the same size (default: synthetic scenes)")
    parser.add_argument("--model", help="model file (default: the pretrained model)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    maps: list[Array]
    if options.maps is None:
        maps = [np.resize(scene, (360, 480)) for scene in draw_scenes(200, seed=0)]
    else:
        maps = [np.asarray(Image.open(path)) for path in sorted(options.maps.glob("*.png"))]
    _, model = codec_of(options.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "png").mkdir()
        for i, one in enumerate(maps):
            Image.fromarray(one).save(folder / "png" / f"{i:06}.png", optimize=True)
        with ddf.ArchiveWriter(folder / "maps.ddf", model, embed_model=True) as archive:
            for i, one in enumerate(maps):
                archive.add(one, f"{i:06}.png")
        size = sum(path.stat().st_size for path in (folder / "png").iterdir())
        small = (folder / "maps.ddf").stat().st_size
        print(f"{len(maps)} maps of {maps[0].shape}; PNG {size:,} bytes, archive {small:,} bytes, {torch.__version__}")
        for title, data in (
            ("PNG files", Folder(folder / "png")),
            ("archive, without cache", ArchiveDataset(folder / "maps.ddf", cache_bytes=0)),
            ("archive", ArchiveDataset(folder / "maps.ddf")),
            ("archive, kept from an earlier run", kept(folder)),
        ):
            for persistent in (False, True):
                seconds = epochs(data, options.epochs, options.workers, persistent)
                rates = ", ".join(f"{len(maps) / second:.0f}" for second in seconds)
                print(f"{title}, {'persistent' if persistent else 'new'} workers: {rates} maps per second")


if __name__ == "__main__":
    main()
