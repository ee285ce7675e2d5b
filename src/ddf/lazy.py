"""Attributes that are computed on first use."""

__all__ = ["lazy"]

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801 (used as a decorator, like functools.cached_property)
    """Like `functools.cached_property`, but without the lock of Python 3.11 and older.

    If a process forks while another of its threads holds that lock, the child waits for it forever. Without the lock,
    two threads may both compute a value, and either is kept.

    Examples:
        >>> class Circle:
        ...     radius = 2
        ...     @lazy
        ...     def area(self) -> float:
        ...         return 3 * self.radius**2
        >>> Circle().area
        12
    """

    def __init__(self, function: Callable[[Any], Value]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "lazy[Value]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> "lazy[Value] | Value":
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.function(instance)
        return value
