"""Makes golden archives that do not exist yet: `python -m tests.make_golden`.

Existing ones are never replaced: a change that can no longer read them must not pass.
"""

import numpy as np
import torch

from ddf.archive import ArchiveWriter
from tests.zoo import GOLDEN, INTEGER_FLOWS


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    others = {
        "strange": np.arange(-3, 4, dtype=np.int64),
        "compressible": np.zeros((40, 3, 50), dtype=np.int32),
        "nothing": np.empty((0, 3), dtype=np.uint16),
        "one": np.array(5, dtype=np.int8),
    }
    for name, (make, shape) in INTEGER_FLOWS.items():
        model = make()
        samples = model.sample(6, torch.Generator().manual_seed(1), shape if None in model.shape else None).numpy()
        arrays = {f"{i}/größe": part for i, part in enumerate(model.classes.to_values(samples).astype(np.uint8))}
        arrays |= others
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
