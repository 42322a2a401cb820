"""What the tests of all layers share."""

import pytest

from g2lstm.nn import kernel


@pytest.fixture
def use(monkeypatch):
    """Picks a backend by name; "fallback" is the native one on a machine without the compiled kernel."""

    def pick(name):
        if name == "fallback":
            monkeypatch.setattr(kernel, "find", lambda: kernel.Found(None, "taken away"))
            return "native"
        return name

    return pick
