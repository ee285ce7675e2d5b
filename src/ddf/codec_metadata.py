"""The metadata of the codecs of zarr and numcodecs: which model they need, and where it is."""

__all__ = ["PASSING", "checked_metadata"]

import re
from collections.abc import Mapping
from typing import Any

PASSING = "name its folder or URL as the `location` of the codec when the array is created"
"""How a codec is given a model, for error messages."""


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
