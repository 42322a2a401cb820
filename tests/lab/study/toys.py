"""Studies so small that they take seconds: tiny texts, tiny models, one epoch; and a watcher that notes all."""

import random

SMALL = [
    "model.embedding=8", "model.hidden=8", "model.layers=1", "train.minutes=", "train.epochs=1", "train.batch_size=4",
]  # fmt: skip


def write_text(folder, lines=60):
    """A text for a language model; every five lines have three words of their own, which a cache finds."""
    generator = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", lines), ("valid", 20), ("test", 30)):
        lengths = [generator.randint(2, 9) for _ in range(count)]
        topics = [generator.sample("abcdefgh", 3) for _ in range(0, count, 5)]
        sentences = [" ".join(generator.choices(topics[n // 5], k=length)) for n, length in enumerate(lengths)]
        (folder / f"{split}.txt").write_text("\n".join(sentences) + "\n")
    return folder


def write_pairs(folder):
    """Sentences and their translations, word by word."""
    generator = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 40), ("valid", 6), ("test", 24)):
        sentences = [[generator.randrange(6) for _ in range(generator.randint(2, 6))] for _ in range(count)]
        for ending, mark in (("de", "w"), ("en", "v")):
            text = "\n".join(" ".join(f"{mark}{word}" for word in sentence) for sentence in sentences)
            (folder / f"{split}.{ending}").write_text(text + "\n")
    return folder


def of_language(folder):
    """Overrides that make any language-modelling recipe a toy on this text."""
    return [*SMALL, f"data.path={folder}", "train.bptt=5", "evaluate.cache.window=20"]


def of_translation(folder):
    """Overrides that make any translation recipe a toy on these pairs."""
    return [
        *SMALL, f"data.path={folder}", "data.tokenizer=word", "data.vocabulary=50", "data.min_frequency=1",
        "train.batch_tokens=", "train.patience=", "evaluate.beam=2", "data.source=de", "data.target=en",
    ]  # fmt: skip


def change_weights(run):
    """Other weights in a run, as if it had been trained anew."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    file = run / "model.safetensors"
    with safe_open(file, framework="pt") as opened:
        weights, metadata = {name: opened.get_tensor(name) * 0.9 for name in opened.keys()}, opened.metadata()  # noqa: SIM118, no mapping
    save_file(weights, file, metadata)


class Noting:
    """A watcher that notes what it is told."""

    def __init__(self, on_step=None):
        self.stages, self.messages, self.shares, self.steps = [], [], [], 0
        self.after_step = on_step or (lambda steps: None)

    def on_stage(self, job, stage, is_new=True):
        self.stages.append((job.run.name, stage))

    def on_share(self, share):
        self.shares.append(share)

    def on_step(self, progress, share, values):
        self.steps += 1
        self.after_step(self.steps)

    def on_validation(self, progress, validation, is_best):
        pass

    def on_message(self, message):
        self.messages.append(message)
