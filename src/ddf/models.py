"""Load a model of any kind from a file."""

__all__ = ["load", "model_from_bytes"]

from os import PathLike
from typing import TYPE_CHECKING

from ddf.errors import DamagedFileError
from ddf.extras import needed_for
from ddf.modelfile import kind_of_file, read

if TYPE_CHECKING:
    import torch

    from ddf.flow import Flow
    from ddf.labelmaps import CausalFlow


def load(path: str | PathLike[str], device: "torch.device | str" = "cpu") -> "Flow | CausalFlow":
    """Load a model of any kind.

    Arguments:
        path: The model file, or its URL.
        device: The device of a model that runs on PyTorch.
    """
    model = model_from_bytes(read(path), str(path))
    if str(device) != "cpu" and hasattr(model, "to"):
        model.to(device)
    return model


def model_from_bytes(data: bytes, name: str = "the model") -> "Flow | CausalFlow":
    """Load a model of any kind from the contents of its file. Its library is imported when it is needed.

    Arguments:
        data: The contents of the file.
        name: Its name in error messages.
    """
    kind = kind_of_file(data, name)
    if kind == "labelmaps":
        from ddf.labelmaps import CausalFlow

        return CausalFlow.from_bytes(data, name)
    with needed_for(f"{name}, a model that runs on PyTorch"):
        if kind == "integer":
            from ddf.exact import IntegerFlow

            return IntegerFlow.from_bytes(data, name)
        if kind == "flow":
            from ddf.checkpoint import flow_from_bytes

            return flow_from_bytes(data, name)
    raise DamagedFileError(f"{name} holds a model of the unknown kind {kind!r}; a newer version of ddf may read it")
