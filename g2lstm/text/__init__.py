"""Text as models read it: data sets, tokenizers, token streams, sentence pairs, batches."""
