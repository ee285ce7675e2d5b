"""Tables of categories from the literature: mushrooms and COP."""

__all__ = ["COP", "cop", "mushrooms"]

import csv
import io
import lzma
from importlib.resources import files
from os import PathLike
from pathlib import Path

import numpy as np

from ddf.classes import Columns
from ddf.errors import DataError
from ddf.shapes import Array

COP = {"h": "coup_data_4_2.npy", "m": "coup_data_4_2_moderate_corr.npy", "w": "coup_data_4_2_weak_corr.npy"}
"""The files of the COP tables in the repository inouye-lab/Discrete-Tree-Flows, by the strength of the dependence."""


def mushrooms(missing: bool = False) -> tuple[Columns, Array]:
    """Return the columns and the symbols of 8124 mushrooms with 22 categorical columns, in file order.

    References:
        Mushroom, UCI Machine Learning Repository (1981), https://doi.org/10.24432/C5959T, CC BY 4.0

    Arguments:
        missing: Whether to include the column `stalk-root`, in which 2480 values are missing.

    Examples:
        >>> columns, symbols = mushrooms()
        >>> symbols.shape, columns.num_classes, columns.names[0], columns.values[0]
        ((8124, 22), 12, 'class', ('e', 'p'))
    """
    text = lzma.decompress((files("ddf.data") / "mushroom.csv.xz").read_bytes()).decode()
    header, *rows = csv.reader(io.StringIO(text))
    if not missing:
        left_out = header.index("stalk-root")
        header, *rows = [[text for i, text in enumerate(row) if i != left_out] for row in (header, *rows)]
    columns = Columns(tuple(header), tuple(tuple(sorted(set(column))) for column in zip(*rows, strict=True)))
    return columns, columns.to_symbols(rows)


def cop(folder: str | PathLike[str], strength: str) -> tuple[Columns, Array]:
    """Return the columns and the symbols of a COP table of 10,000 rows with 4 binary columns.

    References:
        Discrete Tree Flows via Tree-Structured Permutations (Elkady, Lim and Inouye, 2022)

    Arguments:
        folder: The folder `data` of the repository inouye-lab/Discrete-Tree-Flows, or a folder that contains the
            files cop_h.npy, cop_m.npy and cop_w.npy.
        strength: The strength of the dependence between columns: `"h"` (high), `"m"` (moderate) or `"w"` (weak).
    """
    if strength not in COP:
        raise ValueError(f"strength={strength!r} must be 'h', 'm' or 'w'")
    paths = [Path(folder) / name for name in (COP[strength], f"cop_{strength}.npy")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise DataError(f"{folder} contains neither {paths[0].name} nor {paths[1].name}")
    try:
        values = np.load(path)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is not an npy file: {error}") from error
    if values.ndim != 2 or not np.isin(values, (0, 1)).all():
        raise DataError(f"{path} is not a table of zeros and ones")
    names = tuple(f"column {i + 1}" for i in range(values.shape[1]))
    return Columns(names, (("0", "1"),) * values.shape[1]), values.astype(np.uint8)
