"""Tables of categorical columns."""

__all__ = ["read_rows", "read_table"]

import csv
import io
from os import PathLike
from pathlib import Path

from ddf.classes import Columns
from ddf.data.dataset import DataSet
from ddf.data.label_maps import MOST_CLASSES
from ddf.data.splits import split_samples
from ddf.errors import DataError


def read_table(path: str | PathLike[str], validation: float = 0.1, test: float = 0.1, seed: int = 0) -> DataSet:
    """Read a CSV file of categorical columns, and split its rows at random.

    Each distinct text in a column is a class of that column. Columns with more than 256 classes are rejected, because
    they hold numbers or names rather than categories.

    Arguments:
        path: The file; see `read_rows`.
        validation: The fraction of the rows for validation.
        test: The fraction for testing.
        seed: The seed of the split.
    """
    header, rows = read_rows(path)
    if len(rows) < 3:
        raise DataError(f"{path} has {len(rows)} rows below its {len(header)} column names; at least 3 are required")
    values = tuple(tuple(sorted(set(column))) for column in zip(*rows, strict=True))
    for name, column in zip(header, values, strict=True):
        if len(column) > MOST_CLASSES:
            raise DataError(
                f"{path}: the column {name!r} has {len(column)} different texts, but at most {MOST_CLASSES} are "
                "supported; remove it, or group its values"
            )
    columns = Columns(tuple(header), values)
    symbols = columns.to_symbols(rows)
    indices = split_samples(len(rows), validation, test, seed, name=str(path))
    return DataSet(str(path), columns, {split: symbols[index] for split, index in indices.items()})


def read_rows(path: str | PathLike[str]) -> tuple[list[str], list[list[str]]]:
    """Read a CSV file: its column names, from the first line, and its rows.

    Arguments:
        path: The file, in UTF-8, with columns separated by commas, semicolons or tabs.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8: {error}") from error
    try:
        tables = [_lines(text, delimiter) for delimiter in ",;\t"]
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file: {error}") from error
    table = max(tables, key=lambda lines: len(lines[0][1]) if lines else 0)  # the separator with the most columns
    if not table:
        raise DataError(f"{path} is empty")
    header, rows = table[0][1], [row for _, row in table[1:]]
    for number, row in table[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}: line {number} has {len(row)} columns, but the first line has {len(header)}")
    while header and not header[-1] and not any(row[-1] for row in rows):  # lines that end with a separator
        header, rows = header[:-1], [row[:-1] for row in rows]
    if len(set(header)) != len(header):
        raise DataError(f"{path}: two columns have the same name, {max(header, key=header.count)!r}")
    return header, rows


def _lines(text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """Return the rows of a table that are not empty, each with its line number."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [(reader.line_num, row) for row in reader if row]
