"""The kind ``train``: a classifier of fully connected layers over rows of small features (market.md 4.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from state.primitives.codec import Value
from tasks.engines.dataset_layout import Layout
from tasks.engines.datasets import ROWS_MAX
from tasks.engines.plan import TrainingPlan
from tasks.kinds.fields import INTEGER_MAX, Found, KindFields
from tasks.kinds.plan import Input
from tasks.programs.classifier import FEATURES, LABELS
from tasks.programs.operators.storage import SHIFT_MAX
from tasks.programs.program import SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "CLASSIFIER_FIELDS",
    "CLASSIFIER_NAMES",
    "KIND_TRAIN",
    "MODEL_MLP",
    "OPTIMISER_ADAMW",
    "ClassifierPart",
    "Dataset",
    "Model",
    "Optimiser",
]

KIND_TRAIN: Final = "train"
MODEL_MLP: Final = "mlp"
OPTIMISER_ADAMW: Final = "adamw"
PLANS_HELD_MAX: Final = 1024
"""Plans kept in memory: every step of a task asks what its work is."""


class Model(NamedTuple):
    """A classifier of fully connected layers; ``widths`` runs from the features to the classes."""

    name: str
    widths: tuple[int, ...]
    activation: str


class Dataset(NamedTuple):
    """The data: content address of the blob, and root of the tensors that it holds (features and labels).

    Of ``rows`` rows the first ``samples`` are for training. A feature is a byte times 2^-shift.
    """

    blob: bytes
    root: bytes
    rows: int
    samples: int
    shift: int


class Optimiser(NamedTuple):
    """The step rule; rates are in units of 1e-9."""

    name: str
    learning_rate_nano: int
    beta1_nano: int
    beta2_nano: int
    epsilon_nano: int
    weight_decay_nano: int


class ClassifierPart(NamedTuple):
    """What a specification of this kind has of its own."""

    model: Model
    dataset: Dataset
    batch: int
    optimiser: Optimiser

    @classmethod
    def of(cls, found: Found) -> ClassifierPart:
        """Return the part of checked fields."""
        return cls(
            Model(found["model.name"], tuple(found["model.widths"]), found["model.activation"]),
            Dataset(*[found[f"dataset.{name}"] for name in Dataset._fields]),
            found["batch"],
            Optimiser(*[found[f"optimiser.{name}"] for name in Optimiser._fields]),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What must be named as this version runs it."""
        return self.model.name, self.optimiser.name

    def to_value(self) -> list[Value]:
        """Return the part's fields in their order."""
        name, widths, activation = self.model
        return [[name, list(widths), activation], list(self.dataset), self.batch, list(self.optimiser)]

    def plan(self, seed: bytes, _total_steps: int) -> TrainingPlan:
        """Return the plan of a job. Raises UnsupportedJob."""
        return _plan(self, seed)

    def inputs(self) -> tuple[Input, ...]:
        """Return the blobs that a job starts from."""
        named, widths = self.dataset, self.model.widths
        size = Layout(named.rows, widths[0], widths[-1], named.shift, named.samples).size
        columns = {FEATURES: widths[0], LABELS: 1}
        tensors = {name: TensorType(ElementType.UINT8, named.rows, count) for name, count in columns.items()}
        return (Input(SourceKind.DATA, named.blob, named.root, tensors, size),)


CLASSIFIER_NAMES: Final = (MODEL_MLP, OPTIMISER_ADAMW)
CLASSIFIER_FIELDS: Final = KindFields(
    fields=(
        ("model", list, Model._fields), ("dataset", list, Dataset._fields), ("batch", int, ()),
        ("optimiser", list, Optimiser._fields),
    ),
    ranges={
        "dataset.rows": (1, ROWS_MAX), "dataset.samples": (1, ROWS_MAX), "dataset.shift": (0, SHIFT_MAX),
        "batch": (0, INTEGER_MAX), **{f"optimiser.{rate}": (0, INTEGER_MAX) for rate in Optimiser._fields[1:]},
    },
    hashes=frozenset({"dataset.blob", "dataset.root"}),
    texts=frozenset({"model.name", "model.activation", "optimiser.name"}),
    integers=frozenset({"model.widths"}),
)  # fmt: skip


@lru_cache(maxsize=PLANS_HELD_MAX)
def _plan(part: ClassifierPart, seed: bytes) -> TrainingPlan:
    model, dataset, batch, optimiser = part
    return TrainingPlan(
        widths=model.widths,
        activation=model.activation,
        batch=batch,
        rows=dataset.rows,
        train_rows=dataset.samples,
        shift=dataset.shift,
        seed=seed,
        learning_rate_nano=optimiser.learning_rate_nano,
        beta1_nano=optimiser.beta1_nano,
        beta2_nano=optimiser.beta2_nano,
        epsilon_nano=optimiser.epsilon_nano,
        weight_decay_nano=optimiser.weight_decay_nano,
    )
