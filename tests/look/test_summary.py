"""What opens a report: one score of each run, and what they show."""

from g2lstm.look.summary import same_tokens, summarise
from g2lstm.runs.directory import RunDirectory
from tests.look.toys import language_run


def scored(folder, name, perplexity, steps=7, **more):
    run = RunDirectory(language_run(folder, name))
    score = {"perplexity": perplexity, "split": "test", "eval_gate": "soft", "bits_per_character": 2.0, **more}
    run.add_result({"unknown_share": 0.01, "signature": name, "recipe": run.recipe_hash, **score})
    run.append_metrics({"kind": "train", "step": steps, "epoch": 1, "tokens": 9, "seconds": 1.0, "loss": 1.0})
    return run


def test_the_table_and_the_sentence(tmp_path):
    runs = {"one": scored(tmp_path, "one", 60.0), "two": scored(tmp_path, "two", 50.0)}
    head, rows, sentence = summarise(runs)
    assert head == ["", "score", "bits per character", "unknown", "updates", "MB"]
    assert rows[0][:5] == ["one", "perplexity 60.00 on test", "2.000", "1.0%", "7"]
    assert sentence == (
        "two has the best perplexity on the test text, 50.00; one the worst, 60.00. All were trained for 7 updates."
    )
    assert "All were" not in summarise(runs | {"three": scored(tmp_path, "three", 55.0, steps=9)})[2]
    assert summarise({"one": runs["one"]})[2] == "one has a perplexity of 60.00 on the test text."


def test_other_tokenizers_are_not_compared(tmp_path):
    runs = {"one": scored(tmp_path, "one", 60.0), "two": scored(tmp_path, "two", 50.0)}
    tokenizer = runs["two"].path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"mat"', '"rug"'))
    assert same_tokens(runs["one"]) != same_tokens(runs["two"])
    assert "compare bits per character" in summarise(runs)[2]


def test_without_scores_there_is_nothing_to_say(tmp_path):
    assert summarise({"one": RunDirectory(language_run(tmp_path, "one"))}) is None
