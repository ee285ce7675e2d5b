"""The metadata of the codecs of zarr and numcodecs: which model they need, and where it is."""

__all__ = ["checked_metadata", "located_model"]

import re
from collections.abc import Mapping
from typing import Any

from ddf.protocol import Codec
from ddf.registry import get_model

_PASSING = "name its folder or URL as the `location` of the codec when the array is created"


def located_model(model: str, location: str | None, needed_by: str) -> Codec:
    """Return the model that the metadata of a codec names.

    Arguments:
        model: Its fingerprint, in hexadecimal.
        location: Where to look for it, in addition to the usual places.
        needed_by: What needs the model, for the error message.
    """
    places = () if location is None else (location,)
    return get_model(bytes.fromhex(model), *places, needed_by=needed_by, passing=_PASSING)


def checked_metadata(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a codec; raise an error unless it is what this version writes.

    Metadata comes with the data, so it must not be able to name files or web pages to open as models.

    Arguments:
        name: The name of the codec.
        metadata: The fingerprint of the model, and possibly its location.
    """
    unknown = set(metadata) - {"model", "location"}
    if unknown:
        raise ValueError(f"{name}: unknown settings {sorted(unknown)}; a newer version of ddf may support them")
    model = metadata.get("model")
    if not isinstance(model, str) or not re.fullmatch("[0-9a-f]{32}", model):
        raise ValueError(f"{name}: model={model!r} is not a fingerprint, which has 32 hexadecimal digits")
    location = metadata.get("location")
    if location is not None and not isinstance(location, str):
        raise ValueError(f"{name}: location={location!r} is neither a path nor a URL")
    return {"model": model} if location is None else {"model": model, "location": location}
