"""Modules as plain data: a spec for every class of module, and specs as JSON.

A spec is a frozen dataclass whose fields have the same names as the module's attributes. A spec class is registered
by subclassing, `class MySpec(LayerSpec, builds=MyLayer)`, and is then recognized in files.
"""

__all__ = ["MOST_LAYERS", "Spec", "describe", "from_plain", "later", "register", "to_plain"]

from dataclasses import MISSING, Field, field, fields
from functools import cache
from sys import float_info
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from torch import nn

from ddf.errors import LimitError, UnknownKindError

MOST_LAYERS = 4096
"""The largest number of layers of a flow in a file."""

_KINDS: dict[str, type[Any]] = {}
_SPEC_OF: dict[type[nn.Module], type["Spec"]] = {}


class Spec:
    """Plain data that describes a module."""

    builds: ClassVar[type[nn.Module]]

    def __init_subclass__(cls, builds: type[nn.Module] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if builds is not None:
            cls.builds = builds
            _KINDS[builds.__name__] = cls
            _SPEC_OF[builds] = cls


def register(cls: type[Any]) -> type[Any]:
    """Register a dataclass that is not a module but part of specs, such as a partition."""
    made = vars(cls).get("__dataclass_params__")
    if made is None or not made.frozen:
        raise TypeError(f"{cls.__name__} must be a frozen dataclass: put @dataclass(frozen=True) below @register")
    _KINDS[cls.__name__] = cls
    return cls


def describe(module: nn.Module) -> Any:
    """Return the spec of a flow, a layer, a net or a base.

    Examples:
        >>> from ddf.layers import Shuffle
        >>> describe(Shuffle(4, seed=7))
        ShuffleSpec(seed=7, permutation=None)
    """
    spec = _SPEC_OF.get(type(module))
    if spec is not None:
        names = [one.name for one in fields(spec)]  # type: ignore[arg-type]
        missing = [name for name in names if not hasattr(module, name)]
        if missing:
            raise TypeError(
                f"{type(module).__name__} has no attribute {missing[0]!r}, which {spec.__name__} has as a field: "
                "a module must keep every field of its spec as an attribute"
            )
        return spec(**{name: _described(getattr(module, name)) for name in names})
    carried = getattr(module, "spec", None)  # modules that are derived from others, such as exact nets
    if isinstance(carried, Spec):
        return carried
    name = type(module).__name__
    raise TypeError(
        f"{name} has no spec, so a flow with it cannot be described or saved; "
        f"define one: class {name}Spec(LayerSpec or NetSpec, builds={name})"
    )


def _described(value: Any) -> Any:
    if isinstance(value, nn.ModuleList):
        return tuple(describe(module) for module in value)
    return describe(value) if isinstance(value, nn.Module) else value


def to_plain(value: Any) -> Any:
    """Convert a spec to dictionaries, lists, numbers and strings."""
    if isinstance(value, Spec) or type(value) in _KINDS.values():
        kind = value.builds.__name__ if isinstance(value, Spec) else type(value).__name__
        kept = [one for one in fields(value) if not _is_omitted(one, getattr(value, one.name))]
        return {"kind": kind} | {one.name: to_plain(getattr(value, one.name)) for one in kept}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if value is not None and not isinstance(value, bool | int | float | str):
        name = type(value).__name__
        raise TypeError(
            f"{name} cannot be part of a spec, so a flow with it cannot be saved; if it is a dataclass (such as a "
            f"partition of your own), decorate it with @ddf.plain.register"
        )
    return value


def later(default: Any) -> Any:
    """Return a field that was added to a spec after the first release; files do not store its default.

    A spec that does not use the field therefore keeps its JSON, and a model with this spec keeps its fingerprint.
    """
    return field(default=default, metadata={"later": True})


def _is_omitted(described: Field[Any], value: Any) -> bool:
    return bool(described.metadata.get("later")) and value == described.default


def from_plain(value: Any) -> Any:
    """Convert what `to_plain` returned to a spec; raise an error for anything else."""
    if isinstance(value, list):
        if sum(isinstance(item, dict) for item in value) > MOST_LAYERS:
            raise LimitError(f"{len(value)} layers, but a flow in a file has at most {MOST_LAYERS}")
        return tuple(from_plain(item) for item in value)
    if not isinstance(value, dict):
        return value
    kind = value.get("kind")
    if not isinstance(kind, str):
        raise ValueError(f"unknown kind {kind!r} in the spec of a flow")
    if kind not in _KINDS:
        raise UnknownKindError(
            f"the flow contains the unknown kind {kind[:60]!r}; first import the module that defines it (on the "
            "command line, --import MODULE)"
        )
    options = {name: from_plain(item) for name, item in value.items() if name != "kind"}
    known = {one.name: one for one in fields(_KINDS[kind])}
    for name in options:
        if name not in known:
            raise ValueError(f"{kind} has no option {name!r}; it has {', '.join(known) or 'none'}")
    for name, one in known.items():
        if name not in options and one.default is MISSING:
            raise ValueError(f"{kind} is missing the option {name!r}")
    hints = _hints(kind)
    for name, option in options.items():
        if not _has_type(option, hints[name]):
            raise ValueError(f"{kind}: {name}={value[name]!r} is not of the type {hints[name]}")
    return _KINDS[kind](**options)


@cache
def _hints(kind: str) -> dict[str, Any]:
    return get_type_hints(_KINDS[kind])


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotated type, for the types that specs consist of."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_has_type(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) in (Union, UnionType):
        return any(_has_type(value, choice) for choice in get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and abs(value) <= float_info.max
    return isinstance(value, hint)
