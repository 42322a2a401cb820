"""The table of named data sets: what they are and where they come from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from g2lstm.text.embedded import SPLITS

_GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set.

    Attributes:
        name: in the folder of the set, for example "train.txt", or "train.de" of a set of pairs.
        url: where it comes from, unless a mirror is set.
        sha256: of its bytes.
    """

    name: str
    url: str
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """A data set that has a name.

    Attributes:
        name: as recipes and commands call it.
        task: "lm" for text, "mt" for pairs of texts aligned by line.
        summary: one line for a table.
        files: what to download; none for embedded sets, and for those that a user prepares.
        languages: of an "mt" set, source first: the endings of its files. It can be read the other way too.
        folder: of the set in a data directory; its name if not given.
        preparation: how a user makes the files, of a set that cannot be downloaded as it is.
        training_pairs: about how many the whole of such a set has, since many hold a part of it.
    """

    name: str
    task: str
    summary: str
    files: tuple[RemoteFile, ...] = ()
    languages: tuple[str, ...] = ()
    folder: str = ""
    preparation: str = ""
    training_pairs: int = 0

    def __post_init__(self) -> None:
        if not self.folder:
            object.__setattr__(self, "folder", self.name)

    @property
    def file_names(self) -> tuple[str, ...]:
        """The files in the set's folder."""
        return tuple(f"{split}.{ending}" for split in SPLITS for ending in self.languages or ("txt",))


def _files(address: str, files: Iterable[tuple[str, str, str]]) -> tuple[RemoteFile, ...]:
    """From the name here, the name there, and the SHA-256 of each file."""
    return tuple(RemoteFile(name, f"{_GITHUB}/{address}/{remote}", sha256) for name, remote, sha256 in files)


_SETS = (
    DataSet("embedded", "lm", "Python's language reference as prose, 44K words to train on; needs no download"),
    DataSet(
        "ptb",
        "lm",
        "Penn Treebank in Mikolov's preparation, 930K words to train on, 10,000 types",
        _files(
            "tomsercu/lstm/master/data",
            [
                ("train.txt", "ptb.train.txt", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
                ("valid.txt", "ptb.valid.txt", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
                ("test.txt", "ptb.test.txt", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
            ],
        ),
    ),
    DataSet(
        "wikitext-2",
        "lm",
        "WikiText-2 by words, 2.1M words to train on, 33,278 types",
        _files(
            "pytorch/examples/main/word_language_model/data/wikitext-2",
            [
                ("train.txt", "train.txt", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
                ("valid.txt", "valid.txt", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
                ("test.txt", "test.txt", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
            ],
        ),
    ),
    DataSet(
        "embedded-mt",
        "mt",
        "German and English sentences of a small grammar, 20,000 pairs to train on; needs no download",
        languages=("de", "en"),
    ),
    DataSet(
        "multi30k-de-en",
        "mt",
        "Multi30k, descriptions of pictures, 29,000 pairs to train on; lower-case, tokenised",
        _files(
            "multi30k/dataset/master/data/task1/tok",
            [
                (f"{split}.{language}", f"{remote}.lc.norm.tok.{language}", sha256)
                for split, remote, language, sha256 in (
                    ("train", "train", "de", "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505"),
                    ("train", "train", "en", "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119"),
                    ("valid", "val", "de", "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00"),
                    ("valid", "val", "en", "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec"),
                    (
                        "test",
                        "test_2016_flickr",
                        "de",
                        "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
                    ),
                    (
                        "test",
                        "test_2016_flickr",
                        "en",
                        "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
                    ),
                )
            ],
        ),
        languages=("de", "en"),
        folder="multi30k",
    ),
    DataSet(
        "iwslt14-de-en",
        "mt",
        "IWSLT'14, subtitles of talks, 153K pairs to train on; lower-case, tokenised; to be prepared by you",
        languages=("de", "en"),
        folder="iwslt14",
        preparation="prepareData.sh of facebookresearch/MIXER on GitHub downloads the talks, tokenises them with Moses "
        "in lower case, and splits them: 153K, 6,969 and 6,750 pairs",
        training_pairs=153_000,
    ),
    DataSet(
        "wmt14-en-de",
        "mt",
        "WMT'14, parliament, web and news, 4.5M pairs to train on; raw text; to be prepared by you",
        languages=("en", "de"),
        folder="wmt14",
        preparation="train is Europarl v7, Common Crawl and News Commentary v9 of WMT'14's translation task, one after "
        "the other, valid is newstest2012 and newstest2013, test is newstest2014",
        training_pairs=4_500_000,
    ),
)

DATA_SETS: Mapping[str, DataSet] = MappingProxyType({data_set.name: data_set for data_set in _SETS})
