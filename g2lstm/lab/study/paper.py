"""The paper's own figures (Li et al., ICML 2018), by table."""

# Table 1: perplexity on Penn Treebank, by stage and split, and method; "cache" is after finetuning.
PTB = {
    ("trained", "valid"): {"sigmoid": 60.7, "sharpened": 61.6, "gumbel": 60.4},
    ("trained", "test"): {"sigmoid": 58.8, "sharpened": 59.4, "gumbel": 58.2},
    ("finetuned", "valid"): {"sigmoid": 60.0, "sharpened": 59.9, "gumbel": 58.5},
    ("finetuned", "test"): {"sigmoid": 57.3, "sharpened": 57.5, "gumbel": 56.1},
    ("cache", "valid"): {"sigmoid": 53.9, "sharpened": 53.9, "gumbel": 52.9},
    ("cache", "test"): {"sigmoid": 52.8, "sharpened": 53.2, "gumbel": 52.1},
}

# Table 2: BLEU, by data set and method.
BLEU = {
    "wmt14": {"sigmoid": 21.89, "sharpened": 21.64, "gumbel": 22.43},
    "iwslt14": {"sigmoid": 31.00, "sharpened": 29.73, "gumbel": 31.95},
}

# Tables 3 to 5: what compression of the gates' weights changes, by preset and method.
PTB_COMPRESSED = {
    "paper-lm-round": {"sigmoid": 0.4, "sharpened": 0.3, "gumbel": 0.1},
    "paper-lm-clip": {"sigmoid": 0.8, "sharpened": 0.4, "gumbel": 0.7},
    "paper-lm-svd128": {"sigmoid": 3.8, "sharpened": 1.4, "gumbel": 1.2},
    "paper-lm-svd64": {"sigmoid": 12.7, "sharpened": 6.8, "gumbel": 3.9},
}
IWSLT14_COMPRESSED = {
    "paper-mt-round": {"sigmoid": -2.35, "sharpened": -2.65, "gumbel": -0.51},
    "paper-mt-clip": {"sigmoid": -9.03, "sharpened": -4.59, "gumbel": -0.51},
    "paper-mt-svd32": {"sigmoid": -0.48, "sharpened": -0.53, "gumbel": -0.33},
    "paper-mt-svd16": {"sigmoid": -1.44, "sharpened": -0.91, "gumbel": -0.67},
}
WMT14_COMPRESSED = {
    "paper-mt-round": {"sigmoid": -5.67, "sharpened": -4.79, "gumbel": -2.28},
    "paper-mt-clip": {"sigmoid": -5.86, "sharpened": -4.92, "gumbel": -2.14},
    "paper-mt-svd32": {"sigmoid": -0.74, "sharpened": -0.66, "gumbel": -0.27},
    "paper-mt-svd16": {"sigmoid": -1.90, "sharpened": -1.77, "gumbel": -0.51},
}

PTB_HIDDEN = 1150  # the width that the paper's ranks of a language model are for


def proportional_rank(rank: int, hidden: int) -> int:
    """A rank of the paper's language model in proportion to narrower layers."""
    return max(1, round(rank * hidden / PTB_HIDDEN))
