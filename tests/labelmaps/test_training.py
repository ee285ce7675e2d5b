"""Training small models: better than xz, reproducible, and resumable after an interruption."""

import lzma
from pathlib import Path

import numpy as np
import pytest

from ddf.classes import Classes
from ddf.data.drawn import draw_scenes
from ddf.labelmaps import PRESETS, CausalFlow, Preset, busy_net, train
from ddf.labelmaps import training as training_module

SMALL = Preset(pixels=12, hidden=(16, 8), steps=120, batch=512)
CLASSES = Classes((0, 1, 2, 3, 4))


@pytest.fixture(scope="module")
def few_scenes() -> list[np.ndarray]:
    return draw_scenes(6, seed=11, sizes=(40, 60))


@pytest.fixture(autouse=True)
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = training_module.fit_flat
    monkeypatch.setattr(training_module, "fit_flat", lambda *args: fit(*args, steps=150, batch=1024))


@pytest.fixture(scope="module")
def held_out() -> list[np.ndarray]:
    return draw_scenes(10, seed=12, sizes=(60, 90))


@pytest.mark.parametrize("classes", [None, CLASSES])
def test_small_models_beat_xz(
    few_scenes: list[np.ndarray], held_out: list[np.ndarray], classes: Classes | None
) -> None:
    model = train(few_scenes, SMALL, classes, mirrored=True, progress=False)
    ours = sum(len(model.compress(one) or b"") for one in held_out)
    theirs = sum(
        len(lzma.compress(one.tobytes(), lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2}])) for one in held_out
    )
    assert ours < 0.7 * theirs
    for one in held_out:
        assert np.array_equal(model.decompress(model.compress(one), one.shape, one.dtype), one)


def test_longer_training_is_better(few_scenes: list[np.ndarray], held_out: list[np.ndarray]) -> None:
    sizes = []
    for steps in (1, 400):
        model = train(few_scenes, SMALL, CLASSES, steps=steps, progress=False)
        sizes.append(sum(model.bits(one) for one in held_out))
    assert sizes[1] < 0.97 * sizes[0]


def test_the_seed_determines_the_result(few_scenes: list[np.ndarray]) -> None:
    files = [train(few_scenes, SMALL, seed=seed, progress=False).to_bytes() for seed in (0, 0, 1)]
    assert files[0] == files[1] != files[2]


class InterruptedTrainingError(Exception):
    pass


def test_interrupted_training_resumes(
    few_scenes: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training interrupted after the second saved state resumes, writes the same file and deletes the state."""
    uninterrupted = train(few_scenes, SMALL, CLASSES, progress=False)
    monkeypatch.setattr(busy_net, "_KEPT_EVERY", -1)
    keep, kept, resume, resumed = busy_net._keep, [], busy_net._resume, []

    def keep_then_stop(*args: object) -> None:
        keep(*args)
        kept.append(args[-1])
        if len(kept) == 2:
            raise InterruptedTrainingError

    def resume_and_note(*args: object) -> int:
        resumed.append(resume(*args))
        return resumed[-1]

    monkeypatch.setattr(busy_net, "_keep", keep_then_stop)
    monkeypatch.setattr(busy_net, "_resume", resume_and_note)
    with pytest.raises(InterruptedTrainingError):
        train(few_scenes, SMALL, CLASSES, run=tmp_path / "run", progress=False)
    assert len(list((tmp_path / "run").iterdir())) == 1
    again = train(few_scenes, SMALL, CLASSES, run=tmp_path / "run", progress=False)
    assert resumed == [0, kept[1]]
    assert again.to_bytes() == uninterrupted.to_bytes()
    assert not list((tmp_path / "run").iterdir())


def test_the_state_of_a_different_training_run_is_not_resumed(
    few_scenes: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy_net, "_KEPT_EVERY", -1)
    keep = busy_net._keep

    def keep_then_stop(*args: object) -> None:
        keep(*args)
        raise InterruptedTrainingError

    monkeypatch.setattr(busy_net, "_keep", keep_then_stop)
    with pytest.raises(InterruptedTrainingError):
        train(few_scenes, SMALL, run=tmp_path, progress=False)
    monkeypatch.setattr(busy_net, "_keep", keep)
    for maps, seed in ((few_scenes, 1), (few_scenes[:-1], 0)):
        fresh = train(maps, SMALL, seed=seed, progress=False)
        assert train(maps, SMALL, seed=seed, run=tmp_path, progress=False).to_bytes() == fresh.to_bytes()


def test_invalid_training_data_is_rejected(few_scenes: list[np.ndarray]) -> None:
    for maps in ([], [np.zeros((3, 3))], [np.zeros((2, 3, 3), np.uint8)], [np.zeros((0, 3), np.uint8)]):
        with pytest.raises(ValueError, match="training needs"):
            train(maps, SMALL, progress=False)
    with pytest.raises(ValueError, match="does not exist"):
        train(few_scenes, "huge", progress=False)
    with pytest.raises(ValueError, match="at most"):
        train(few_scenes, SMALL, Classes.plain(255), progress=False)
    with pytest.raises(ValueError, match="the value 2 is not one of the 2 known classes"):
        train(few_scenes, SMALL, Classes.plain(2), progress=False)
    for wrong in ({"pixels": 11}, {"pixels": 8}, {"hidden": (12, 8)}, {"hidden": (8, 8, 8)}):
        with pytest.raises(ValueError, match="but"):
            Preset(**({"pixels": 12, "hidden": (8, 8), "steps": 1} | wrong))
    assert set(PRESETS) == {"fast", "best"}


def test_maps_may_have_any_integers(few_scenes: list[np.ndarray]) -> None:
    """The values of the labels do not affect a model that accepts any labels."""
    names = np.array([-(2**63), -5, 0, 1000, 2**63 - 1])
    plain, strange = (train(maps, SMALL, progress=False) for maps in (few_scenes, [names[one] for one in few_scenes]))
    assert isinstance(plain, CausalFlow)
    assert plain.to_bytes() == strange.to_bytes()
