"""Numbers, sizes and lists as text."""

__all__ = ["bits_text", "bytes_text", "count", "listed", "on_maps", "short", "three_digits"]

from collections.abc import Sequence


def on_maps(measured: int, maps: int) -> str:
    """Return on which maps something was measured.

    Examples:
        >>> on_maps(50, 1234), on_maps(8, 8)
        ('on 50 of 1,234 maps', 'on all 8 maps')
    """
    if measured == maps:
        return "on the only map" if maps == 1 else f"on all {maps:,} maps"
    return f"on {measured:,} of {maps:,} maps"


def count(number: int, unit: str) -> str:
    """Format a number of things.

    Examples:
        >>> count(1, "map"), count(1234, "map")
        ('1 map', '1,234 maps')
    """
    return f"{number:,} {unit}{'s' * (number != 1)}"


def listed(names: Sequence[str]) -> str:
    """Join names.

    Examples:
        >>> listed(["PNG", "xz", "WebP"])
        'PNG, xz and WebP'
    """
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def bits_text(value: float) -> str:
    """Format bits per pixel with four digits after the point, or with four digits in all if they are large."""
    return f"{value:.4f}" if value < 10 else f"{value:.4g}" if value < 10_000 else f"{value:,.0f}"


def short(number: int) -> str:
    """Format a large number with three digits and a word.

    Examples:
        >>> short(12_345), short(1_234_567)
        ('12,345', '1.23\\xa0million')
    """
    for limit, word in ((10**9, "billion"), (10**6, "million")):
        if number >= limit:
            return f"{three_digits(number / limit)}\u00a0{word}"
    return f"{number:,}"


def bytes_text(number: int) -> str:
    """Format a size in bytes with three digits and a unit.

    Examples:
        >>> bytes_text(999), bytes_text(7_523), bytes_text(12_345_678)
        ('999 bytes', '7.52\\xa0kB', '12.3\\xa0MB')
    """
    for limit, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= limit:
            return f"{three_digits(number / limit)}\u00a0{unit}"
    return count(number, "byte")


def three_digits(value: float) -> str:
    """Format a number with three digits, or as an integer if it has more.

    Examples:
        >>> three_digits(1.234), three_digits(98.76), three_digits(12345.6)
        ('1.23', '98.8', '12,346')
    """
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
