"""The meaning of the symbols of a data set."""

__all__ = ["MOST_CLASSES", "Classes", "Columns", "classes_from_plain"]

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_CLASSES = 1 << 16
"""The largest number of classes in a file."""

_CHUNK = 1 << 20

Color = tuple[int, int, int]


@dataclass(frozen=True)
class Classes:
    """The integer that each class stands for in the data, and its name and color.

    Arguments:
        values: The integer that class 0, 1, … stands for.
        names: The names of the classes; empty if they have none.
        colors: Red, green and blue of each class, from 0 to 255; empty if they have none.

    Examples:
        >>> classes = Classes(values=(0, 7, 255), names=("background", "cat", "unknown"))
        >>> classes.to_symbols(np.array([[255, 0], [7, 7]]))
        array([[2, 0],
               [1, 1]], dtype=uint8)
        >>> classes.to_values(np.array([2, 0], dtype=np.uint8))
        array([255,   0])
    """

    values: tuple[int, ...]
    names: tuple[str, ...] = ()
    colors: tuple[Color, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(operator.index(value) for value in self.values))
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"Classes: values={self.values} must be distinct integers, at least one")
        for value in self.values:
            if not -(1 << 63) <= value < 1 << 63:
                raise ValueError(f"Classes: the value {value} does not fit into a signed 64-bit integer")
        for name in ("names", "colors"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.values):
                raise ValueError(f"Classes: {len(getattr(self, name))} {name} for {len(self.values)} values")

    @classmethod
    def plain(cls, num_classes: int, **others: Any) -> "Classes":
        """Return classes that stand for 0 … K − 1."""
        return cls(tuple(range(num_classes)), **others)

    @property
    def num_classes(self) -> int:
        """The number of classes K."""
        return len(self.values)

    def to_symbols(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Convert integers of the data to symbols 0 … K − 1, in the smallest dtype."""
        dtype = np.uint8 if self.num_classes <= 256 else np.int32
        if values.dtype == np.uint8 and self.num_classes < 256:  # the most common case, and ten times faster
            table = np.full(256, 255, dtype=np.uint8)
            for symbol, value in enumerate(self.values):
                if 0 <= value < 256:
                    table[value] = symbol
            symbols: np.ndarray[Any, Any] = table[values]
            if symbols.size and symbols.max() == 255:
                self._refuse(values[symbols == 255])
            return symbols
        order = np.argsort(self.values)
        ascending = np.asarray(self.values, dtype=np.int64)[order]
        flat, out = values.reshape(-1), np.empty(values.size, dtype)
        for start in range(0, len(flat), _CHUNK):  # because searchsorted takes eight bytes per value
            part = flat[start : start + _CHUNK]
            place = np.searchsorted(ascending, part).clip(max=len(ascending) - 1)
            unknown = ascending[place] != part
            if unknown.any():
                self._refuse(part[unknown])
            out[start : start + _CHUNK] = order[place]
        return out.reshape(values.shape)

    def _refuse(self, unknown: np.ndarray[Any, Any]) -> None:
        raise ValueError(f"the value {unknown.flat[0]} is not one of the {self.num_classes} known classes")

    def to_values(self, symbols: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Convert symbols to the integers that they stand for."""
        symbols = np.asarray(symbols)
        if symbols.size and not (symbols.min() >= 0 and symbols.max() < self.num_classes):
            raise ValueError(f"symbols {symbols.min()} … {symbols.max()}, but there are {self.num_classes} classes")
        return np.asarray(self.values, dtype=np.int64)[symbols]

    def to_plain(self) -> dict[str, Any]:
        """Return plain data, for a file."""
        return {
            "values": list(self.values),
            "names": list(self.names),
            "colors": [list(color) for color in self.colors],
        }


@dataclass(frozen=True)
class Columns:
    """The columns of a table, each with its own classes, which are strings.

    Arguments:
        names: The names of the columns.
        values: The text that class 0, 1, … of each column stands for.

    Examples:
        >>> columns = Columns(names=("sex", "embarked"), values=(("female", "male"), ("C", "Q", "S")))
        >>> columns.num_classes
        3
        >>> columns.to_symbols([["male", "C"]])
        array([[1, 0]], dtype=uint8)
    """

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @property
    def num_classes(self) -> int:
        """The largest number of classes in any column."""
        return max(len(column) for column in self.values)

    def to_symbols(self, rows: list[list[str]]) -> np.ndarray[Any, Any]:
        """Convert rows of strings to symbols."""
        tables = [{text: i for i, text in enumerate(column)} for column in self.values]
        symbols = []
        for number, row in enumerate(rows, 1):
            if len(row) != len(tables):
                raise ValueError(f"row {number} has {len(row)} columns instead of {len(tables)}")
            for table, name, text in zip(tables, self.names, row, strict=True):
                if text not in table:
                    some = ", ".join(list(table)[:8]) + (" …" if len(table) > 8 else "")
                    raise ValueError(f"row {number}, column {name!r}: {text!r} is not one of the known texts: {some}")
            symbols.append([table[text] for table, text in zip(tables, row, strict=True)])
        return np.array(symbols, dtype=np.uint8 if self.num_classes <= 256 else np.int32).reshape(-1, len(tables))

    def to_values(self, symbols: np.ndarray[Any, Any]) -> list[list[str]]:
        """Convert symbols to strings; a symbol that its column does not have becomes an empty string."""
        return [
            [column[symbol] if symbol < len(column) else "" for column, symbol in zip(self.values, row, strict=True)]
            for row in symbols.tolist()
        ]

    def to_plain(self) -> dict[str, Any]:
        """Return plain data, for a file."""
        return {"columns": list(self.names), "values": [list(column) for column in self.values]}


def classes_from_plain(plain: Any) -> Classes | Columns:
    """Convert what `to_plain` returned to classes; raise an error for anything else."""
    if not isinstance(plain, dict):
        raise ValueError(f"classes must be a JSON object, not {plain!r}")
    if "columns" in plain:
        names, values = _listed(plain, "columns", str), plain["values"]
        columns = tuple(_listed({"values": column}, "values", str) for column in values)
        if not isinstance(values, list) or len(names) != len(columns) or not all(columns):
            raise ValueError(f"{len(names)} columns with the classes {values!r}: each needs a non-empty list")
        return Columns(names, columns)
    colors = tuple(_listed({"colors": color}, "colors", int) for color in _listed(plain, "colors", list))
    if any(len(color) != 3 or not 0 <= min(color) <= max(color) <= 255 for color in colors):
        raise ValueError("the colors of classes must be three integers from 0 to 255 each")
    return Classes(_listed(plain, "values", int), _listed(plain, "names", str), colors)


def _listed(plain: dict[str, Any], name: str, kind: type) -> tuple[Any, ...]:
    """Return the items of a list in plain data, all of which must be of one type."""
    found = plain[name]
    if not isinstance(found, list) or any(type(item) is not kind for item in found) or len(found) > MOST_CLASSES:
        raise ValueError(
            f"the {name} of classes must be a list of at most {MOST_CLASSES} {kind.__name__}, not {found!r}"
        )
    return tuple(found)
