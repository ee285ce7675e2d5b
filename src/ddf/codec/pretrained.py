"""The model that comes with the package."""

__all__ = ["pretrained"]

from importlib.resources import as_file, files

from ddf.codec.flow import IntegerFlow


def pretrained() -> IntegerFlow:
    """An integer flow for label maps of up to 16 classes that stand for anything.

    It was trained on drawn maps alone (regions with winding borders and street scenes, by
    `benchmarks/train_pretrained.py`), so nobody has rights in it but its makers. A model trained on maps such as yours
    codes them better.

    Examples:
        >>> from ddf.codec import compress, decompress
        >>> from ddf.data.drawn import draw_scenes
        >>> scene = draw_scenes(1, seed=7)[0]
        >>> len(compress(scene, pretrained())) < 300 < scene.size
        True
    """
    with as_file(files("ddf.codec") / "pretrained.safetensors") as path:
        return IntegerFlow.load(path)
