"""What every recipe says of its data: a named set or a folder, and how text becomes tokens."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from g2lstm.errors import G2Error
from g2lstm.recipes.sections import Count, FolderName, Section
from g2lstm.text.registry import data_set
from g2lstm.text.tokenize import MIN_BPE_VOCABULARY

Vocabulary = Annotated[int, Field(ge=3, lt=2**31)]
_NEEDS = {
    "lm": "this data set is for translation; language modelling needs one of plain text",
    "mt": "this data set is plain text; translation needs one of sentence pairs",
}


class DataSection(Section):
    """The data of either task.

    Attributes:
        name: of a data set; or
        path: a folder with files of one's own.
        tokenizer: "word" for what stands between white space, "bpe" for byte-pair encoding.
        vocabulary: at most so many tokens; all words if not given.
        min_frequency: rarer words become <unk>; rarer pairs are not merged.
        lowercase: make the text lower-case first.
    """

    task: ClassVar[str]
    name: str | None = None
    path: FolderName | None = Field(default=None, validate_default=True)
    tokenizer: Literal["word", "bpe"] = "word"
    vocabulary: Vocabulary | None = Field(default=None, validate_default=True)
    min_frequency: Count = 1
    lowercase: bool = False

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                found = data_set(name)
            except G2Error as error:
                raise ValueError(str(error)) from None
            if found.task != cls.task:
                raise ValueError(_NEEDS[cls.task])
        return name

    @field_validator("path")
    @classmethod
    def _is_either(cls, path: str | None, others: ValidationInfo) -> str | None:
        if "name" in others.data and (others.data["name"] is None) == (path is None):
            raise ValueError("give either data.name or data.path, and not both")
        return path

    @field_validator("vocabulary")
    @classmethod
    def _is_enough(cls, vocabulary: int | None, others: ValidationInfo) -> int | None:
        if others.data.get("tokenizer") == "bpe" and (vocabulary is None or vocabulary < MIN_BPE_VOCABULARY):
            raise ValueError(f'the tokenizer "bpe" needs a vocabulary of at least {MIN_BPE_VOCABULARY}, such as 8000')
        return vocabulary
