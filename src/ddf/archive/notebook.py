"""How notebooks display archives: as an HTML table with pictures."""

__all__ = ["escaped", "notebook_html"]

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddf.archive.blocks import DTYPES, Kind
from ddf.archive.parallel import Pool, thread_count
from ddf.archive.pictures import classes_of, coloring, data_uri, format_of, is_map, picture
from ddf.classes import Classes
from ddf.errors import DdfError

if TYPE_CHECKING:
    from ddf.archive.reader import Archive

_MOST_ARRAYS = 20
_MOST_PIXELS = 1 << 26  # to decode
_MOST_REASONS = 3
_SIDE = 96  # pixels of a thumbnail


class _Row(NamedTuple):
    """An array of an archive: its number, its block, and what the index contains about them."""

    number: int
    block: int
    kind: Kind
    arrays: int
    size: int

    @property
    def values(self) -> int:
        """The number of values in the block, which is decoded as a whole."""
        return self.arrays * self.kind.size // self.kind.itemsize


def notebook_html(archive: "Archive") -> str:
    """Return the HTML that a notebook shows for an archive: its first arrays, with thumbnails of the maps.

    Missing models and damaged arrays are reported below the table. The work is bounded, whatever the archive contains.

    Arguments:
        archive: The archive.
    """
    rows = _first_rows(archive)
    pictures, reasons = _thumbnails(archive, rows)
    head = "".join(f"<th>{title}</th>" for title in ("", "name", "shape", "dtype", "bytes", "bits per pixel"))
    lines = [
        f"<div><p><code>{escaped(repr(archive))}</code></p>",
        f"<table><thead><tr>{head}</tr></thead><tbody>",
        *(_table_row(archive, row, pictures.get(row.number, "")) for row in rows),
        "</tbody></table>",
    ]
    others = len(archive) - len(rows)
    if others:
        lines.append(f"<p>… and {others:,} other array{'s' * (others > 1)}</p>")
    lines += [f"<p>{escaped(reason)}</p>" for reason in reasons[:_MOST_REASONS]]
    if len(reasons) > _MOST_REASONS:
        lines.append(f"<p>… and {len(reasons) - _MOST_REASONS} other problems</p>")
    return "\n".join([*lines, "</div>"])


def escaped(text: str) -> str:
    """Return text for a web page, in quotes if it has invisible characters or ones that change the direction of text.

    Examples:
        >>> escaped("<b>.png"), escaped("a\\u202eb")
        ('&lt;b&gt;.png', '&#x27;a\\\\u202eb&#x27;')
    """
    return html.escape(text if text.isprintable() else repr(text))


def _first_rows(archive: "Archive") -> list[_Row]:
    table = archive.contents.index.table
    rows = []
    for number in range(min(_MOST_ARRAYS, len(archive))):
        block = archive.contents.block_of(number)
        rows.append(_Row(number, block, table.kinds[table.kind_of[block]], table.counts[block], table.sizes[block]))
    return rows


def _thumbnails(archive: "Archive", rows: list[_Row]) -> tuple[dict[int, str], list[str]]:
    """Return an <img> for each map by its number, and the reasons why some are missing."""
    blocks: dict[int, list[_Row]] = {}
    for row in rows:
        if is_map(row.kind.shape, format_of(archive, row.number)):
            blocks.setdefault(row.block, []).append(row)
    if not blocks:
        return {}, []
    found: dict[int, str] = {}
    reasons: list[str] = []
    classes = classes_of(archive)
    pool: Pool[tuple[dict[int, str], str]] = Pool(min(len(blocks), thread_count(archive.threads)))

    def results() -> Iterator[tuple[dict[int, str], str]]:
        left = _MOST_PIXELS
        for some in blocks.values():
            if some[0].values > left:
                yield {}, "Pictures of large maps are omitted; use the method image() to see them."
                continue
            left -= some[0].values
            pool.submit(_images, archive, some, classes)
            yield from pool.ready()
        yield from pool.rest()

    try:
        for images, reason in results():
            found |= images
            if reason and reason not in reasons:
                reasons.append(reason)
    finally:
        pool.close()
    return found, reasons


def _images(archive: "Archive", rows: list[_Row], classes: Classes | None) -> tuple[dict[int, str], str]:
    """Return an <img> for some maps of a block by their numbers, or why there are none."""
    try:
        block = archive.contents.read_block(rows[0].block)
        arrays = archive.decode_block(block)
    except (DdfError, OSError, ValueError) as error:
        return {}, f"No pictures: {error}"
    images = {}
    for row in rows:
        array = arrays[row.number - block.number]
        address = data_uri(picture(array, coloring(array, format_of(archive, row.number), classes), _SIDE))
        height, width = (max(1, round(side * _SIDE / max(array.shape))) for side in array.shape)
        images[row.number] = (
            f'<img src="{address}" width="{width}" height="{height}" alt="" style="image-rendering: pixelated">'
        )
    return images, ""


def _table_row(archive: "Archive", row: _Row, image: str) -> str:
    name = archive.contents.index.table.name(row.number)
    others = f" for {row.arrays:,} arrays" if row.arrays > 1 else ""
    bits = f"{8 * row.size / row.values:.4f}" if is_map(row.kind.shape, format_of(archive, row.number)) else ""
    cells = (
        image,
        escaped(name) if name else f"{row.number}",
        " × ".join(map(str, row.kind.shape)) or "scalar",
        str(np.dtype(DTYPES[row.kind.dtype])),
        f"{row.size:,}{others}",
        bits,
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
