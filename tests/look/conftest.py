"""Toy models, made once; nothing is written to the user's cache."""

import pytest

import g2lstm
from tests.look.toys import language_run, translation_run


@pytest.fixture(scope="session")
def language(folder):
    return g2lstm.load(language_run(folder))


@pytest.fixture(scope="session")
def translation(folder):
    return g2lstm.load(translation_run(folder))
