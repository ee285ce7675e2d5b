"""The errors that ddf raises for invalid input; all are subclasses of `DdfError`."""

__all__ = [
    "ChangedArchiveError",
    "DamagedArchiveError",
    "DamagedFileError",
    "DataError",
    "DdfError",
    "DownloadError",
    "InvalidCodeError",
    "LimitError",
    "MissingArrayError",
    "MissingExtraError",
    "ModelError",
    "NotLabelMapError",
    "RunConflictError",
    "TrainingError",
    "UnknownKindError",
    "WrongModelError",
]


class DdfError(Exception):
    """The base class of all errors of ddf."""


class ChangedArchiveError(DdfError, OSError):
    """An archive that was replaced while copies of its `Archive` were in use."""


class DamagedArchiveError(DdfError, ValueError):
    """An archive that does not contain what was written to it, or a file that is not an archive."""


class DamagedFileError(DdfError, ValueError):
    """A model file whose contents do not match their checksum, or a file that is not a model file."""


class DataError(DdfError, ValueError):
    """Data that cannot be used, such as a damaged file or maps of different sizes."""


class DownloadError(DdfError, OSError):
    """A file that could not be downloaded."""


class InvalidCodeError(DdfError, ValueError):
    """An invalid code: bytes that no encoder produces."""


class LimitError(DdfError, ValueError):
    """Something larger than a limit that protects memory and time."""


class MissingArrayError(DdfError, KeyError, IndexError):
    """A name or a number that an archive does not contain."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class MissingExtraError(DdfError, ImportError):
    """An optional dependency that is not installed; the message names the extra that installs it."""


class ModelError(DdfError, ValueError):
    """A flow that cannot be converted to integer arithmetic."""


class NotLabelMapError(DdfError, ValueError):
    """A valid file that does not hold a label map, such as a photograph."""


class RunConflictError(DdfError, ValueError):
    """A run directory that belongs to another run, is in use by one, or is damaged."""


class TrainingError(DdfError, RuntimeError):
    """Training that cannot continue."""


class UnknownKindError(DdfError, ValueError):
    """A flow with a layer, net or other part whose class has not been imported."""


class WrongModelError(DdfError, ValueError):
    """An archive that needs a different model from the one passed."""
