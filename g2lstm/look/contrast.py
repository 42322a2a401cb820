"""Words on colours: which ink can be read upon which."""

from collections.abc import Sequence


def ink_on(rgb: Sequence[float]) -> str:
    """Black or white, whichever is easier to read upon a colour, 0 to 1 each: the contrast is at least 4.5 to 1."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    red, green, blue = linear
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#fff"
