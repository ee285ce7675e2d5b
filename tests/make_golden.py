"""Makes golden archives that are not there yet: `python -m tests.make_golden`.

Old ones stay as they are: a change that can no longer read them must not pass.
"""

import numpy as np

from ddf import TrainingConfig, architectures, fit
from ddf.codec import ArchiveWriter, IntegerFlow, export
from ddf.data.classes import Classes
from tests.zoo import GOLDEN, INTEGER_FLOWS, VALUES, draw_maps


def trained_flow() -> IntegerFlow:
    """An integer flow that has learned what discs look like."""
    classes = Classes(VALUES)
    maps = classes.to_symbols(np.stack(draw_maps(300, (48, 40), 4, seed=0)))[:, None]
    flow = architectures.label_maps(4, levels=3, pixels=12, near=8, hidden=(16, 12)).build(seed=0)
    flow.classes = classes
    fit(flow, maps, config=TrainingConfig(batch_size=4, max_epochs=6, learning_rate=2e-3, cosine=True))
    return export(flow, maps)


def write(stem: str, model: IntegerFlow, arrays: dict[str, np.ndarray], shared: int, relabel: bool = True) -> None:
    if (GOLDEN / f"{stem}.ddf").exists():
        return
    path = GOLDEN / f"{stem}.ddf"
    with ArchiveWriter(path, model, embed_model=True, maps_per_block=shared, relabel=relabel) as writer:
        for label, array in arrays.items():
            writer.add(array, label)
    np.savez_compressed(GOLDEN / f"{stem}.npz", **{f"{i}": array for i, array in enumerate(arrays.values())})


def changing(count: int) -> dict[str, np.ndarray]:
    """Maps whose size changes from one to the next, some of them of values that no model knows."""
    maps = draw_maps(count, (31, 37), 4, seed=3)
    cut = [sample[: 20 + i % 3] if i % 4 else sample.T.astype(np.int32) * 7 for i, sample in enumerate(maps)]
    return {f"{i}": sample for i, sample in enumerate(cut)}


def relabelled(count: int) -> dict[str, np.ndarray]:
    """Maps most of which have labels that the model does not know, in several dtypes; one has too many."""
    maps = draw_maps(count, (31, 37), 4, seed=4)
    tables = [(0, 255, 7, 9), (0, 3, 4, 255), (-9, 0, 255, 70_000), (0, 255, 7, 11), (1, 0, 0, 1)]
    dtypes = [np.uint8, np.uint8, np.int32, np.uint8, np.bool_]
    found = {}
    for i, symbols in enumerate(Classes(VALUES).to_symbols(np.stack(maps))):
        which = i // 4 % len(tables)
        found[f"{i}"] = np.array(tables[which], dtype=dtypes[which])[symbols]
    return found | {"many": np.repeat(np.arange(31), 37).reshape(31, 37)}


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, (make, shape) in INTEGER_FLOWS.items():
        model = trained_flow() if name == "label-maps" else make()
        samples = draw_maps(6, shape, model.num_classes, seed=1)
        others = {
            "strange": np.arange(-3, 4, dtype=np.int64),
            "nothing": np.empty((0, 3), dtype=np.uint16),
            "one": np.array(5, dtype=np.int8),
        }
        arrays = {f"{i}/größe": sample for i, sample in enumerate(samples)} | others
        for shared in (1, 4):
            write(f"{name}-{shared}", model, arrays, shared)
        if name == "label-maps":
            write("changing-1", model, changing(20), shared=1, relabel=False)
            write("relabelled-1", model, relabelled(24), shared=1)
            write("relabelled-4", model, relabelled(24), shared=4)


if __name__ == "__main__":
    main()
