"""Create missing golden archives: `python -m tests.make_golden`.

Existing archives are never replaced, so a change that can no longer read them fails the tests.
"""

import numpy as np
import torch

from ddf.archive import ArchiveWriter, Codec
from ddf.classes import Classes
from ddf.data.drawn import draw_maps, draw_scenes
from ddf.labelmaps import Preset, train
from tests.zoo import GOLDEN, INTEGER_FLOWS

OTHERS = {
    "strange": np.arange(-3, 4, dtype=np.int64),
    "compressible": np.zeros((40, 3, 50), dtype=np.int32),
    "nothing": np.empty((0, 3), dtype=np.uint16),
    "one": np.array(5, dtype=np.int8),
}


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    integer_flows()
    label_maps()


def integer_flows() -> None:
    for name, (make, shape) in INTEGER_FLOWS.items():
        model = make()
        samples = model.sample(6, torch.Generator().manual_seed(1), shape if None in model.shape else None).numpy()
        arrays = {f"{i}/größe": part for i, part in enumerate(model.classes.to_values(samples).astype(np.uint8))}
        write(name, model, arrays | OTHERS)


def label_maps() -> None:
    if (GOLDEN / "labels-known-4.ddf").exists() and (GOLDEN / "labels-any-4.ddf").exists():
        return  # skip the training
    small = (24, 30)
    drawn, scenes = draw_maps(40, seed=1, sizes=(48, 64)), draw_scenes(20, seed=1, sizes=(48, 64))
    preset = Preset(pixels=12, hidden=(16, 8), steps=200)
    values = Classes((7, 0, 255, -1, 300))  # unsorted, and not all fit every dtype
    scenes = [values.to_values(scene) for scene in scenes]
    write("labels-any", train(drawn, preset, progress=False), varied_maps(draw_maps(9, seed=2, sizes=small)) | OTHERS)
    held_out = [values.to_values(scene) for scene in draw_scenes(9, seed=2, sizes=small)]
    model = train(scenes, preset, values, progress=False)
    three = np.array([0, 7, 255], dtype=np.uint8)
    arrays = {f"scene {i}": part for i, part in enumerate(held_out[:3])}
    arrays |= {f"byte {i}": three[np.abs(part[:24, :24]) % 3] for i, part in enumerate(held_out[3:])}
    write("labels-known", model, arrays | varied_maps(draw_maps(9, seed=3, sizes=small)) | OTHERS)


def varied_maps(maps: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return label maps of all dtypes, with unusual shapes and labels."""
    rows, columns = np.indices((24, 30))
    ids = np.unique(rows // 2 * 15 + columns // 2, return_inverse=True)[1].reshape(24, 30)
    wide = np.array([-(2**63), -70_000, -1, 0, 2**63 - 1])
    tiles = (rows[:20, :20] // 5 + columns[:20, :20] // 7) % 3
    return {
        "uint8": maps[0].astype(np.uint8),
        "int64": wide[maps[1] % 5],
        "uint64": np.array([0, 2**64 - 2, 2**64 - 1], dtype=np.uint64)[maps[2] % 3],
        "bool": maps[3] % 2 == 0,
        "int16": (maps[4] - 5).astype(np.int16),
        "300 labels": np.where(ids < 300, ids, 300 - ids).astype(np.int32) * 3,
        "one label": np.full((24, 30), 9, dtype=np.uint16),
        "one pixel": np.array([[-5]], dtype=np.int8),
        "one row": np.repeat(maps[5][:1] % 7, 3, axis=1).astype(np.uint8),
        "one column": np.repeat(maps[6][:, :1], 2, axis=0).astype(np.uint8),
        "stack": np.stack([(maps[7][:20, :22] + i) % 4 for i in range(3)]).astype(np.uint8),
        "upsampled": np.kron(maps[8][:14, :16] % 250, np.ones((3, 2), dtype=np.int64))[1:].astype(np.uint8),
        "noisy": np.random.default_rng(0).integers(0, 9, (6, 7), dtype=np.uint8),
        **{f"tiles {i}": np.roll(tiles, i, axis=0).astype(np.uint8) for i in range(6)},
    }


def write(name: str, model: Codec, arrays: dict[str, np.ndarray]) -> None:
    for shared in (1, 4):
        path = GOLDEN / f"{name}-{shared}.ddf"
        if path.exists():
            continue
        with ArchiveWriter(path, model, embed_model=True, maps_per_block=shared) as writer:
            for label, array in arrays.items():
                writer.add(array, label)
        np.savez_compressed(path.with_suffix(".npz"), **{f"{i}": part for i, part in enumerate(arrays.values())})


if __name__ == "__main__":
    main()
