"""A sentence and its gates: those of `return_gates`, with the words that people know."""

import math

import numpy as np
import pytest
import torch

from g2lstm import G2LSTM, G2Error, record_gates
from g2lstm.nn.record import evaluating
from g2lstm.tasks.reading import encode, in_mode
from g2lstm.text.tokenize import train_bpe_tokenizer, train_word_tokenizer

TEXT = "the cat saw a dog"


@pytest.mark.parametrize("gate", [None, "soft", "tempered", "hard"])
def test_gates_of_a_language_model_are_those_of_return_gates(language, gate):
    reading = language.read(TEXT, eval_gate=gate)
    model, tokenizer = language.model, language.tokenizer
    x = model.embedding(torch.tensor([tokenizer.eos_id, *tokenizer.encode(TEXT)]).unsqueeze(1))
    with evaluating(model, gate), torch.no_grad():
        for layer, read in zip(model.lstms, reading.layers, strict=True):
            x, _, gates = layer(x, return_gates=True)
            for name in ("input", "forget", "output"):
                np.testing.assert_array_equal(getattr(read, name), getattr(gates, name)[0][:, 0].numpy())
    assert reading.tokens == {"text": ["<eos>", *TEXT.split()]}
    assert reading.mode == f"evaluation, {gate or 'soft'} gates"
    assert [(layer.name, layer.side, layer.direction, layer.title) for layer in reading.layers] == [
        ("layers.0", "text", "forward", "layer 1"),
        ("layers.1", "text", "forward", "layer 2"),
    ]
    assert model.training is False
    assert {layer.eval_gate for layer in model.lstms} == {"soft"}


def test_next_words_are_the_likeliest(language):
    reading = language.read(TEXT)
    tokenizer = language.tokenizer
    features = language.model(torch.tensor([tokenizer.eos_id, *tokenizer.encode(TEXT)]).unsqueeze(1)).features
    probabilities = language.model.logits(features[-1, 0]).softmax(-1)
    assert len(reading.next_words) == 10
    for word, probability in reading.next_words:
        assert probabilities[tokenizer.id_of(word)].item() == pytest.approx(probability)
    assert reading.next_words[0][1] == pytest.approx(probabilities.max().item())
    added = ["\n" if word == "<eos>" else f" {word}" for word, _ in reading.next_words]
    assert reading.next_texts == added


def test_surprisals_are_those_of_the_score(language, translation, tmp_path):
    bits = language.read(TEXT).surprisal["text"]
    assert len(bits) == len(TEXT.split())
    nats = math.log(language.perplexity(TEXT)) * (len(bits) + 1)  # with the end of the line, as a score has it
    more = language.read(f"{TEXT}\n.").surprisal["text"]
    assert more[: len(bits)] == pytest.approx(bits)
    assert sum(more[: len(bits) + 1]) * math.log(2) == pytest.approx(nats, rel=1e-4)
    files = [tmp_path / "source", tmp_path / "target"]
    for file, text in zip(files, ("die katze lief .", "the cat ran ."), strict=True):
        file.write_text(f"{text}\n")
    (nats,), (tokens,) = translation.log_probabilities(*files)
    reading = translation.read("die katze lief .", target="the cat ran .")
    assert set(reading.surprisal) == {"target"}
    assert len(reading.surprisal["target"]) == tokens - 1
    assert 0 < sum(reading.surprisal["target"]) * math.log(2) < -nats  # which counts the end


def test_a_given_translation_is_read_instead_of_the_models_own(translation):
    text, target = "die katze lief .", "the dog saw a cat ."
    reading = translation.read(text, target="the  dog saw a cat . ")
    assert reading.tokens["target"] == ["<eos>", *encode(translation.target, target)[1]]
    assert (reading.translation, reading.produced, reading.attention) == ("", [], None)
    source = torch.tensor([*translation.source.encode(text), translation.source.eos_id]).unsqueeze(1)
    inputs = torch.tensor([translation.target.eos_id, *translation.target.encode(target)]).unsqueeze(1)
    with record_gates(translation.model) as record, torch.no_grad():
        translation.model(source, torch.tensor([len(source)]), inputs)
    last = reading.layers[-1]
    assert last.name == "decoder.1"
    np.testing.assert_array_equal(last.forget, record["decoder.1"][0].forget[0][:, 0].numpy())


def test_a_target_is_for_translation_models(language):
    with pytest.raises(G2Error, match="a target is for translation models"):
        language.read(TEXT, target="a dog")


def test_gates_of_a_translation_model_are_those_of_return_gates(translation):
    text = "die katze sah ein xylophon ."
    reading = translation.read(text)
    model = translation.model
    found = translation.search([text], with_attention=True)[0][0]
    source = torch.tensor([*translation.source.encode(text), translation.source.eos_id]).unsqueeze(1)
    inputs = torch.tensor([translation.target.eos_id, *found.target_ids]).unsqueeze(1)
    expected = []
    with torch.no_grad():
        x, _, gates = model.encoder[0](model.source_embedding(source), return_gates=True)
        expected += [(gates, 0), (gates, 1)]
        _, _, gates = model.encoder[1](x, return_gates=True)
        expected.append((gates, 0))
        state = model.start(model.encode(source, torch.tensor([len(source)])))
        _, _, gates = model.decoder[0](model.target_embedding(inputs), state.layers[0], return_gates=True)
        expected.append((gates, 0))
    for read, (gates, place) in zip(reading.layers[:4], expected, strict=True):
        for name in ("input", "forget", "output"):
            values = getattr(gates, name)[place][:, 0].numpy()
            np.testing.assert_allclose(getattr(read, name), values, rtol=1e-5, atol=1e-6)
    assert [(layer.name, layer.side, layer.direction) for layer in reading.layers] == [
        ("encoder.0", "source", "forward"),
        ("encoder.0", "source", "backward"),
        ("encoder.1", "source", "forward"),
        ("decoder.0", "target", "forward"),
        ("decoder.1", "target", "forward"),
    ]
    assert reading.layers[1].title == "encoder 1, backward"
    assert reading.translation == found.text
    assert len(reading.tokens["source"]) == len(source)
    assert len(reading.tokens["target"]) == len(inputs) == len(reading.produced)
    assert reading.attention.shape == (len(inputs), len(source))
    np.testing.assert_array_equal(reading.attention, found.attention)
    assert reading.layers[4].forget.shape == (len(inputs), 8)
    assert reading.tokens["source"][-1] == "<eos>"
    assert reading.tokens["target"][0] == "<eos>"
    assert reading.produced == [*reading.tokens["target"][1:], "<eos>"]


def test_training_mode_has_seeded_noise_and_leaves_no_trace(language):
    before = torch.get_rng_state()
    one, again, other = (language.read(TEXT, training=True, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(one.layers[0].forget, again.layers[0].forget)
    assert (one.layers[0].forget != other.layers[0].forget).any()
    assert one.mode == "training, noise in the gates (tau 0.9, rate 0.2), dropout"
    assert not language.model.training
    with pytest.raises(G2Error, match="eval_gate='hard' is for evaluation"):
        language.read(TEXT, training=True, eval_gate="hard")


def test_a_reading_of_training_mode_translates_without_noise(translation):
    plain, noisy = (translation.read("die katze", training=training) for training in (False, True))
    assert noisy.translation == plain.translation
    assert (noisy.layers[3].forget != plain.layers[3].forget).any()


def test_unknown_words_are_shown_as_written_and_named(language):
    reading = language.read("the Xylophon \x1b[31m sat <b>")
    assert reading.tokens["text"] == ["<eos>", "the", "Xylophon", r"\x1b[31m", "sat", "<b>"]
    assert reading.unknown == {"text": [2, 3, 5]}
    only = language.read("Xylophon")
    assert only.unknown == {"text": [1]}


def test_lines_are_sentences(language):
    assert language.read("the cat\na dog\n").tokens["text"] == ["<eos>", "the", "cat", "<eos>", "a", "dog"]


@pytest.mark.parametrize("text", ["", " \t\n "])
def test_an_empty_text_is_refused(language, translation, text):
    for trained in (language, translation):
        with pytest.raises(G2Error, match="the text is empty"):
            trained.read(text)


def test_a_long_text_is_refused_before_the_work(language, translation):
    for trained in (language, translation):
        with pytest.raises(G2Error, match="the text has .* tokens, and at most 1,000"):
            trained.read("katze " * 10_000)


def test_half_a_character_is_refused(language):
    with pytest.raises(G2Error, match="not valid Unicode: character 3"):
        language.read("a \udcff")


def test_an_unknown_reading_of_the_gates(language):
    with pytest.raises(G2Error, match="eval_gate must be one of"):
        language.read(TEXT, eval_gate="firm")


def test_pieces_of_words():
    tokenizer = train_bpe_tokenizer(
        ["grüne häuser", "ein haus ."] * 9, vocabulary=270, prefix_space=True, is_tokenized=True
    )
    _, tokens = encode(tokenizer, "häuser ein haus x")
    begins = [token for token in tokens if not token.startswith("##")]
    assert len(begins) == 4
    assert "".join(tokens).replace("##", "").replace("␣", "") == "häusereinhausx"
    assert tokens[-2:] == ["␣", "##x"]
    assert tokenizer.readable([tokenizer.eos_id, tokenizer.id_of("Ġ")]) == ["<eos>", "␣"]


def test_tokens_without_spaces_between_words_are_no_pieces():
    tokenizer = train_bpe_tokenizer(["私はその人を、先生と呼んだ。"] * 9, vocabulary=400)
    _, tokens = encode(tokenizer, "その人と、先生を。鱓")
    assert not any("##" in token for token in tokens)
    assert "".join(tokens).startswith("その人と、先生を。")


def test_a_word_tokenizer_shows_its_own_spelling():
    tokenizer = train_word_tokenizer(["the cat"], lowercase=True)
    assert encode(tokenizer, "The Dog")[1] == ["the", "Dog"]


def test_training_mode_names_binary_gates():
    with in_mode(G2LSTM(2, 3, method="binary"), training=True) as mode:
        assert mode == "training, noise in binary gates (tau 0.5, rate 0.2), dropout"
