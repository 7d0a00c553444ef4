"""What the layers of a decoder cost in work units, counted without their calls (``llama_layers``).

Fine-tuning and decoding have the same way forward. Tests compare the sums with whole programs.
"""

from __future__ import annotations

from tasks.programs.gelu import GELU_CONSTANTS, SLOPE_CONSTANTS
from tasks.programs.llama_layers import NOTHING, TRAINED_BITS, TUNED_BITS, TUNED_PAIR_BITS
from tasks.programs.llama_shape import BITS, FUSED, LlamaShape, projection, projections_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.tally import Tally

__all__ = ["LayersTally"]


class LayersTally:
    """What passes over ``batch`` sequences of ``length`` tokens cost, each of which sees ``seen`` places.

    The weights of ``targets`` have adapters of ``rank``. With ``keeps`` keys and values of all places stand in the
    state. With ``is_trained`` weights are fractions of a state. With ``packed`` rows share sequences. With
    ``is_tuned`` widths are those of training, as with adapters and with trained weights.
    """

    def __init__(
        self, model: LlamaShape, *, batch: int, length: int, seen: int, rank: int = 0,
        targets: tuple[str, ...] = (), keeps: bool = False, is_trained: bool = False,
        packed: bool = False, is_tuned: bool = False,
    ) -> None:  # fmt: skip
        is_tuned = is_tuned or is_trained or rank > 0
        self.bits, self.pair_bits = (TUNED_BITS, TUNED_PAIR_BITS) if is_tuned else (BITS, BITS)
        self.weight_bits = TRAINED_BITS if is_trained else BITS
        self.is_trained, self.packed = is_trained, packed
        self.model, self.rank, self.targets = model, rank, targets
        self.seen, self.keeps = seen, keeps
        self.batch, self.length, self.rows = batch, length, batch * length
        self.queries, self.keys = model.heads * model.head_width, model.key_width
        self.groups = batch * model.key_heads
        self.query_rows, self.key_rows = self.rows * model.heads, self.rows * model.key_heads
        self.scores = self.query_rows * seen
        self.sizes = {name: projection(model, name) for name in projections_of(model)}
        self.group_rows = model.heads // model.key_heads * length

    @property
    def constants(self) -> set[float]:
        """Constants of the way forward. Equal ones are one call."""
        model = self.model
        found = {0.0, 1.0, 1.0 / model.width, model.epsilon_nano / NANO, NOTHING, model.head_width**-0.5}
        return found | set(GELU_CONSTANTS) if model.is_gpt2 else found

    @property
    def slopes(self) -> set[float]:
        """Constants of the derivative of the activation function."""
        return set(SLOPE_CONSTANTS) if self.model.is_gpt2 else set()

    @property
    def numbers(self) -> set[int]:
        """Integers that are calls of their own; equal ones are one call."""
        rows = self.model.heads * self.length
        return ({0, rows, 2 * rows} if self.model.is_gpt2 else set()) | (set() if self.keeps else {0})

    def weight(self, found: Tally, outputs: int, inputs: int) -> None:
        """Count a weight's integers and exponents: of a trained one they are made of fractions."""
        if self.is_trained:
            found.each(0, "load")
            found.quantised(outputs, outputs * inputs)
        else:
            found.weight(outputs, inputs)

    def embedded(self, found: Tally) -> None:
        """Count the rows of tokens."""
        model, rows = self.model, self.rows
        for count in (model.vocabulary, model.context) if model.is_gpt2 else (model.vocabulary,):
            if self.is_trained:
                found.each(rows * model.width, "gather", "load")
                continue
            self.weight(found, count, model.width)
            found.each(rows * model.width, "gather", "scale_rows")
            found.each(rows, "gather")
        if model.is_gpt2:
            found.rounded(rows * model.width)

    def start(self, found: Tally) -> None:
        """Count the tables of positions, the rows of tokens, and ``numbers``."""
        model, rows = self.model, self.rows
        if not self.packed:
            found.each(rows, "positions")
        found.each(1, *["number"] * len(self.numbers))
        if model.is_gpt2:
            # Places of queries, keys and values; with one head the first ones are the positions.
            shared = model.heads == 1 and not self.keeps and not self.packed
            found.each(self.query_rows, *["positions"] * (2 if shared else 3))
        else:
            found.each(rows * (model.head_width // 2), "rotary", "rotary")
        self.embedded(found)

    def logits(self, found: Tally, rows: int) -> None:
        """Count the last norm and the logits of so many rows."""
        model = self.model
        self.normed(found, rows)
        found.quantised(rows, rows * model.width)
        if self.is_trained or not model.tied:
            self.weight(found, model.vocabulary, model.width)
        found.product(rows, model.width, model.vocabulary, self.bits, self.weight_bits)

    def normed(self, found: Tally, rows: int) -> None:
        """Count a norm of so many rows."""
        width = self.model.width
        found.normed(rows, width)
        if self.model.is_gpt2:
            found.row_sum(rows, rows * width)
            found.each(rows, "multiply")
            found.each(rows * width, "subtract", "add")
            found.each(width, "load")

    def through_norm(self, found: Tally, rows: int) -> None:
        """Count the way back through a norm of so many rows."""
        width = self.model.width
        found.through_norm(rows, width)
        if self.model.is_gpt2:
            found.row_sum(rows, rows * width)
            found.each(rows, "multiply")
            found.each(rows * width, "subtract")

    def forward(self) -> Tally:
        """Return the way forward of a layer."""
        model, rows, found = self.model, self.rows, Tally()
        scores, queries, keys = self.scores, self.queries, self.keys
        seen_rows = self.groups * self.seen
        seen = seen_rows * model.head_width
        self.normed(found, rows)
        self._heads(found)
        found.quantised(self.query_rows, rows * queries)
        found.quantised(self.key_rows, rows * keys)
        found.quantised(self.key_rows, rows * keys)
        if self.keeps:
            for values in (seen, seen_rows) * 2:
                found.each(values, "load_integers", "place_rows", "store_integers")
        found.products(rows * queries, seen, scores, model.head_width, self.pair_bits)
        found.each(scores, "multiply", "bound", "causal", "subtract", "exp", "causal", "divide", "bound")
        if self.packed:
            found.each(scores, "since", "since")
        found.fold("row_maximum", self.query_rows, scores)
        found.row_sum(self.query_rows, scores)
        found.each(self.query_rows, "add")
        self.folded(found, self.query_rows, seen, rows * queries, self.seen)
        found.each(rows * queries, "join_heads")
        self._linear(found, queries, "output")
        found.rounded(rows * model.width)
        self.normed(found, rows)
        self._hidden(found)
        self._linear(found, model.hidden, "down")
        found.rounded(rows * model.width)
        return found

    def again(self) -> Tally:
        """Return the way forward of a layer as the way back computes it again (R152).

        Weights and matrices of adapters are loaded and made integers once for both. The last product of a layer is
        not needed, but for what its adapter takes.
        """
        model, rows, rank, rest = self.model, self.rows, self.rank, Tally()
        for name, (outputs, inputs) in self.sizes.items():
            self.weight(rest, outputs, inputs)
            if name in self.targets:
                rest.each(0, "load", "load")
                rest.quantised(rank, rank * inputs)
                rest.quantised(outputs, outputs * rank)
        for _ in range(2 if model.is_gpt2 else 1):
            rest.each(model.width, "load", "load")
        if model.is_gpt2:
            for outputs, _ in self.sizes.values():
                rest.each(outputs, "load")
            rest.each(rows * model.width, "add")
        if model.biased:
            for columns in (self.queries, self.keys, self.keys):
                rest.each(columns, "load")
        rest.product(rows, model.hidden, model.width, self.bits, self.weight_bits)
        if "down" in self.targets:
            rest.quantised(rows, rows * rank)
            rest.product(rows, rank, model.width, self.pair_bits)
            rest.each(rows * model.width, "multiply", "add")
        else:
            rest.quantised(rows, rows * model.hidden)
        rest.rounded(rows * model.width)
        found = self.forward().plus(rest.times(-1))
        found.each(rows * model.width, "bound")
        return found

    def _heads(self, found: Tally) -> None:
        """Count the rows of queries, keys and values."""
        model, rows, queries, keys = self.model, self.rows, self.queries, self.keys
        if model.is_gpt2:
            self._linear(found, model.width, FUSED)
            found.each(3 * rows * queries, "split_heads")
            found.each(rows * queries, *["gather_groups"] * 3)
            return
        self._linear(found, model.width, "query", "key", "value")
        if model.biased:
            for columns in (queries, keys, keys):
                found.each(rows * columns, "add")
                found.each(columns, "load")
        found.each(rows * queries, "rotate", "split_heads")
        found.each(rows * keys, "rotate", "split_heads", "split_heads")

    def _hidden(self, found: Tally) -> None:
        """Count the hidden part up to its activation function."""
        model = self.model
        if model.is_gpt2:
            self._linear(found, model.width, "up")
            names = ["bound", *["multiply"] * 4, "add", "subtract", "exp", "add", "divide", "select"]
        else:
            self._linear(found, model.width, "gate", "up")
            names = ["bound", "subtract", "exp", "add", "divide", "select", "multiply", "multiply"]
        found.each(self.rows * model.hidden, *names)

    def through_hidden(self, found: Tally) -> None:
        """Count the way back through the activation function."""
        found.each(self.rows * self.model.hidden, *["multiply"] * 5, "subtract", "add")
        if self.model.is_gpt2:
            found.each(self.rows * self.model.hidden, "add")

    def turned_back(self, found: Tally, name: str) -> None:
        """Count what makes gradients of projected columns of those of rows of queries or keys."""
        values = self.rows * (self.queries if name == "query" else self.keys)
        found.each(values, *(["multiply"] if self.model.is_gpt2 else ["join_heads", "rotate", "multiply"]))

    def together(self, found: Tally) -> None:
        """Count queries, keys and values that are put side by side, of GPT-2."""
        found.each(3 * self.rows * self.queries, *["place_rows"] * 3, "join_heads")

    def folded(self, found: Tally, rows: int, right: int, result: int, terms: int) -> None:
        """Count the products of shares or scores with the columns of rows of heads."""
        found.each(self.scores, "scale_columns")
        found.quantised(rows, self.scores)
        found.each(right, "transpose_groups" if self.groups > 1 else "transpose")
        found.products(self.scores, right, result, terms, self.pair_bits)

    def _linear(self, found: Tally, inputs: int, *names: str) -> None:
        """Count products of the same rows with weights, and with their adapters."""
        rows, rank = self.rows, self.rank
        found.quantised(rows, rows * inputs)
        for name in names:
            outputs = self.sizes[name][0]
            self.weight(found, outputs, inputs)
            found.product(rows, inputs, outputs, self.bits, self.weight_bits)
            if self.model.is_gpt2:
                found.each(rows * outputs, "add")
                found.each(outputs, "load")
            if name in self.targets:
                found.each(0, "load", "load")
                found.quantised(rank, rank * inputs)
                found.product(rows, inputs, rank, self.bits, self.pair_bits)
                found.quantised(rows, rows * rank)
                found.quantised(outputs, outputs * rank)
                found.product(rows, rank, outputs, self.pair_bits)
                found.each(rows * outputs, "multiply", "add")
