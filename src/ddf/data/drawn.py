"""Label maps that are drawn, not found: for demonstrations, tests and the model that comes with the package."""

__all__ = ["SCENE_CLASSES", "draw_regions", "draw_scenes"]

from typing import Any

import numpy as np

from ddf.data.classes import Classes

Array = np.ndarray[Any, Any]

SCENE_CLASSES = Classes.plain(
    5,
    names=("sky", "ground", "house", "tree", "car"),
    colors=((135, 196, 235), (120, 110, 104), (205, 92, 72), (74, 140, 70), (243, 200, 60)),
)
_SKY, _GROUND, _HOUSE, _TREE, _CAR = range(5)


def draw_scenes(count: int, seed: int = 0, sizes: tuple[int, int] = (96, 160)) -> list[Array]:
    """Draws street scenes of five classes (`SCENE_CLASSES`), each of a size of its own.

    Arguments:
        count: How many.
        seed: Draws the same scenes again.
        sizes: The smallest and the largest height and width.

    Examples:
        >>> scene = draw_scenes(1, seed=3)[0]
        >>> scene.shape, scene.dtype, np.unique(scene)
        ((148, 101), dtype('uint8'), array([0, 1, 2, 3, 4], dtype=uint8))
    """
    generator = np.random.default_rng(seed)
    return [_scene(generator, *generator.integers(sizes[0], sizes[1] + 1, 2).tolist()) for _ in range(count)]


def draw_regions(generator: np.random.Generator, height: int, width: int, classes: int, roughness: float) -> Array:
    """Draws a map of regions with winding borders: where each of several random fields is the largest.

    Arguments:
        generator: The source of randomness.
        height: The number of rows.
        width: The number of columns.
        classes: How many fields there are, two at least.
        roughness: How winding: the fields' spectra fall with the frequency to the power of −roughness; 1.5 is very, 4
            hardly.
    """
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(generator.standard_normal((classes, height, width)))
    fields = np.fft.irfft2(noise * frequency**-roughness, s=(height, width))
    fields /= fields.std(axis=(1, 2), keepdims=True)
    fields += generator.normal(0, 0.5, (classes, 1, 1))
    return fields.argmax(axis=0).astype(np.uint8)


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
