"""Compressed models without torch: NumPy, safetensors and the compiled kernel step them, `tokenizers` reads text."""

from g2lstm.runtime.opened import load as load
