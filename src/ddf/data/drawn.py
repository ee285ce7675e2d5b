"""Synthetic label maps, for demonstrations, tests and the training of the pretrained model."""

__all__ = ["SCENE_CLASSES", "draw_maps", "draw_regions", "draw_scenes"]

import numpy as np

from ddf.classes import Classes
from ddf.shapes import Array

SCENE_CLASSES = Classes.plain(
    5,
    names=("sky", "ground", "house", "tree", "car"),
    colors=((135, 196, 235), (120, 110, 104), (205, 92, 72), (74, 140, 70), (243, 200, 60)),
)
_SKY, _GROUND, _HOUSE, _TREE, _CAR = range(5)


def draw_scenes(count: int, seed: int = 0, sizes: tuple[int, int] = (96, 160)) -> list[Array]:
    """Draw street scenes of five classes (`SCENE_CLASSES`) and random sizes.

    Arguments:
        count: Number of scenes.
        seed: Random seed.
        sizes: Minimum and maximum of both height and width.

    Examples:
        >>> scene = draw_scenes(1, seed=3)[0]
        >>> scene.shape, scene.dtype, np.unique(scene)
        ((148, 101), dtype('uint8'), array([0, 1, 2, 3, 4], dtype=uint8))
    """
    generator = np.random.default_rng(seed)
    return [_scene(generator, *generator.integers(sizes[0], sizes[1] + 1, 2).tolist()) for _ in range(count)]


def draw_regions(generator: np.random.Generator, height: int, width: int, classes: int, roughness: float) -> Array:
    """Draw a map of regions with irregular borders: the argmax of several random fields.

    Arguments:
        generator: Random number generator.
        height: Number of rows.
        width: Number of columns.
        classes: Number of fields, at least 2.
        roughness: Exponent of the fields' spectra, which decay as frequency to the power of −roughness: 1.5 gives very
            irregular borders, 4 smooth ones.
    """
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(generator.standard_normal((classes, height, width)))
    fields = np.fft.irfft2(noise * frequency**-roughness, s=(height, width))
    fields /= fields.std(axis=(1, 2), keepdims=True)
    fields += generator.normal(0, 0.5, (classes, 1, 1))
    return fields.argmax(axis=0).astype(np.uint8)


def draw_maps(count: int, seed: int = 0, sizes: tuple[int, int] = (96, 320)) -> list[Array]:
    """Draw a wide variety of label maps, to represent label maps in general.

    They combine smooth and ragged regions, polygons, blobs, thin lines, specks, street scenes, Voronoi cells, tilings,
    instance ids, and maps that were resized to their nearest pixels, up or down.

    Arguments:
        count: Number of maps.
        seed: Random seed.
        sizes: Minimum and maximum of both height and width.

    Examples:
        >>> [one.shape for one in draw_maps(2, seed=1)] == [one.shape for one in draw_maps(2, seed=1)]
        True
    """
    generator = np.random.default_rng(seed)
    return [_varied(generator, *generator.integers(sizes[0], sizes[1] + 1, 2).tolist()) for _ in range(count)]


def _varied(generator: np.random.Generator, height: int, width: int) -> Array:
    shrink = int(generator.choice([1, 1, 2, 3, 4]))  # as if a larger map had been resized to its nearest pixels
    if shrink > 1:
        return _drawn(generator, height * shrink, width * shrink, 1)[::shrink, ::shrink].copy()
    return _drawn(generator, height, width, int(generator.choice([1, 1, 1, 2, 3])))


def _drawn(generator: np.random.Generator, height: int, width: int, scale: int) -> Array:
    """Draw one shape over another, in pixels of `scale` by `scale`."""
    rows, columns = -(-height // scale), -(-width // scale)
    image = _background(generator, rows, columns)
    labels = int(generator.integers(2, 24))
    for _ in range(int(generator.integers(0, 6))):
        image = _overlay(generator, image, labels)
    if generator.random() < 0.35:
        image = _ragged(generator, image)
    if generator.random() < 0.15:
        image = _instances(image)
    if generator.random() < 0.2:  # annotation tools often separate regions by a line of another label
        image = _outlined(image, labels + 1)
    image = image.repeat(scale, axis=0).repeat(scale, axis=1)[:height, :width]
    if scale > 1 and generator.random() < 0.7:  # full-resolution shapes over an upsampled map
        image = _overlay(generator, image, labels)
    return image


def _background(generator: np.random.Generator, height: int, width: int) -> Array:
    kind = generator.choice(["flat", "flat", "regions", "regions", "scene", "scene", "cells", "tiles", "bands"])
    if kind == "regions":
        classes = int(generator.integers(2, 10))
        return draw_regions(generator, height, width, classes, generator.uniform(1.4, 4)).astype(np.int32)
    if kind == "scene":
        return _scene(generator, height, width).astype(np.int32)
    if kind == "cells":
        return _cells(generator, height, width, int(generator.integers(4, 80)))
    rows, columns = np.mgrid[:height, :width]
    if kind == "tiles":
        tile = generator.integers(12, 80, 2)
        shifted = columns + (rows // tile[0] % 2) * int(tile[1] * generator.choice([0, 0.5]))
        labels = generator.integers(0, 6, (height // tile[0] + 1, (width + tile[1]) // tile[1] + 2))
        return labels[rows // tile[0], shifted // tile[1]].astype(np.int32)
    if kind == "bands":
        angle = generator.uniform(0, np.pi)
        phase = (rows * np.cos(angle) + columns * np.sin(angle)) / generator.uniform(16, 120)
        return (np.floor(phase + generator.uniform(0, 1)) % generator.integers(2, 6)).astype(np.int32)
    return np.zeros((height, width), np.int32)


def _cells(generator: np.random.Generator, height: int, width: int, count: int) -> Array:
    """Draw Voronoi cells: each pixel has the label of the nearest of `count` random points."""
    points = generator.uniform(0, 1, (count, 2)) * (height, width)
    labels = generator.permutation(count) if generator.random() < 0.5 else generator.integers(0, 8, count)
    rows, columns = np.mgrid[:height, :width]
    best, found = np.full((height, width), np.inf), np.zeros((height, width), np.int32)
    for (y, x), label in zip(points, labels, strict=True):
        distance = (rows - y) ** 2 + (columns - x) ** 2
        found[distance < best] = label
        best = np.minimum(best, distance)
    return found


def _overlay(generator: np.random.Generator, image: Array, labels: int) -> Array:
    """Draw random shapes of the same kind over a map."""
    from PIL import Image, ImageDraw

    height, width = image.shape
    canvas = Image.fromarray(image.astype(np.int32), mode="I")
    draw = ImageDraw.Draw(canvas)
    kind = generator.choice(["polygons", "polygons", "blobs", "lines", "boxes", "specks"])
    size = min(height, width)
    for _ in range(int(generator.integers(1, 40 if kind == "specks" else 14))):
        label = int(generator.integers(0, labels))
        center = generator.uniform(0, 1, 2) * (width, height)
        radius = size * 10 ** generator.uniform(-1.8, -0.4)
        if kind == "lines":
            points = center + np.cumsum(generator.normal(0, radius, (int(generator.integers(2, 7)), 2)), axis=0)
            if generator.random() < 0.4:
                points[:, 0] = center[0] + generator.normal(0, 0.5, len(points))  # poles
            draw.line([tuple(point) for point in points], fill=label, width=int(generator.choice([1, 1, 2, 2, 3, 5])))
            continue
        if kind == "specks":
            radius = generator.uniform(0.5, 4)
        if kind == "boxes":
            reach = radius * generator.uniform(0.3, 2, 2)
            draw.rectangle([*(center - reach), *(center + reach)], fill=label)
            continue
        corners = 48 if kind == "blobs" else int(generator.integers(3, 14))
        angles = np.sort(generator.uniform(0, 2 * np.pi, corners)) if kind != "blobs" else np.linspace(0, 6.2, corners)
        reach = radius * generator.uniform(0.4, 1.3, corners)
        if kind == "blobs":
            waves = sum(
                generator.normal(0, 0.25 / k) * np.cos(k * angles + generator.uniform(0, 6)) for k in (1, 2, 3, 5)
            )
            reach = radius * np.maximum(0.1, 1 + waves)
        stretch = 2 ** generator.normal(0, 0.5)
        points = center + np.stack([np.cos(angles) * reach * stretch, np.sin(angles) * reach / stretch], axis=1)
        draw.polygon([tuple(point) for point in points], fill=label)
    return np.array(canvas)


def _ragged(generator: np.random.Generator, image: Array) -> Array:
    """Displace every pixel by a small random amount, so that borders become uneven."""
    height, width = image.shape
    reach = generator.uniform(0.3, 1.5)
    rough = generator.uniform(0.5, 1.5)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    shifts = np.fft.irfft2(
        np.fft.rfft2(generator.standard_normal((2, height, width))) * frequency**-rough, s=(height, width)
    )
    shifts *= reach / shifts.std(axis=(1, 2), keepdims=True)
    rows, columns = np.mgrid[:height, :width]
    rows = np.clip(np.rint(rows + shifts[0]).astype(int), 0, height - 1)
    columns = np.clip(np.rint(columns + shifts[1]).astype(int), 0, width - 1)
    return image[rows, columns]


def _instances(image: Array) -> Array:
    """Label approximately connected regions: a run of equal pixels inherits its label from above or gets a new one."""
    out = np.zeros_like(image)
    count = 0
    for y, row in enumerate(image):
        starts = np.flatnonzero(np.diff(row, prepend=row[0] - 1))
        for start, end in zip(starts, [*starts[1:], len(row)], strict=True):
            above = out[y - 1, start:end][image[y - 1, start:end] == row[start]] if y else out[:0, 0]
            if len(above):
                out[y, start:end] = above[0]
            else:
                out[y, start:end] = count
                count += 1
    return out


def _outlined(image: Array, label: int) -> Array:
    """Draw lines between regions."""
    out = image.copy()
    out[1:][image[1:] != image[:-1]] = label
    out[:, 1:][image[:, 1:] != image[:, :-1]] = label
    return out


def _scene(generator: np.random.Generator, height: int, width: int) -> Array:
    rows, columns = np.mgrid[:height, :width]
    horizon = height * generator.uniform(0.4, 0.65)
    slope, bend = generator.normal(0, 0.06), generator.normal(0, 0.04)
    line = horizon + slope * (columns - width / 2) + bend * height * np.sin(columns * generator.uniform(2, 7) / width)
    scene = np.where(rows < line, _SKY, _GROUND)
    for _ in range(generator.integers(1, 5)):
        left, wide = generator.uniform(-0.1, 0.9) * width, generator.uniform(0.1, 0.3) * width
        top = horizon - generator.uniform(0.1, 0.38) * height
        right = left + wide
        scene[(columns > left) & (columns < right) & (rows > top) & (rows < line + 2)] = _HOUSE
        peak = top - generator.uniform(0, 0.12) * height
        roof = (
            (rows > peak)
            & (rows <= top)
            & (abs(columns - (left + right) / 2) < wide / 2 * (rows - peak) / (top - peak))
        )
        scene[roof] = _HOUSE
    for _ in range(generator.integers(1, 6)):
        column, foot = generator.uniform(0, width), horizon + generator.uniform(0, 0.15) * height
        size = generator.uniform(0.06, 0.16) * height
        scene[(abs(columns - column) < max(1.0, size / 8)) & (rows > foot - 2 * size) & (rows < foot)] = _TREE
        angle = np.arctan2(rows - (foot - 2 * size), columns - column)
        crown = size * (1 + 0.12 * np.sin(generator.integers(5, 9) * angle + generator.uniform(0, 6)))
        scene[np.hypot(rows - (foot - 2 * size), columns - column) < crown] = _TREE
    for _ in range(generator.integers(0, 4)):
        column, foot = generator.uniform(0, width), horizon + generator.uniform(0.15, 0.45) * height
        size = generator.uniform(0.05, 0.1) * height * (0.6 + (foot - horizon) / height * 2)
        body = (abs(columns - column) < 1.6 * size) & (rows < foot) & (rows > foot - 0.7 * size)
        cabin = (abs(columns - column) < 0.9 * size) & (rows <= foot - 0.7 * size) & (rows > foot - 1.25 * size)
        wheels = np.hypot(rows - foot, abs(columns - column) - size) < size / 3
        scene[body | cabin | wheels] = _CAR
    return scene.astype(np.uint8)
