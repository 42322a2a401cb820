"""The one exception that means: the caller asked for something that cannot be, and here is what can."""


class G2Error(ValueError):
    """A mistake of the caller's. The message names what was wrong, the value got, what is allowed, what to do next."""
