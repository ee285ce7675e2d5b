"""A user's own table of categorical columns."""

__all__ = ["read_table"]

import csv
import io
from os import PathLike
from pathlib import Path

from ddf.classes import Columns
from ddf.data.dataset import DataError, DataSet
from ddf.data.label_maps import MOST_CLASSES, shares_of


def read_table(path: str | PathLike[str], validation: float = 0.1, test: float = 0.1, seed: int = 0) -> DataSet:
    """Reads a CSV file of categorical columns, with their names on the first line, and shares its rows out by chance.

    Every different text in a column is a class of that column. Columns with over 256 of them are refused: they are
    numbers or names, not categories.

    Arguments:
        path: The file; its columns are separated by commas, semicolons or tabs.
        validation: The part of the rows to validate on.
        test: The part to test on.
        seed: Draws who goes where.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8: {error}") from error
    try:
        tables = [_rows_of(text, delimiter) for delimiter in ",;\t"]
    except csv.Error as error:
        raise DataError(f"{path} is no table: {error}") from error
    table = max(tables, key=lambda rows: len(rows[0][1]) if rows else 0)  # the separator that makes most columns
    if not table:
        raise DataError(f"{path} is empty")
    header, rows = table[0][1], [row for _, row in table[1:]]
    for number, row in table[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}: line {number} has {len(row)} columns, but the first has {len(header)}")
    while header and not header[-1] and not any(row[-1] for row in rows):  # lines that end with a separator
        header, rows = header[:-1], [row[:-1] for row in rows]
    if len(set(header)) != len(header):
        raise DataError(f"{path}: two columns have the same name, {max(header, key=header.count)!r}")
    if len(rows) < 3:
        raise DataError(
            f"{path} is no table to learn from: below the names of its {len(header)} columns it has {len(rows)} rows, "
            "and 3 are the least"
        )
    values = tuple(tuple(sorted(set(column))) for column in zip(*rows, strict=True))
    for name, column in zip(header, values, strict=True):
        if len(column) > MOST_CLASSES:
            raise DataError(
                f"{path}: the column {name!r} has {len(column)} different texts, but {MOST_CLASSES} is the most; "
                "leave it out, or group its values"
            )
    columns = Columns(tuple(header), values)
    symbols = columns.to_symbols(rows)
    shares = shares_of(len(rows), validation, test, seed, str(path))
    return DataSet(str(path), columns, {split: symbols[share] for split, share in shares.items()})


def _rows_of(text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """The rows of a table that are not empty, each with the number of its line."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [(reader.line_num, row) for row in reader if row]
