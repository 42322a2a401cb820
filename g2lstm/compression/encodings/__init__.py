"""The encodings of weight matrices, one file each. A new one needs its file and a line here."""

from g2lstm.compression.encodings.base import FORMS as FORMS
from g2lstm.compression.encodings.base import KINDS as KINDS
from g2lstm.compression.encodings.base import Coded as Coded
from g2lstm.compression.encodings.base import Encoding as Encoding
from g2lstm.compression.encodings.base import Entry as Entry
from g2lstm.compression.encodings.base import form_of as form_of
from g2lstm.compression.encodings.base import names_in as names_in
from g2lstm.compression.encodings.dense import Dense as Dense
from g2lstm.compression.encodings.entropy import Entropy as Entropy
from g2lstm.compression.encodings.grid import Grid as Grid
from g2lstm.compression.encodings.integers import Integers as Integers
from g2lstm.compression.encodings.levels import Levels as Levels

# isort: split
# After those that can store its factors.
from g2lstm.compression.encodings.low_rank import LowRank as LowRank
