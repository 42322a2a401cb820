"""Text as models read it: named data sets, own files, tokenizers, token streams."""
