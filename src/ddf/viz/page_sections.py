"""The sections of a web page about an archive."""

__all__ = ["classes_section", "comparison_section", "costly_section", "distribution_section"]

from collections.abc import Sequence

from ddf.archive.notebook import escaped
from ddf.archive.pictures import data_uri, picture
from ddf.viz.archive_statistics import ArchiveStatistics, Comparison, Labels
from ddf.viz.bit_pictures import MOST_BITS, bit_picture, scale_colors, scale_position
from ddf.viz.measured_maps import CostlyMap
from ddf.viz.number_texts import bits_text, count, listed, on_maps
from ddf.viz.svg_charts import Bar, bars, bin_edges, color_scale, histogram

_SMALL_SIDE = 240  # CSS pixels to which small pictures are enlarged
_LEAST_SIDE = 6  # CSS pixels, so that very narrow maps are visible


def comparison_section(comparison: Comparison | None, found: ArchiveStatistics) -> str:
    """Return a bar chart of the sizes of other codecs."""
    title = "<section><h2>Size compared with other codecs</h2>"
    if comparison is None or not comparison.others:
        why = "all maps are too large or have more than 256 labels"
        return f'{title}<p class="note">Not measured: {why}.</p></section>'
    sizes = {"this archive": comparison.size, **comparison.others}
    rows = [
        Bar(
            name,
            size,
            bits_text(8 * size / comparison.pixels) + (f" ({size / comparison.size:.2f} ×)" if i else ""),
            emphasized=not i,
        )
        for i, (name, size) in enumerate(sizes.items())
    ]
    rows.sort(key=lambda row: row.value)
    failed = (
        f" Left out: {escaped(listed(comparison.failed))} (cannot encode all of these maps)."
        if comparison.failed
        else ""
    )
    text = ", ".join(f"{row.name} {row.text}" for row in rows)
    return "\n".join(
        [
            title,
            "<figure>",
            bars(rows, f"Bits per pixel: {text}"),
            "<figcaption>Bits per pixel and, in parentheses, the size relative to this archive, "
            f"measured {on_maps(comparison.maps, found.maps)}. Other codecs compress each map on its own; numbers "
            "after their names are compression levels. The index, the names and the model of the archive are not "
            f"counted.{failed}</figcaption>",
            "</figure></section>",
        ]
    )


def distribution_section(found: ArchiveStatistics) -> str:
    """Return a histogram of the bits per pixel of all maps."""
    values = found.bits_per_pixel
    title = "<section><h2>Bits per pixel of each map</h2>"
    if found.maps == 1:
        return f"{title}<p>The only map takes {bits_text(values[0])} bits per pixel.</p></section>"
    maps = count(found.maps, "map")
    shared = " Maps that share a block are counted with the average of that block." if found.index.shared else ""
    beyond = int((values > bin_edges(values)[-1]).sum())
    more = f" The last bar includes {count(beyond, 'map')} with up to {bits_text(values.max())}." if beyond else ""
    return "\n".join(
        [
            title,
            "<figure>",
            histogram(values, "bits per pixel", "map", f"Histogram of the bits per pixel of {maps}"),
            f"<figcaption>All {maps}, from {bits_text(values.min())} to {bits_text(values.max())} bits per pixel."
            f"{more}{shared}</figcaption>",
            "</figure></section>",
        ]
    )


def costly_section(found: ArchiveStatistics) -> str:
    """Return the maps that take the most bytes, each beside the bits of its pixels."""
    if not found.costly:
        return '<h2>Most expensive maps</h2><p class="note">Not drawn: all maps are too large.</p>'
    texts = ["The maps that take the most bytes."]
    if found.index.shared:
        texts.append("For a map that shares a block, the size is what it would be if the map were coded on its own.")
    known = [one.bits is not None for one in found.costly]
    if any(known):
        texts.append(
            "To the right of each map are the bits of its pixels, most of which are usually spent along borders."
        )
    if any(one.bits is not None and max(one.bits.shape) < max(one.shape) for one in found.costly):
        texts.append("For large maps, each dot shows the average of several pixels.")
    if any(known) and not all(known):
        texts.append("The bits of maps that were stored with a general-purpose compressor are not known.")
    lines = ["<h2>Most expensive maps</h2>", f"<p>{' '.join(texts)}</p>"]
    if any(known):
        lines += ["<figure>", _scale(), "<figcaption>bits of a pixel</figcaption></figure>"]
    return "\n".join([*lines, '<div class="columns">', *map(_costly_map, found.costly), "</div>"])


def _costly_map(one: CostlyMap) -> str:
    pixels = one.shape[0] * one.shape[1]
    half = "" if one.half is None else f" Half of the bits are in {one.half:.2%} of the pixels."
    images = [data_uri(picture(one.thumbnail, one.colors))]
    images += [] if one.bits is None else [data_uri(bit_picture(one.bits))]
    height, width = one.thumbnail.shape
    zoom = max(1.0, _SMALL_SIDE / max(height, width))
    wide, high = max(_LEAST_SIDE, round(width * zoom)), max(_LEAST_SIDE, round(height * zoom))
    # The pictures may have different numbers of pixels, but are shown at the same size.
    size = f'width="{wide}" height="{high}" style="aspect-ratio: {wide} / {high}"'
    texts = ("the map", "bits of its pixels")
    shown = [f'<img src="{image}" {size} alt="{text}">' for image, text in zip(images, texts, strict=False)]
    return "\n".join(
        [
            "<article>",
            f"<h3>{escaped(one.name)}</h3>",
            f'<p class="note">{one.shape[0]:,} × {one.shape[1]:,}, {round(one.size):,} bytes, '
            f"{bits_text(8 * one.size / pixels)} bits per pixel.{half}</p>",
            '<div class="pair">',
            *shown,
            "</div></article>",
        ]
    )


def _scale() -> str:
    ticks = [(scale_position(value), f"{value:g}") for value in (0, 0.1, 1)]
    ticks.append((1.0, f"{MOST_BITS:g}+"))
    return color_scale(scale_colors(64), ticks, "Colors of the bits of a pixel, from white for 0 to dark for 10")


def classes_section(labels: Labels, maps: int) -> str:
    """Return a table of the most frequent labels.

    Arguments:
        labels: The labels of a sample of the maps.
        maps: The number of all maps.
    """
    lines = ["<h2>Classes</h2>"]
    if not labels.maps:
        return "\n".join([*lines, '<p class="note">Not counted: all maps are too large.</p>'])
    named = any(share.name for share in labels.frequent)
    titles = ["label", *["name"] * named, "share of pixels", *["share of bits"] * bool(labels.bits)]
    rows = [
        [
            f'<i class="swatch" style="background:#{bytes(share.color).hex()}"></i>{share.label}',
            *[escaped(share.name)] * named,
            *_shares(share.pixels, share.bits, labels),
        ]
        for share in labels.frequent
    ]
    rest = labels.count - len(labels.frequent)
    if rest:
        pixels = labels.pixels - sum(share.pixels for share in labels.frequent)
        bits = labels.bits - sum(share.bits for share in labels.frequent)
        rows.append([count(rest, "other label"), *[""] * named, *_shares(pixels, bits, labels)])
    some = labels.bits and labels.explained < labels.maps
    coded = f" The bits are those of the {count(labels.explained, 'map')} that the model coded." if some else ""
    return "\n".join(
        [
            *lines,
            "<table>",
            f"<thead>{_row('th', titles, 1 + named)}</thead>",
            "<tbody>",
            *(_row("td", row, 1 + named) for row in rows),
            "</tbody></table>",
            f'<p class="note">{count(labels.count, "label")}, counted {on_maps(labels.maps, maps)}.{coded}</p>',
        ]
    )


def _row(tag: str, cells: Sequence[str], texts: int) -> str:
    """Return a row of a table whose first cells are texts and whose other cells are numbers."""
    text = ' class="text"'
    return f"<tr>{''.join(f'<{tag}{text * (i < texts)}>{cell}</{tag}>' for i, cell in enumerate(cells))}</tr>"


def _shares(pixels: int, bits: float, labels: Labels) -> list[str]:
    return [f"{pixels / labels.pixels:.2%}", *[f"{bits / (labels.bits or 1):.2%}"] * bool(labels.bits)]
