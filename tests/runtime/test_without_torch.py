"""The runtime where nothing can be imported but NumPy, safetensors and tokenizers."""

from g2lstm.runs.trained import load
from tests.runs.test_compressed import compressed_run
from tests.runs.toys import language_run, translation_run
from tests.test_core import with_only

KEPT = {"numpy", "safetensors", "tokenizers"}


def test_a_language_model_writes(tmp_path):
    run, _ = compressed_run(language_run(tmp_path), "small")
    done = with_only(
        KEPT,
        f"""
from g2lstm.runtime import load
model = load({str(run)!r})
print(model.generate("w1", tokens=8, seed=1))
print(float(model.step(3).max()))
""",
        tmp_path,
    )
    assert done.stderr == ""
    trained = load(run)
    text = trained.generate("w1", tokens=8, seed=1)
    assert done.stdout == f"{text}\n{float(trained.stream().step(3).max())}\n"


def test_a_translation_model_translates(tmp_path):
    run, _ = compressed_run(translation_run(tmp_path, "data.tokenizer=bpe", "data.vocabulary=280"), "small")
    code = f"from g2lstm.runtime import load\nprint(load({str(run)!r}).translate('ein haus\\nund', as_text=True))"
    done = with_only(KEPT, code, tmp_path)
    assert done.stderr == ""
    assert done.stdout == load(run).translate("ein haus\nund", as_text=True) + "\n"


def test_a_run_without_tokenizers_says_what_to_install(tmp_path):
    run = language_run(tmp_path)
    code = f"from g2lstm.runtime import load\ntry:\n load({str(run)!r})\nexcept ValueError as error:\n print(error)"
    done = with_only({"numpy", "safetensors"}, code, tmp_path)
    assert done.stderr == ""
    assert done.stdout == (
        "a run with its tokenizer needs the packages of the extra 'text', but tokenizers is not installed: "
        "pip install 'g2lstm[text]'\n"
    )
