"""Models by fingerprint, so that data only needs to state which model decodes it.

A model is looked up among the models in use, the pretrained model, the user's models (`ddf models add`), the place set
by the environment variable DDF_MODELS, and the places that the caller passes, such as the folder of an archive. A place
is a folder of files named FINGERPRINT.safetensors, or a model file; either may be a URL.
"""

__all__ = [
    "PASSING",
    "add_model",
    "codec_of",
    "damage_of",
    "find_model",
    "get_model",
    "how_to_supply",
    "listed_models",
    "load_codec",
    "model_path",
    "user_models",
]

import os
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddf.errors import DdfError, WrongModelError
from ddf.files import atomic_write, cache_folder
from ddf.modelfile import read
from ddf.models import load, model_from_bytes
from ddf.protocol import Codec
from ddf.remote import is_url, join_url, make_folder, read_bytes, write_bytes

if TYPE_CHECKING:
    from ddf.exact import IntegerFlow
    from ddf.labelmaps import CausalFlow

SUFFIX = ".safetensors"
VARIABLE = "DDF_MODELS"

PASSING = "pass it (--model FILE, in Python model=)"

_NO_CODEC = "`ddf train … --integer` and ddf.export create models that can compress"

_in_use: dict[bytes, Any] = {}


def user_models() -> Path:
    """Return the folder of the user's models."""
    return cache_folder() / "models"


def find_model(
    fingerprint: bytes, *places: str | PathLike[str], unusable: list[str] | None = None
) -> "CausalFlow | IntegerFlow | None":
    """Return the model with the given fingerprint, or None if it is not found.

    Arguments:
        fingerprint: The 16 bytes that identify the model.
        places: Further locations to look in: paths or URLs of folders or model files.
        unusable: A list to which the reasons are added why a location could not be read or its file not be used.
    """
    if fingerprint in _in_use:
        return _in_use[fingerprint]
    from ddf.labelmaps import pretrained

    model: Any = pretrained()
    if model.fingerprint != fingerprint:
        usual = [str(user_models()), os.environ.get(VARIABLE, "")]
        reasons: list[str] = []
        model = _search(fingerprint, [*usual, *(os.fspath(place) for place in places)], reasons)
        if unusable is not None:
            unusable += reasons
    if model is not None:
        _in_use[fingerprint] = model
    return model


def get_model(
    fingerprint: bytes, *places: str | PathLike[str], needed_by: str, passing: str = PASSING
) -> "CausalFlow | IntegerFlow":
    """Return the model with the given fingerprint.

    Arguments:
        fingerprint: The 16 bytes that identify the model.
        places: Further locations to look in.
        needed_by: What needs the model, for the error message.
        passing: How to pass the model directly, for the error message.

    Raises:
        WrongModelError: The model is not found.
    """
    unusable: list[str] = []
    model = find_model(fingerprint, *places, unusable=unusable)
    if model is None:
        remedies = how_to_supply(fingerprint, unusable, passing)
        raise WrongModelError(f"{needed_by} needs the model {fingerprint.hex()}: {remedies}")
    return model


def codec_of(model: "Codec | str | PathLike[str] | None") -> "tuple[bytes, Codec | None]":
    """Return the fingerprint of a model, and the model if it has been loaded.

    Arguments:
        model: A model, its file or URL, or its fingerprint; None for the pretrained model.
    """
    if isinstance(model, str) and re.fullmatch("[0-9a-fA-F]{32}", model) and not Path(model).exists():
        return bytes.fromhex(model), None
    if model is None:
        from ddf.labelmaps import pretrained

        model = pretrained()
    elif isinstance(model, str | PathLike):
        loaded: Any = load(model_path(os.fspath(model)))
        model = loaded
    if not isinstance(model, Codec):
        raise TypeError(f"a {type(model).__name__} is not a codec: {_NO_CODEC}")
    return model.fingerprint, model


def load_codec(model: "Codec | str | PathLike[str] | None", needed_by: str) -> Codec:
    """Return a model that is given as `codec_of` accepts it.

    Arguments:
        model: A model, its file or URL, or its fingerprint; None for the pretrained model.
        needed_by: What needs the model, for the error message.
    """
    fingerprint, codec = codec_of(model)
    return codec or get_model(fingerprint, needed_by=needed_by)


def how_to_supply(fingerprint: bytes, unusable: Sequence[str] = (), passing: str = PASSING) -> str:
    """Return instructions for supplying a missing model, and why locations that might hold it are unusable."""
    remedies = (
        f"add it with `ddf models add FILE`, or set {VARIABLE} to a folder or URL that contains "
        f"{fingerprint.hex()}{SUFFIX}, or {passing}"
    )
    return f"{remedies} (not usable: {'; '.join(unusable)})" if unusable else remedies


def _search(fingerprint: bytes, places: list[str], unusable: list[str]) -> "CausalFlow | IntegerFlow | None":
    for place in places:
        try:
            found = _contents(place, f"{fingerprint.hex()}{SUFFIX}") if place else None
            if found is None:
                continue
            where, data = found
            model: Any = model_from_bytes(data, where)
        except (DdfError, OSError) as error:
            unusable.append(str(error) if place in str(error) else f"{place}: {error}")
            continue
        if isinstance(model, Codec) and model.fingerprint == fingerprint:
            return model  # type: ignore[return-value]
        if not place.endswith(SUFFIX):
            unusable.append(f"{where} does not hold the model that its name states")
    return None


def _contents(place: str, name: str) -> tuple[str, bytes] | None:
    """Return the path and the contents of a model file at a location, or None if it does not exist."""
    if is_url(place):
        where = place if place.endswith(SUFFIX) else join_url(place, name)
        try:
            return where, read_bytes(where)
        except FileNotFoundError:
            return None
    path = Path(place) if place.endswith(SUFFIX) else Path(place) / name
    return (str(path), read(path)) if path.is_file() else None


def add_model(model: Any, to: str | PathLike[str] | None = None) -> str:
    """Store a model under its fingerprint, and return its path or URL.

    Arguments:
        model: The model; it must be able to compress.
        to: The folder, or its URL; None for the folder of the user's models.
    """
    if not isinstance(model, Codec):
        raise TypeError(f"a {type(model).__name__} is not a codec: {_NO_CODEC}")
    folder = os.fspath(user_models() if to is None else to)
    name = f"{model.fingerprint.hex()}{SUFFIX}"
    if is_url(folder):
        make_folder(folder)
        write_bytes(join_url(folder, name), model.to_bytes())
        return join_url(folder, name)
    Path(folder).expanduser().mkdir(parents=True, exist_ok=True)
    target = Path(folder).expanduser() / name
    data = model.to_bytes()
    if not target.exists() or target.read_bytes() != data:
        with atomic_write(target) as temporary:
            temporary.write_bytes(data)
    return str(target)


def listed_models() -> Iterator[tuple[str, Path]]:
    """Yield the fingerprint (in hexadecimal) and the path of each model that `ddf models list` lists.

    These are the pretrained model, the user's models and those in DDF_MODELS, unless it is a URL.
    """
    from ddf.labelmaps import pretrained
    from ddf.labelmaps.pretrained import FILE

    yield pretrained().fingerprint.hex(), FILE
    places = [user_models()]
    named = os.environ.get(VARIABLE, "")
    if named and not is_url(named):
        places.append(Path(named).expanduser())
    for place in places:
        for path in sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place]:
            if path.is_file() and (found := _fingerprint_of(path)):
                yield found, path


def _fingerprint_of(path: Path) -> str:
    """Return the fingerprint of a model file, from its name if possible; "" if it is not a model with one."""
    if re.fullmatch("[0-9a-f]{32}", path.stem):
        return path.stem
    try:
        model = model_from_bytes(read(path), str(path))
    except (DdfError, OSError):
        return ""
    return model.fingerprint.hex() if isinstance(model, Codec) else ""


def model_path(text: str) -> str:
    """Return the path of a model that is given by its path or URL, or by the beginning of its fingerprint.

    Arguments:
        text: A path, a URL, or at least six hexadecimal digits.
    """
    if is_url(text) or (text and Path(text).exists()):
        return text
    found = {}
    if re.fullmatch("[0-9a-fA-F]{6,32}", text):
        found = {name: path for name, path in listed_models() if name.startswith(text.lower())}
    if len(found) > 1:
        raise ValueError(f"{text} is the beginning of several fingerprints: {', '.join(found)}; pass more digits")
    if not found:
        raise FileNotFoundError(
            f"there is no model file {text!r}, and no model with a fingerprint that begins with it (at least six "
            "digits): `ddf models list` lists the models, `ddf models add` adds one"
        )
    return str(next(iter(found.values())))


def damage_of(path: Path) -> str:
    """Return what is wrong with a model file that is named by its fingerprint, "" if nothing is."""
    try:
        model: Any = model_from_bytes(read(path), str(path))
    except (DdfError, OSError) as error:
        return str(error)
    named = re.fullmatch("[0-9a-f]{32}", path.stem)
    if named and not (isinstance(model, Codec) and model.fingerprint.hex() == path.stem):
        return f"{path} does not hold the model that its name states"
    return ""
