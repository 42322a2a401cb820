"""Gates of models whose matrices are of low rank."""

import g2lstm
from g2lstm.look import record_split
from tests.look.toys import language_run, translation_run


def test_gates_of_low_rank_models_can_be_looked_at(folder):
    runs = [language_run(folder, "thin"), translation_run(folder, "thin-mt")]
    models = [g2lstm.load(run) for run in runs]
    for trained in models:
        trained.model = g2lstm.compress(trained.model, "gates=svd:2; cell=svd:2; embedding=svd:2; softmax=svd:2")
    for trained in models:
        assert trained.read("a dog saw the cat").layers
        assert record_split(trained, "valid", samples=2).statistics
