"""`TokenSession`: a session that takes token ids and returns the log-probabilities of the next one."""

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.session import Array, Session, Vector
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor


class TokenSession:
    """A model that reads token by token and keeps its state, which is zero before the first token.

    Attributes:
        vocabulary_size: V.
    """

    def __init__(self, session: Session, embedding: Encoding) -> None:
        self._session, self._rows = session, embedding.rows
        self.vocabulary_size = embedding.shape[0]

    def step(self, token: int) -> Array:
        """Reads a token id; returns the log-probabilities (V,) of the next one."""
        return self._session.step(self._rows(np.array([self._checked(token)]))[0])

    def sequence(self, tokens: "Sequence[int] | NDArray[np.integer] | Tensor") -> Array:
        """Reads token ids (T,); returns what that many calls of `step` would, (T, V)."""
        ids = [self._checked(token) for token in tokens]
        return self._session.sequence(self._rows(np.array(ids, np.int64)))

    def read(self, tokens: Sequence[int]) -> Array:
        """Reads at least one token id; returns the log-probabilities (V,) after the last of them."""
        return self.step(tokens[0]) if len(tokens) == 1 else self.sequence(tokens)[-1]

    def get_state(self) -> list[tuple[Array, ...]]:
        """Copies of h and c (H,) of each layer."""
        return self._session.get_state()

    def set_state(self, states: Sequence[tuple[Vector, ...]]) -> None:
        """Sets h and c (H,) of each layer, from which the next step continues."""
        self._session.set_state(states)

    def reset(self) -> None:
        """Sets all states to zero."""
        self._session.reset()

    def _checked(self, token: "int | Tensor") -> int:
        try:
            number = index(token)
        except TypeError:
            raise G2Error(f"a token id must be an integer, got {token!r}") from None
        if not 0 <= number < self.vocabulary_size:
            raise G2Error(f"token ids go from 0 to {self.vocabulary_size - 1}, got {number}")
        return number
