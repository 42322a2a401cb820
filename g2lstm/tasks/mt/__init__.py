"""Machine translation: the model with attention, beam search, and scores of its translations."""
