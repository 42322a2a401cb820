"""Each build of the kernels."""

from contextlib import contextmanager

import pytest

from g2lstm.nn import kernel


@contextmanager
def only(build):
    """Uses one build; skips the test if there is none that this processor can run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BUILDS", {build: kernel.BUILDS[build]})
        kernel.find.cache_clear()
        try:
            if kernel.find().library is None:
                pytest.skip(f"this processor cannot run the build for {build}")
            yield
        finally:
            kernel.find.cache_clear()
