"""What the recipes of all tasks have in common."""

from g2lstm.recipes.sections import DataSection, GateSection, Layers, Section, TrainSection, Width


class ModelSection(GateSection):
    """The part of a recipe that describes a model, whatever the task."""

    embedding: Width
    hidden: Width
    layers: Layers
    dropout: Section


class Recipe(Section):
    """Everything about one training run; each task has its own kind."""

    task: str
    data: DataSection
    model: ModelSection
    train: TrainSection
