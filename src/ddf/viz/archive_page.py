"""An archive as a web page: its key numbers, where its bits are spent, and how other codecs compare.

The page is one file. It loads nothing, runs no scripts, and can be printed.
"""

__all__ = ["archive_page", "file_name"]

from pathlib import PurePath
from urllib.parse import unquote, urlsplit

from ddf.archive.notebook import escaped
from ddf.viz.archive_statistics import ArchiveStatistics
from ddf.viz.number_texts import bits_text, bytes_text, count, short, three_digits
from ddf.viz.page_sections import classes_section, comparison_section, costly_section, distribution_section

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 980px; padding: 24px 20px 48px; background: #fff; color: #1b1f24;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
svg text { font-family: inherit; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.25; }
h2 { margin: 2.2em 0 0.5em; padding-top: 0.9em; border-top: 1px solid #d5dae0; font-size: 1.2rem; line-height: 1.3; }
h3 { margin: 1.6em 0 0.4em; font-size: 1rem; }
p { margin: 0.5em 0; max-width: 46em; }
p.lone { margin-top: 1.5em; }
p.note, figcaption, dd small { color: #59636e; }
p.note, figcaption { font-size: 0.9rem; }
dl { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 12px; margin: 1.4em 0 0; }
dl > div { padding: 12px 16px; border: 1px solid #d5dae0; border-radius: 6px; }
dt { color: #59636e; font-size: 0.9rem; }
dd { margin: 0; font-size: 1.5rem; font-weight: 600; line-height: 1.35; }
dd small { display: block; font-size: 0.85rem; font-weight: 400; line-height: 1.4; }
code { font: 0.95em ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); column-gap: 40px; }
.columns > * { min-width: 0; }
svg { display: block; width: 100%; max-width: 520px; height: auto; }
figure { margin: 0; min-width: 0; }
figcaption { margin-top: 6px; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, max-content)); gap: 6px 16px; }
.pair img { display: block; max-width: 100%; height: auto; border: 1px solid #d5dae0; image-rendering: pixelated; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid #e4e8ec; text-align: right; }
th { color: #59636e; font-size: 0.9rem; font-weight: 400; vertical-align: bottom; }
.text { text-align: left; }
i.swatch { display: inline-block; width: 1em; height: 1em; margin-right: 0.5em; border: 1px solid #8c959f;
  vertical-align: -0.12em; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
footer { margin-top: 3em; color: #59636e; font-size: 0.85rem; }
@media (max-width: 640px) { body { padding: 16px 14px 32px; } h1 { font-size: 1.4rem; } dd { font-size: 1.25rem; }
  dl { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; } dl > div { padding: 9px 11px; }
  dd small { font-size: 0.8rem; } th, td { padding-right: 10px; } .pair { gap: 6px 8px; } }
@media print { body { max-width: none; padding: 0; } h2, h3 { break-after: avoid; }
  dl > div, article, tr, figure { break-inside: avoid; } }
"""


def archive_page(statistics: ArchiveStatistics, name: str) -> str:
    """Return an archive as an HTML page.

    Arguments:
        statistics: The result of `ddf.viz.archive_statistics.measure`.
        name: The name of the archive; see `file_name`.
    """
    from ddf import __version__

    title = escaped(name)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">",
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        _key_numbers(statistics),
    ]
    if statistics.maps:
        parts += [
            '<div class="columns">',
            comparison_section(statistics.comparison, statistics),
            distribution_section(statistics),
            "</div>",
            costly_section(statistics),
            classes_section(statistics.labels, statistics.maps),
        ]
    else:
        parts.append(
            '<p class="lone">The archive contains no label maps (arrays of integers with a height and a width).</p>'
        )
    return "\n".join([*parts, f"<footer>ddf {__version__}</footer>", "</body></html>", ""])


def file_name(path: str) -> str:
    """Return the name of a file from its path or URL, without its folders and the query string of a URL.

    Examples:
        >>> file_name("data/masks.ddf"), file_name("https://example.org/a/masks.ddf?token=secret")
        ('masks.ddf', 'masks.ddf')
    """
    if "://" in path:
        path = unquote(urlsplit(path).path)
    return PurePath(path).name or path


def _key_numbers(found: ArchiveStatistics) -> str:
    """Return cards with the key numbers of the whole archive."""
    index = found.index
    others = found.arrays - found.maps - index.files
    besides = [count(number, unit) for number, unit in ((index.files, "other file"), (others, "other array")) if number]
    in_maps = round(index.sizes.sum())
    cards = [
        ("label maps", f"{found.maps:,}", f"plus {' and '.join(besides)}" if besides else ""),
        ("pixels", short(int(index.pixels.sum())), _sizes_of(found)),
        (
            "archive size",
            bytes_text(found.size),
            f"{found.size:,} bytes: {in_maps:,} for the maps and {found.size - in_maps:,} for everything else (index, "
            f"names{', model' * found.embedded}{', other files and arrays' * bool(besides)})",
        ),
        (
            "compression ratio",
            f"{three_digits(index.raw_size / found.size)} : 1" if index.raw_size else "–",
            f"Uncompressed, all arrays take {bytes_text(index.raw_size)}.",
        ),
    ]
    if found.maps:
        average = 8 * index.sizes.sum() / index.pixels.sum()
        cards.insert(3, ("bits per pixel", bits_text(average), "maps only, without index, names and model"))
    if found.fingerprint is None:
        cards.append(("model", "none", "The archive was created without a model."))
    else:
        which = "pretrained" if found.pretrained else "embedded" if found.embedded else "separate"
        where = {
            "pretrained": "the model included in ddf" + ", and also in the archive" * found.embedded,
            "embedded": "stored in the archive",
            "separate": "needed to read the archive",
        }
        cards.append(("model", which, f"{where[which]}<br>fingerprint <code>{found.fingerprint.hex()}</code>"))
    return "\n".join(
        [
            "<dl>",
            *(f"<div><dt>{title}</dt><dd>{value}<small>{note}</small></dd></div>" for title, value, note in cards),
            "</dl>",
        ]
    )


def _sizes_of(found: ArchiveStatistics) -> str:
    """Return the range of the sizes of all maps."""
    if not found.maps:
        return ""
    order = found.index.pixels.argsort(kind="stable")
    least, most = ("\u00a0×\u00a0".join(f"{side:,}" for side in found.index.shapes[i]) for i in (order[0], order[-1]))
    same = (found.index.shapes == found.index.shapes[0]).all()
    return f"{least}{' each' * (found.maps > 1)}" if same else f"from {least} to {most}"
