"""Machine translation: the model with attention, beam search, and scores of what it says."""
