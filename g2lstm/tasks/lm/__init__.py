"""Language modelling: the AWD-LSTM, its objective, evaluation, cache pointer and sampling."""
