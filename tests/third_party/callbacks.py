"""The callbacks at work in the real Lightning and the real Hugging Face Trainer: convert, log, freeze."""

import sys
from pathlib import Path

import torch
from torch import nn

import g2lstm


class Counter(nn.Module):
    """Says at each step whether a quotation is open."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, marks, labels=None):
        logits = self.head(self.lstm(marks)[0])
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class Marks(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index):
        marks = (torch.rand(12, 1, generator=torch.Generator().manual_seed(index)) < 0.2).float()
        return {"marks": marks, "labels": marks.squeeze(-1).cumsum(0).long() % 2}


def lightning(folder: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Counter()
            self.kinds, self.methods = [], []

        def training_step(self, batch, _index):
            self.kinds.append(type(self.model.lstm).__name__)
            self.methods.append(getattr(self.model.lstm, "method", ""))
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    module, logger = Module(), CSVLogger(folder)
    callback = g2lstm.LightningCallback(every=2, noise_rate=0.3)
    trainer = Trainer(
        max_epochs=2, callbacks=[callback], logger=logger, log_every_n_steps=1, accelerator="cpu",
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(Marks(), batch_size=16))
    assert set(module.kinds) == {"G2LSTM"}
    assert type(module.model.lstm) is nn.LSTM
    assert 0 <= trainer.callback_metrics["gates/saturation"] <= 1
    assert "gates/saturation" in (Path(logger.log_dir) / "metrics.csv").read_text()

    module, quiet = Module(), {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    binary = g2lstm.LightningCallback(schedule=g2lstm.GateSchedule("binary", start=0.25), freeze=False)
    trainer = Trainer(max_epochs=2, callbacks=[binary], accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(Marks(), batch_size=16))
    assert module.methods == ["sigmoid"] * 3 + ["binary"] * 5
    assert module.model.lstm.eval_gate == "hard"


def huggingface(folder: Path) -> None:
    from transformers import Trainer, TrainingArguments

    model, kinds = Counter(), []
    model.register_forward_hook(lambda *_: kinds.append(type(model.lstm).__name__))
    arguments = TrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=16, logging_steps=2, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    callback = g2lstm.HuggingFaceCallback(every=1, noise_rate=0.3)
    trainer = Trainer(model, arguments, train_dataset=Marks(), callbacks=[callback])
    trainer.train()
    assert set(kinds) == {"G2LSTM"}
    assert type(model.lstm) is nn.LSTM
    logged = [line["gates/saturation"] for line in trainer.state.log_history if "gates/saturation" in line]
    assert logged
    assert all(0 <= share <= 1 for share in logged)

    model, methods = Counter(), []
    model.register_forward_hook(lambda *_: methods.append(model.lstm.method))
    binary = g2lstm.HuggingFaceCallback(schedule=g2lstm.GateSchedule("binary", start=0.25), freeze=False)
    Trainer(model, arguments, train_dataset=Marks(), callbacks=[binary]).train()
    assert methods == ["sigmoid"] * 3 + ["binary"] * 5


if __name__ == "__main__":
    {"lightning": lightning, "huggingface": huggingface}[sys.argv[1]](Path(sys.argv[2]))
