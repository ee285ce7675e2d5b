"""Archives as web pages and in notebooks, and their maps as images."""

import base64
import html
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ddf.archive import Archive, ArchiveWriter, FileFormat, FileWriter, WrongModelError
from ddf.archive.pictures import Coloring, automatic_colors, coloring, is_map, picture, thumbnail
from ddf.classes import Classes
from ddf.cli.main import main
from ddf.data.drawn import SCENE_CLASSES, draw_scenes
from ddf.labelmaps import CausalFlow, pretrained
from ddf.peers import peers
from ddf.viz.archive_page import archive_page
from ddf.viz.archive_statistics import ArchiveStatistics, measure
from ddf.viz.bit_pictures import bit_picture, pooled, scale_position
from ddf.viz.number_texts import bits_text
from ddf.viz.svg_charts import Bar, bars, bin_edges, histogram
from tests.zoo import coupling_flow

Array = np.ndarray

PALETTE = [value for color in SCENE_CLASSES.colors for value in color]
HOSTILE = ["<script>alert(1)</script>.png", '"><img src=x onerror=alert(1)>', "a\u202egnp.b", "&amp;", "</title><b>"]
VOID = {"br", "img", "meta"}
CHROMIUM = shutil.which("chromium")


# ---- Archives


def scenes(count: int = 4, seed: int = 1) -> list[Array]:
    return draw_scenes(count, seed=seed, sizes=(40, 64))


def write(path: Path, arrays: dict[str, Array] | list[Array], model: object = "pretrained", **options: object) -> Path:
    names = list(arrays) if isinstance(arrays, dict) else [f"map {i}" for i in range(len(arrays))]
    codec = pretrained() if model == "pretrained" else model
    with ArchiveWriter(path, codec, overwrite=True, **options) as archive:  # type: ignore[arg-type]
        for name, array in zip(names, arrays.values() if isinstance(arrays, dict) else arrays, strict=True):
            archive.add(array, name)
    return path


def various() -> dict[str, Array]:
    """Return maps of all kinds, and arrays that are not maps."""
    scene = scenes(1)[0]
    generator = np.random.default_rng(0)
    return {
        **dict(zip(HOSTILE, scenes(len(HOSTILE), seed=2), strict=True)),
        "bool": scene > 1,
        "huge labels": scene.astype(np.uint64) * np.uint64(10**18) + np.uint64(2**63),
        "negative labels": scene.astype(np.int16) - 2,
        "many labels": np.arange(40 * 50, dtype=np.int32).reshape(40, 50).repeat(2, 1),
        "noise": generator.integers(0, 256, (30, 40), dtype=np.uint8),
        "narrow": np.arange(3000, dtype=np.uint8).reshape(1, -1) // 7,
        "tall": np.zeros((2000, 1), np.uint8),
        "upsampled": scene.repeat(3, 0).repeat(4, 1),
        "pixel": np.ones((1, 1), np.uint8),
        "": scene,
        "vector": np.arange(5),
        "scalar": np.array(3),
        "stack": np.zeros((2, 9, 9), np.uint8),
        "empty": np.zeros((0, 7), np.uint8),
    }


def with_palette(path: Path) -> Path:
    """Write an archive of images with a palette, and of a text file."""
    with ArchiveWriter(path, pretrained(), overwrite=True) as archive:
        writer = FileWriter(archive)
        for i, scene in enumerate(scenes()):
            image = Image.fromarray(scene)
            image.putpalette(PALETTE)
            image.save(path.with_name(f"{i}.png"))
            writer.add(path.with_name(f"{i}.png"), f"{i}.png")
        path.with_name("a.txt").write_text("not a map")
        writer.add(path.with_name("a.txt"), "a.txt")
    return path


def only_files(path: Path) -> Path:
    with ArchiveWriter(path, pretrained(), overwrite=True) as archive:
        path.with_name("a.txt").write_text("not a map")
        FileWriter(archive).add(path.with_name("a.txt"), "a.txt")
    return path


def ternary(count: int) -> list[Array]:
    """Return maps for `coupling_flow`."""
    return list(np.random.default_rng(0).integers(0, 3, (count, 8, 6), dtype=np.uint8))


ARCHIVES: dict[str, Callable[[Path], Path]] = {
    "one map": lambda path: write(path, scenes(1)),
    "no arrays": lambda path: write(path, []),
    "only files": only_files,
    "maps and a file": with_palette,
    "arrays of all kinds": lambda path: write(path, various()),
    "shared blocks": lambda path: write(path, draw_scenes(9, seed=4, sizes=(32, 32)), maps_per_block=4),
    "binary masks": lambda path: write(path, [(scene > 1) * np.uint8(255) for scene in scenes()]),
    "equal maps": lambda path: write(path, scenes(1) * 3),
    "no model": lambda path: write(path, scenes(), model=None),
    "integer flow": lambda path: write(path, ternary(4), coupling_flow(), embed_model=True),
    "upsampled maps": lambda path: write(path, [one.repeat(10, 0).repeat(25, 1) for one in ternary(3)]),
}


# ---- Reading pages


class Page(HTMLParser):
    """A page, after checking that its tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # the innermost tag, and the text
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"<{tag}/> is not valid HTML"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data.strip()

    def of(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]

    @property
    def cards(self) -> dict[str, str]:
        """The key numbers."""
        return dict(zip(self.of("dt"), self.of("dd"), strict=True))

    @property
    def images(self) -> list[Image.Image]:
        found = []
        for tag, attributes in self.tags:
            if tag == "img":
                kind, data = str(attributes["src"]).split(",")
                assert kind == "data:image/png;base64"
                image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
                image.load()
                found.append(image.convert("RGB"))
        return found

    def check_safety(self) -> None:
        """Check that the page loads and runs nothing."""
        assert "http:" not in self.text
        assert "https:" not in self.text
        assert "<script" not in self.text.lower()
        assert not {tag for tag, _ in self.tags} & {"script", "iframe", "object", "embed", "link", "base", "form", "a"}
        for tag, attributes in self.tags:
            assert not [name for name in attributes if name.startswith("on") or name in ("href", "xlink:href")]
            assert (tag == "img") == ("src" in attributes)
            assert not [value for value in attributes.values() if value and "url(" in value]
        style = "".join(self.of("style"))
        assert style
        assert not re.search(r"url|@import|expression|<", style)


def report(path: Path, *options: object) -> Page:
    output = path.with_suffix(".html")
    assert main(["report", str(path), "-o", str(output), "--force", "--threads", "1", *map(str, options)]) == 0
    return Page(output.read_text(encoding="utf-8"))


def colors_in(image: Image.Image) -> set[tuple[int, ...]]:
    return {color for _, color in image.convert("RGB").getcolors(1 << 24)}  # type: ignore[misc,union-attr]


def block_sizes(archive: Archive) -> list[int]:
    """Return the size of the block of each array, with its checksum."""
    return [4 + len(block.payload) for block in archive.blocks() for _ in range(block.count)]


# ---- Pages


@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_page_is_valid_and_self_contained(kind: str, tmp_path: Path) -> None:
    archive = ARCHIVES[kind](tmp_path / "archive.ddf")
    page = report(archive)
    page.check_safety()
    assert page.text.startswith("<!DOCTYPE html>")
    assert page.of("title")[0] == "archive.ddf" == page.of("h1")[0]
    maps = [array for array in Archive(archive).values() if array.ndim == 2 and array.size]
    assert page.cards["label maps"] == str(len(maps))
    assert page.cards["pixels"] == f"{sum(array.size for array in maps):,}"
    assert len(page.of("h3")) == min(6, len(maps))
    drawn = sum(tag == "article" for tag, _ in page.tags)
    assert drawn <= len(page.images) <= 2 * drawn
    svg = sum(tag == "svg" for tag, _ in page.tags)
    assert svg == (0 if not maps else (len(maps) > 1) + (len(page.images) > drawn) + 1)
    assert "nan" not in page.text
    assert "inf" not in re.sub(r"base64,[^\"]*", "", page.text)
    numbers = [float(number) for number in re.findall(r' (?:x|y|x1|x2|y1|y2|width|height)="([^"]*)"', page.text)]
    assert all(0 <= number < 3000 for number in numbers)


def test_the_numbers_of_a_page_are_right(tmp_path: Path) -> None:
    maps = draw_scenes(7, seed=3, sizes=(40, 90))
    path = write(tmp_path / "scenes.ddf", [*maps, np.arange(9)], embed_model=True)
    archive = Archive(path)
    found = measure(archive)
    page = report(path)
    sizes, pixels = np.array(block_sizes(archive)[: len(maps)]), np.array([one.size for one in maps])
    total = path.stat().st_size
    assert page.cards["bits per pixel"] == f"{8 * sizes.sum() / pixels.sum():.4f}"
    assert page.cards["archive size"] == f"{total / 1000:.0f}\u00a0kB"
    assert f"{total:,} bytes: {sizes.sum():,} for the maps and {total - sizes.sum():,} for everything else" in page.text
    raw = pixels.sum() + 9 * np.arange(9).itemsize
    assert page.cards["compression ratio"] == f"{raw / total:.2f} : 1"
    assert "pretrained" in page.cards["model"]
    assert pretrained().fingerprint.hex() in page.text
    assert np.allclose(found.bits_per_pixel, 8 * sizes / pixels)

    explained = [pretrained().explain(one).bits for one in maps]
    everything, all_bits = np.concatenate([one.ravel() for one in maps]), np.concatenate([b.ravel() for b in explained])
    labels, counts = np.unique(everything, return_counts=True)
    order = np.argsort(-counts)
    expected = [
        [
            str(label),
            f"{(everything == label).mean():.2%}",
            f"{all_bits[everything == label].sum() / all_bits.sum():.2%}",
        ]
        for label in labels[order]
    ]
    assert page.rows == [["label", "share of pixels", "share of bits"], *expected]
    assert "5 labels, counted on all 7 maps." in page.text

    others = {
        name: sum(len(encode(np.searchsorted(np.unique(one), one).astype(np.uint8))) for one in maps)
        for name, encode in peers().items()
    }
    assert found.comparison is not None
    assert (found.comparison.others, found.comparison.size) == (others, sizes.sum())
    texts = page.of("text")
    for name, size in others.items():
        assert texts[texts.index(name) + 1] == f"{8 * size / pixels.sum():.4f} ({size / sizes.sum():.2f} ×)"
    assert texts[texts.index("this archive") + 1] == f"{8 * sizes.sum() / pixels.sum():.4f}"
    assert "measured on all 7 maps" in page.text

    costly = sorted(range(7), key=lambda i: -sizes[i])[:6]
    assert page.of("h3") == [f"map {i}" for i in costly]
    for i in costly:
        height, width = maps[i].shape
        assert f"{height} × {width}, {sizes[i]} bytes, {8 * sizes[i] / maps[i].size:.4f} bits per pixel." in page.text
        bits = np.sort(explained[i], axis=None)[::-1]
        half = 1 + np.flatnonzero(bits.cumsum(dtype=np.float64) < bits.sum(dtype=np.float64) / 2)[-1]
        assert f"Half of the bits are in {(half + 1) / maps[i].size:.2%} of the pixels." in page.text


def test_names_are_escaped(tmp_path: Path) -> None:
    maps = dict(zip(HOSTILE, scenes(len(HOSTILE)), strict=True))
    name = "<script>alert(2)<&script>.ddf"  # a slash would be a folder
    page = report(write(tmp_path / name, maps))
    page.check_safety()
    assert page.of("title")[0] == page.of("h1")[0] == name
    shown = [name if name.isprintable() else repr(name) for name in HOSTILE]
    assert sorted(page.of("h3")) == sorted(shown)
    assert "\u202e" not in page.text


def known_model() -> CausalFlow:
    """Return a model with named and colored classes, some of which need to be escaped."""
    golden = Archive(Path(__file__).parent / "golden" / "labels-known-1.ddf").model
    assert isinstance(golden, CausalFlow)
    assert golden.classes is not None
    values = golden.classes.values
    names = tuple(f"<b>class {value}</b>" for value in values)
    colors = tuple((10 * i, 200 - 10 * i, 90 + i) for i in range(len(values)))
    return CausalFlow(golden.arrays, Classes(values, names, colors))


def test_classes_have_the_names_and_colors_of_the_model(tmp_path: Path) -> None:
    model = known_model()
    assert model.classes is not None
    values = np.array(model.classes.values)
    rows, columns = np.ogrid[:30, :40]
    one = values[(rows // 9 + columns // 11) % len(values)]
    other = np.where(one == values[0], 199, one)  # a label that the model does not know
    path = write(tmp_path / "known.ddf", [one, other], model, embed_model=True)
    page = report(path)
    page.check_safety()
    assert page.rows[0] == ["label", "name", "share of pixels", "share of bits"]
    table = {int(row[0]): row[1] for row in page.rows[1:]}
    names = dict(zip(model.classes.values, model.classes.names, strict=True))
    assert table == {label: names.get(label, "") for label in np.unique([one, other]).tolist()}
    known = dict(zip(model.classes.values, model.classes.colors, strict=True))
    automatic = tuple(automatic_colors(np.array([199]))[0].tolist())
    swatches = [str(attributes["style"])[-6:] for tag, attributes in page.tags if tag == "i"]
    assert swatches == [bytes(known.get(int(row[0]), automatic)).hex() for row in page.rows[1:]]
    for image, array in ((Archive(path).image(i), (one, other)[i]) for i in range(2)):
        expected = np.array([known.get(label, automatic) for label in array.ravel().tolist()], np.uint8)
        assert np.array_equal(np.asarray(image.convert("RGB")), expected.reshape(*array.shape, 3))
    assert colors_in(page.images[0]) | colors_in(page.images[2]) == {known[v] for v in table if v in known} | {
        automatic
    }


def test_rare_labels_share_a_row(tmp_path: Path) -> None:
    array = np.repeat(np.arange(40), 50 + np.arange(40))[:2720].reshape(40, 68)
    page = report(write(tmp_path / "a.ddf", [array]))
    assert len(page.rows) == 1 + 24 + 1
    assert [int(row[0]) for row in page.rows[1:25]] == sorted(range(40), key=lambda i: -(array == i).sum())[:24]
    labels, bits = np.unique(array), pretrained().explain(array).bits
    listed = np.isin(array, [int(row[0]) for row in page.rows[1:25]])
    expected = [
        f"{len(labels) - 24} other labels",
        f"{1 - listed.mean():.2%}",
        f"{1 - bits[listed].sum() / bits.sum():.2%}",
    ]
    assert page.rows[25] == expected


def test_pictures_show_the_palette_of_the_file_and_the_bits_of_the_model(tmp_path: Path) -> None:
    path = with_palette(tmp_path / "palette.ddf")
    page, archive = report(path), Archive(path)
    assert "plus 1 other file" in page.text
    assert len(page.images) == 8
    for i, name in enumerate(page.of("h3")):
        array = archive[name]
        assert np.array_equal(np.asarray(page.images[2 * i]), np.array(SCENE_CLASSES.colors, np.uint8)[array])
        bits = pretrained().explain(array).bits
        assert np.array_equal(np.asarray(page.images[2 * i + 1]), np.asarray(bit_picture(bits).convert("RGB")))
    for tag, attributes in page.tags:
        if tag == "img":  # small maps are enlarged, and keep their proportions
            assert max(int(str(attributes[side])) for side in ("width", "height")) == 240


def test_the_bits_of_a_page_add_up_to_the_size_of_the_blocks(tmp_path: Path) -> None:
    scene = draw_scenes(1, seed=8)[0]
    maps = [scene, scene.repeat(3, 0).repeat(2, 1), (scene > 1) * np.int64(-(10**12))]
    archive = Archive(write(tmp_path / "a.ddf", maps))
    found = measure(archive, codecs={})
    assert found.comparison is None
    assert len(found.costly) == 3
    for one in found.costly:
        assert one.bits is not None
        payload = 8 * (one.size - 4)
        assert payload - 200 < one.bits.sum() < payload + 8  # the header lists the labels and the grid
    assert found.labels.bits == pytest.approx(
        sum(float(one.bits.sum()) for one in found.costly if one.bits is not None)
    )


def test_an_integer_flow_explains_its_bits(tmp_path: Path) -> None:
    maps = ternary(9)
    path = write(tmp_path / "flow.ddf", maps, coupling_flow(), embed_model=True)
    found = measure(Archive(path))
    assert found.labels.explained == 9
    for one in found.costly:
        assert one.bits is not None
        assert one.bits.shape == (8, 6)
        assert 8 * (one.size - 4) - 33 < one.bits.sum() < 8 * (one.size - 4) + 1  # the range coder ends with a word
    assert len(report(path).images) == 12


def test_a_sample_is_compared_with_the_archive_on_the_same_maps(tmp_path: Path) -> None:
    maps = [17 * scene for scene in draw_scenes(12, seed=6, sizes=(30, 60))]
    path = write(tmp_path / "a.ddf", maps)
    archive = Archive(path, threads=1)
    seen: list[bytes] = []

    def encode(array: Array) -> bytes:
        seen.append(np.ascontiguousarray(array).tobytes())
        return bytes(100)

    found = measure(archive, max_maps=5, codecs={"one hundred": encode})
    assert found.comparison is not None
    sizes = dict(
        zip(
            (np.unique(one, return_inverse=True)[1].astype(np.uint8).tobytes() for one in maps),
            block_sizes(archive),
            strict=True,
        )
    )
    assert len(set(seen)) == 5
    assert found.comparison.size == sum(sizes[one] for one in seen)
    assert found.comparison.others == {"one hundred": 500}
    assert found.comparison.pixels == sum(map(len, seen)) == found.labels.pixels
    assert (found.maps, found.comparison.maps, found.labels.maps) == (12, 5, 5)
    assert measure(archive, max_maps=5, codecs={"one hundred": encode}).comparison == found.comparison
    assert "measured on 5 of 12 maps" in archive_page(found, "a.ddf")
    assert "counted on 3 of 12 maps" in report(path, "--max-maps", 3).text


def test_codecs_that_fail_are_named(tmp_path: Path) -> None:
    def fail(array: Array) -> bytes:
        raise RuntimeError("cannot encode this")

    archive = Archive(write(tmp_path / "a.ddf", scenes()))
    found = measure(archive, codecs={"good": lambda array: bytes(7), "<bad>": fail})
    assert found.comparison is not None
    assert (found.comparison.others, found.comparison.failed) == ({"good": 28}, ("<bad>",))
    assert "Left out: &lt;bad&gt; (cannot encode all of these maps)." in archive_page(found, "a.ddf")


def test_large_maps_and_maps_with_many_labels_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = {
        "labels": np.arange(900, dtype=np.int32).reshape(30, 30).repeat(2, 0),
        "large": np.zeros((200, 300), np.uint8),
    }
    archive = Archive(write(tmp_path / "a.ddf", maps))
    for limit, compared, counted, drawn in ((1 << 30, 1, 2, 2), (30_000, 0, 1, 1), (10, 0, 0, 0)):
        monkeypatch.setattr("ddf.viz.map_index._LARGEST", limit)
        found = measure(archive)
        assert (found.comparison.maps if found.comparison else 0) == compared
        assert (found.labels.maps, len(found.costly)) == (counted, drawn)
        page = Page(archive_page(found, "a.ddf"))
        assert ("Not measured" in page.text) == (compared == 0)
        assert ("Not counted" in page.text) == ("Not drawn" in page.text) == (counted == 0)
    monkeypatch.undo()
    monkeypatch.setattr("ddf.viz.map_index._COMPARED", 1000)
    assert measure(archive).comparison is None


def test_maps_that_share_a_block_are_measured_one_by_one(tmp_path: Path) -> None:
    maps = draw_scenes(13, seed=4, sizes=(32, 32))
    path = write(tmp_path / "shared.ddf", maps, maps_per_block=4)
    found = measure(Archive(path))
    assert found.index.shared
    own = [pretrained().explain(one).bits.sum(dtype=np.float64) / 8 for one in maps]
    own[12] = block_sizes(Archive(path))[12]  # which has a block for itself
    assert [one.size for one in found.costly] == pytest.approx(sorted(own, reverse=True)[:6])
    assert found.index.sizes.sum() == pytest.approx(sum(4 + len(block.payload) for block in Archive(path).blocks()))
    page = report(path)
    assert "Maps that share a block are counted with the average of that block." in page.text
    for count in (3, 5, 13):
        sampled = measure(Archive(path), max_maps=count, codecs={"none": lambda array: b""})
        assert (sampled.labels.maps, sampled.labels.pixels) == (count, count * 32 * 32)


def test_all_pictures_of_a_page_show_a_label_in_one_color(tmp_path: Path) -> None:
    binary = (np.add.outer(range(30), range(40)) % 17 < 6).astype(np.uint8) * 7
    path = write(tmp_path / "one.ddf", [binary, binary])
    assert colors_in(report(path).images[0]) == {(0, 0, 0), (255, 255, 255)}
    three = binary.copy()
    three[3:9, 4:9] = 5
    write(path, [binary, three])
    page = report(path)
    seven = tuple(automatic_colors(np.array([7]))[0].tolist())
    assert colors_in(page.images[0]) | colors_in(page.images[2]) == {
        (0, 0, 0), seven, tuple(automatic_colors(np.array([5]))[0].tolist()),
    }  # fmt: skip
    assert (255, 255, 255) not in colors_in(page.images[0]) | colors_in(page.images[2])
    assert colors_in(Archive(path).image("map 0")) == {(0, 0, 0), (255, 255, 255)}  # a map on its own


# ---- The command


def test_the_command_states_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.ddf", [*scenes(), np.arange(3)])
    page = report(path, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(path.with_suffix(".html"))
    assert (found["maps"], found["other_arrays"], found["files"]) == (4, 1, 0)
    assert found["bytes"] == path.stat().st_size
    assert f"{found['bits_per_pixel']:.4f}" == page.cards["bits per pixel"]
    assert found["comparison"]["this archive"] == sum(block_sizes(Archive(path))[:4])
    assert set(peers()) < set(found["comparison"])
    assert [one["name"] for one in found["expensive"]] == page.of("h3")
    report(write(tmp_path / "none.ddf", []))
    assert "none.html: 0 label maps; open it in a browser" in capsys.readouterr().out


def test_existing_files_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = write(tmp_path / "a.ddf", scenes(1)), tmp_path / "a.html"
    output.write_text("mine")
    assert main(["report", str(path), "-o", str(output)]) == 1
    assert "a.html already exists; use --force to replace it" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert main(["report", str(path), "-o", str(tmp_path / "a.png")]) == 2
    assert "a.png has an unsupported suffix; pass an .html file" in capsys.readouterr().err
    assert main(["report", str(path), "-o", str(tmp_path / "no" / "a.html")]) == 1
    (tmp_path / "folder.html").mkdir()
    assert main(["report", str(path), "-o", str(tmp_path / "folder.html"), "--force"]) == 1
    assert {file.name for file in tmp_path.iterdir()} == {"a.ddf", "a.html", "folder.html"}


def test_missing_models_and_damage_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "flow.ddf", ternary(3), coupling_flow())
    assert main(["report", str(path), "-o", str(tmp_path / "a.html")]) == 1
    assert "it needs the model" in capsys.readouterr().err
    coupling_flow().save(tmp_path / "model.safetensors")
    assert report(path, "--model", tmp_path / "model.safetensors").cards["model"].startswith("separate")
    damaged = damage(write(tmp_path / "damaged.ddf", scenes()), 2)
    assert main(["report", str(damaged), "-o", str(tmp_path / "a.html")]) == 1
    assert "`ddf recover` extracts what is intact" in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


def damage(path: Path, number: int) -> Path:
    """Change a byte of the block of an array."""
    contents = bytearray(path.read_bytes())
    archive = Archive(path)
    contents[int(archive.contents.starts[archive.contents.block_of(number)]) + 12] ^= 255
    path.write_bytes(contents)
    return path


def test_archives_are_read_from_urls(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/reports/a b.ddf", write(tmp_path / "a.ddf", scenes()).read_bytes())
    output = tmp_path / "url.html"
    assert main(["report", "memory://reports/a b.ddf", "-o", str(output), "--threads", "1"]) == 0
    page = Page(output.read_text(encoding="utf-8"))
    page.check_safety()
    assert page.of("h1") == ["a b.ddf"]


def test_a_plain_installation_writes_reports(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ddf", scenes(2))
    without = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'matplotlib', 'constriction', 'pooch', 'fsspec']))"
    )
    script = f"{without}; from ddf.cli.main import main; raise SystemExit(main())"
    command = [sys.executable, "-c", script, "report", str(path), "-o", str(tmp_path / "a.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- Notebooks


def notebook(archive: Archive) -> Page:
    page = Page(archive._repr_html_())
    page.check_safety() if page.of("style") else None
    assert not [tag for tag, attributes in page.tags if "src" in attributes and tag != "img"]
    return page


def test_notebooks_show_the_first_arrays(tmp_path: Path) -> None:
    arrays = various()
    path = write(tmp_path / "<i>.ddf", arrays)
    archive = Archive(path)
    page = notebook(archive)
    assert page.of("code") == [repr(archive)]
    assert page.rows[0] == ["", "name", "shape", "dtype", "bytes", "bits per pixel"]
    names = [name if name.isprintable() else repr(name) for name in arrays]
    assert [row[1] for row in page.rows[1:]] == [name or str(i) for i, name in enumerate(names)]
    for row, array, size in zip(page.rows[1:], arrays.values(), block_sizes(archive), strict=True):
        is_map = array.ndim == 2 and array.size > 0
        assert row[2:5] == [" × ".join(map(str, array.shape)) or "scalar", str(array.dtype), f"{size:,}"]
        assert row[5] == (f"{8 * size / array.size:.4f}" if is_map else "")
    maps = [array for array in arrays.values() if array.ndim == 2 and array.size]
    assert len(page.images) == len(maps)
    for image, array in zip(page.images, maps, strict=True):
        expected = picture(thumbnail(array, 96), coloring(array)).convert("RGB")
        assert np.array_equal(np.asarray(image), np.asarray(expected))
        assert max(image.size) <= 96


def test_notebooks_show_twenty_arrays_and_count_the_others(tmp_path: Path) -> None:
    maps = draw_scenes(23, seed=5, sizes=(32, 32))
    page = notebook(Archive(write(tmp_path / "a.ddf", maps, maps_per_block=7)))
    assert len(page.rows) == 21
    for image, array in zip(page.images, maps[:20], strict=True):
        assert np.array_equal(np.asarray(image), np.asarray(picture(array, coloring(array)).convert("RGB")))
    assert "… and 3 other arrays" in page.text
    assert page.rows[1][4].endswith(" for 7 arrays")
    assert "other array" not in Archive(write(tmp_path / "b.ddf", scenes(1) * 20))._repr_html_()
    assert notebook(Archive(write(tmp_path / "c.ddf", []))).rows == [page.rows[0]]


def test_notebooks_show_palettes_and_no_pictures_of_files(tmp_path: Path) -> None:
    page = notebook(Archive(with_palette(tmp_path / "a.ddf")))
    assert len(page.rows) == 6
    assert len(page.images) == 4
    assert all(colors_in(image) <= set(SCENE_CLASSES.colors) for image in page.images)
    assert page.rows[5][1] == "a.txt"
    assert page.rows[5][5] == ""


def test_notebooks_state_why_pictures_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = coupling_flow()
    path = write(tmp_path / "flow.ddf", [*ternary(3), np.zeros((5, 5), np.uint8)], flow)
    page = notebook(Archive(path))
    assert len(page.rows) == 5
    assert len(page.images) == 1  # of the map that the model does not support
    assert [text for text in page.of("p") if "it needs the model" in text] == [page.of("p")[-1]]
    assert len(notebook(Archive(path, flow)).images) == 4

    page = notebook(Archive(damage(write(tmp_path / "damaged.ddf", scenes()), 2)))
    assert len(page.rows) == 5
    assert len(page.images) == 3
    assert "'map 2' cannot be decoded" in page.of("p")[-1]

    large = Archive(write(tmp_path / "large.ddf", [np.zeros((200, 300), np.uint8), *scenes(2)]))
    monkeypatch.setattr("ddf.archive.notebook._MOST_PIXELS", 59_999)
    page = notebook(large)
    assert len(page.images) == 2
    assert "Pictures of large maps are omitted" in page.of("p")[-1]
    assert "the limit is" in notebook(Archive(tmp_path / "large.ddf", max_bytes=100)).text
    equal = scenes(1) * 5
    monkeypatch.setattr("ddf.archive.notebook._MOST_PIXELS", 2 * equal[0].size)
    assert len(notebook(Archive(write(tmp_path / "equal.ddf", equal))).images) == 2


# ---- Images


def test_images_have_the_colors_of_the_palette(tmp_path: Path) -> None:
    archive = Archive(with_palette(tmp_path / "a.ddf"))
    image = archive.image("2.png")
    assert image.mode == "P"
    assert np.array_equal(np.asarray(image), archive["2.png"])
    assert np.array_equal(np.asarray(image.convert("RGB")), np.array(SCENE_CLASSES.colors, np.uint8)[archive["2.png"]])
    assert np.array_equal(np.asarray(archive.image(2)), archive[2])
    for key, why in (("a.txt", "'a.txt' is a file, but an image shows a map"), (4, "4 is a file")):
        with pytest.raises(ValueError, match=why):
            archive.image(key)
    with pytest.raises(KeyError):
        archive.image("missing")


def test_a_palette_comes_before_the_classes_and_both_before_automatic_colors() -> None:
    classes = Classes((1, 2), ("a", "b"), ((1, 1, 1), (2, 2, 2)))
    palette = FileFormat("PNG", "P", palette=bytes([9, 9, 9, 8, 8, 8]))
    one = np.array([[0, 1, 2, 3]], np.uint8)
    shown = np.asarray(picture(one, coloring(one, palette, classes)).convert("RGB"))[0].tolist()
    assert shown == [[9, 9, 9], [8, 8, 8], [2, 2, 2], automatic_colors(np.array([3]))[0].tolist()]
    two = one[:, :2]
    assert np.asarray(picture(two, coloring(two, palette)).convert("RGB"))[0].tolist() == [[9, 9, 9], [8, 8, 8]]
    assert np.asarray(picture(two, coloring(two, None, classes)).convert("RGB"))[0].tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])
def test_automatic_colors_depend_on_the_label_only(dtype: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for narrow in ([low, low + 1], [high - 1, high]):
        one = np.array([narrow], dtype)
        shown = np.asarray(picture(one, Coloring()).convert("RGB"))[0].tolist()
        assert shown == [list(Coloring().of(label)) for label in narrow]
    labels = np.unique(np.array([0, 1, 2, 3, 100, high, low], dtype))
    one = labels.reshape(1, -1).repeat(3, 0)
    shown = np.asarray(picture(one, coloring(one)).convert("RGB"))
    for label, color in zip(labels.tolist(), shown[0].tolist(), strict=True):
        assert color == list(Coloring().of(label))
        other = np.array([[label, 0, 1, 2]], dtype)
        assert color == np.asarray(picture(other, coloring(other)).convert("RGB"))[0, 0].tolist()
    assert shown[0, labels.tolist().index(0)].tolist() == [0, 0, 0]


def test_files_are_not_maps(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a.ddf", None) as writer:
        writer.add(np.zeros((9, 9), np.uint8), "not a map", file=FileFormat("file"))
    found = measure(Archive(tmp_path / "a.ddf"))
    assert (found.maps, found.index.files) == (0, 1)
    assert not notebook(Archive(tmp_path / "a.ddf")).images
    assert is_map((2, 3), None)
    assert is_map((2, 3), FileFormat("npy"))
    for shape, file_format in (((2, 3), FileFormat("file")), ((0, 3), None), ((3,), None), ((1, 2, 3), None)):
        assert not is_map(shape, file_format)


@pytest.mark.parametrize("other", [1, 255, 7, -3, 2**40])
def test_two_labels_are_black_and_white(other: int) -> None:
    one = np.array([[0, other], [other, 0]])
    assert np.asarray(picture(one, coloring(one)).convert("RGB"))[..., 0].tolist() == [[0, 255], [255, 0]]
    assert coloring(np.array([[other, 0, 9]])).white is None
    assert coloring(np.array([[other, 9]])).white is None


def test_truth_values_are_black_and_white() -> None:
    for values in ([[False, True]], [[True, True]], [[False, False]]):
        one = np.array(values)
        assert np.asarray(picture(one, coloring(one)).convert("RGB"))[..., 0].tolist() == (one * 255).tolist()


def test_the_first_labels_have_colors_that_are_easy_to_tell_apart() -> None:
    colors = automatic_colors(np.arange(20)).astype(np.int64)
    distances = np.abs(colors[:, None] - colors[None]).sum(axis=2) + 999 * np.eye(20, dtype=np.int64)
    assert distances.min() > 50


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_small_pictures_keep_proportions_and_averages(height: int, width: int, size: int) -> None:
    one = np.random.default_rng(height).integers(0, 9, (height, width))
    small, averages = thumbnail(one, size), pooled(one.astype(np.float32), size)
    assert small.shape == averages.shape
    assert max(small.shape) == min(size, max(one.shape))
    assert np.isin(small, one).all()
    if height % len(averages) == 0 == width % averages.shape[1]:
        assert averages.mean() == pytest.approx(one.mean(), rel=1e-5)


def test_expensive_pixels_are_darker() -> None:
    bits = np.linspace(0, 12, 200).reshape(1, -1)
    brightness = np.asarray(bit_picture(bits).convert("L")).astype(int)[0]
    assert brightness[0] == 255
    assert (np.diff(brightness) <= 0).all()
    assert brightness[-1] < 20
    assert (scale_position(0), scale_position(10), scale_position(99)) == (0, 1, 1)


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=60))
@settings(max_examples=200, deadline=None)
def test_histograms_have_few_round_bins(values: list[float]) -> None:
    edges = bin_edges(np.array(values))
    assert 2 <= len(edges) <= 25
    steps = np.diff(edges)
    assert steps == pytest.approx(np.full(len(steps), steps.mean()), rel=1e-6)
    assert f"{steps.mean():.0e}"[0] in "125"
    assert 24 * steps.mean() > 0.019 * edges[-2]  # not more digits than needed
    assert edges[0] <= min(values) * (1 + 1e-9)
    assert (np.array(values) <= edges[-1] * (1 + 1e-9)).mean() >= 0.9 or len(values) < 10


def test_histograms_count_everything() -> None:
    values = np.array([0.1] * 50 + [0.2] * 50 + [7.0, 9.0])
    text = histogram(values, "bits per pixel", "map", "a histogram")
    names = re.findall("<title>(.*?)</title>", text)
    assert sum(int(name.split()[-2]) for name in names) == 102
    assert names[-1] == "0.195 or more: 52 maps"
    assert names[0] == "0.100 to 0.105: 50 maps"
    assert "median 0.2000" in text


# ---- In a browser


def browse(path: Path, *options: str) -> str:
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        f"--user-data-dir={path.parent / 'profile'}", *options, path.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def charts() -> str:
    """Return a page of charts with extreme values."""
    generator = np.random.default_rng(0)
    found = [
        histogram(np.array(values, np.float64), "bits per pixel", "map", "a histogram")
        for values in (
            [0.1] * 1_234_567, [0.01, 1], [1e-4, 2e-4], [1234, 5678], generator.gamma(3, 0.02, 999),
            *([0.5] * 10 + [0.5 + 0.01 * bins] for bins in range(1, 25)),
        )
    ]  # fmt: skip
    found.append(bars([Bar("this archive", 1, "0.0001", True), Bar("PNG, oxipng 6", 99, "99.99 (9999.99 ×)")], "bars"))
    style = "<style>svg { display: block; width: 100%; max-width: 520px; font-family: sans-serif }</style>"
    return f"<!DOCTYPE html><meta charset=utf-8>{style}<body>{''.join(found)}</body>"


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_pages_fit_phones_and_show_everything_in_a_browser(tmp_path: Path) -> None:
    """Frame each page at several widths, and measure it with a script outside of the frame."""
    kinds = ("arrays of all kinds", "only files", "maps and a file", "upsampled maps")
    frames, pages = "", {}
    for kind in (*kinds, "charts"):
        pages[kind] = Page(charts()) if kind == "charts" else report(ARCHIVES[kind](tmp_path / "archive.ddf"))
        frames += "".join(
            f'<iframe data-kind="{kind}" width={width} height=900 srcdoc="{html.escape(pages[kind].text)}"></iframe>'
            for width in (320, 400, 1200)
        )
    script = """
    addEventListener("load", () => {
      const found = [...document.querySelectorAll("iframe")].map(frame => {
        const page = frame.contentDocument, width = page.documentElement.clientWidth;
        return {
          kind: frame.dataset.kind, width: Number(frame.width), scroll: page.documentElement.scrollWidth,
          wide: [...page.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > width + 0.5
            && !(e.closest("svg"))).map(e => e.tagName + " " + e.textContent.slice(0, 30)),
          cut: [...page.querySelectorAll("svg")].filter(e => [...e.querySelectorAll("text")].some(t => {
            const a = t.getBoundingClientRect(), b = e.getBoundingClientRect();
            return a.left < b.left - 0.5 || a.right > b.right + 0.5 || a.top < b.top - 0.5 || a.bottom > b.bottom + 0.5;
          })).map(e => e.textContent),
          crossed: [...page.querySelectorAll("svg")].flatMap(e => {
            const boxes = [...e.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
            const cross = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3
              && b.top < a.bottom - 3;
            return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([other, b]) => cross(a, b))
              .map(([other]) => one + "/" + other));
          }),
          images: [...page.querySelectorAll("img")].filter(e => e.naturalWidth > 0 && e.clientWidth > 0).length,
          unequal: [...page.querySelectorAll(".pair")].filter(e => {
            const sizes = [...e.querySelectorAll("img")].map(image => image.clientWidth + " × " + image.clientHeight);
            return new Set(sizes).size > 1;
          }).length,
          text: page.body.innerText,
        };
      });
      document.body.innerHTML = "<pre>" + btoa(unescape(encodeURIComponent(JSON.stringify(found)))) + "</pre>";
    });
    """
    frame = tmp_path / "frames.html"
    frame.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{frames}<script>{script}</script></body>", "utf-8")
    dom = browse(frame, "--dump-dom", "--window-size=1400,1000")
    found = json.loads(base64.b64decode(re.search("<pre>(.*?)</pre>", dom)[1]))  # type: ignore[index]
    assert len(found) == 3 * len(pages)
    for one in found:
        assert one["scroll"] <= one["width"], one["kind"]
        assert one["wide"] == one["cut"] == one["crossed"] == [], (one["kind"], one["width"])
        page = pages[one["kind"]]
        assert one["images"] == len(page.images)
        assert one["unequal"] == 0  # a map and its bits are shown at the same size
        for value in (*page.of("h1"), *page.of("h2"), *page.of("h3"), *page.of("dd")):
            assert value in one["text"]


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_paints_the_maps_in_their_colors(tmp_path: Path) -> None:
    path = with_palette(tmp_path / "a.ddf")
    report(path)
    picture = tmp_path / "screen.png"
    browse(path.with_suffix(".html"), f"--screenshot={picture}", "--window-size=900,1600")
    with Image.open(picture) as image:
        assert set(SCENE_CLASSES.colors) | {(255, 255, 255)} <= colors_in(image)


def test_bits_are_shown_with_four_digits() -> None:
    assert [bits_text(value) for value in (0.01234, 8, 12.3456, 123456.7)] == ["0.0123", "8.0000", "12.35", "123,457"]


def test_the_model_is_needed_before_any_work(tmp_path: Path) -> None:
    def encode(array: Array) -> bytes:
        raise AssertionError("must not be called")

    path = write(tmp_path / "flow.ddf", ternary(3), coupling_flow())
    with pytest.raises(WrongModelError):
        measure(Archive(path), codecs={"none": encode})
    assert isinstance(measure(Archive(path, coupling_flow()), codecs={}), ArchiveStatistics)
