"""What the layers of a decoder cost in work units, counted without their calls (``llama_layers``).

Fine-tuning and decoding have the same way forward. Tests compare the sums with whole programs.
"""

from __future__ import annotations

from tasks.programs.llama_shape import PROJECTIONS, LlamaShape, projection
from tasks.programs.tally import Tally

__all__ = ["LayersTally"]


class LayersTally:
    """What passes over ``batch`` sequences of ``length`` tokens cost, each of which sees ``seen`` places.

    The weights of ``targets`` have adapters of ``rank``. With ``keeps`` keys and values of all places stand in the
    state. With ``is_trained`` weights are fractions of a state.
    """

    def __init__(
        self, model: LlamaShape, *, batch: int, length: int, seen: int, rank: int = 0,
        targets: tuple[str, ...] = (), keeps: bool = False, is_trained: bool = False,
    ) -> None:  # fmt: skip
        self.is_trained = is_trained
        self.model, self.rank, self.targets = model, rank, targets
        self.seen, self.keeps = seen, keeps
        self.rows = batch * length
        self.queries, self.keys = model.heads * model.head_width, model.key_width
        self.groups = batch * model.key_heads
        self.query_rows, self.key_rows = self.rows * model.heads, self.rows * model.key_heads
        self.scores = self.query_rows * seen
        self.sizes = {name: projection(model, name) for name in PROJECTIONS}

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
        if self.is_trained:
            found.each(rows * model.width, "gather", "load")
            return
        self.weight(found, model.vocabulary, model.width)
        found.each(rows * model.width, "gather", "scale_rows")
        found.each(rows, "gather")

    def start(self, found: Tally) -> None:
        """Count the tables of positions, and the rows of tokens."""
        model, rows = self.model, self.rows
        found.each(rows, "positions")
        found.each(rows * (model.head_width // 2), "rotary", "rotary")
        self.embedded(found)

    def logits(self, found: Tally, rows: int) -> None:
        """Count the last norm and the logits of so many rows."""
        model = self.model
        found.normed(rows, model.width)
        found.quantised(rows, rows * model.width)
        if self.is_trained or not model.tied:
            self.weight(found, model.vocabulary, model.width)
        found.product(rows, model.width, model.vocabulary)

    def forward(self) -> Tally:
        """Return the way forward of a layer."""
        model, rows, found = self.model, self.rows, Tally()
        scores, queries, keys = self.scores, self.queries, self.keys
        seen_rows = self.groups * self.seen
        seen = seen_rows * model.head_width
        found.normed(rows, model.width)
        self._linear(found, model.width, "query", "key", "value")
        if model.biased:
            for columns in (queries, keys, keys):
                found.each(rows * columns, "add")
                found.each(columns, "load")
        found.each(rows * queries, "rotate", "split_heads", "join_heads")
        found.each(rows * keys, "rotate", "split_heads", "split_heads")
        found.quantised(self.query_rows, rows * queries)
        found.quantised(self.key_rows, rows * keys)
        found.quantised(self.key_rows, rows * keys)
        if self.keeps:
            for values in (seen, seen_rows) * 2:
                found.each(values, "load_integers", "place_rows", "store_integers")
        found.products(rows * queries, seen, scores, model.head_width)
        found.each(scores, "multiply", "bound", "causal", "subtract", "exp", "causal", "divide", "bound")
        found.fold("row_maximum", self.query_rows, scores)
        found.row_sum(self.query_rows, scores)
        found.each(self.query_rows, "add")
        self.folded(found, self.query_rows, seen, rows * queries, self.seen)
        self._linear(found, queries, "output")
        found.rounded(rows * model.width)
        found.normed(rows, model.width)
        self._linear(found, model.width, "gate", "up")
        hidden = ("bound", "subtract", "exp", "add", "divide", "select", "multiply", "multiply")
        found.each(rows * model.hidden, *hidden)
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
        rest.each(model.width, "load", "load")
        if model.biased:
            for columns in (self.queries, self.keys, self.keys):
                rest.each(columns, "load")
        rest.product(rows, model.hidden, model.width)
        if "down" in self.targets:
            rest.quantised(rows, rows * rank)
            rest.product(rows, rank, model.width)
            rest.each(rows * model.width, "multiply", "add")
        else:
            rest.quantised(rows, rows * model.hidden)
        rest.rounded(rows * model.width)
        found = self.forward().plus(rest.times(-1))
        found.each(rows * model.width, "bound")
        return found

    def folded(self, found: Tally, rows: int, right: int, result: int, terms: int) -> None:
        """Count the products of shares or scores with the columns of rows of heads."""
        found.each(self.scores, "scale_columns")
        found.quantised(rows, self.scores)
        found.each(right, "transpose_groups" if self.groups > 1 else "transpose")
        found.products(self.scores, right, result, terms)

    def _linear(self, found: Tally, inputs: int, *names: str) -> None:
        """Count products of the same rows with weights, and with their adapters."""
        rows, rank = self.rows, self.rank
        found.quantised(rows, rows * inputs)
        for name in names:
            outputs = self.sizes[name][0]
            self.weight(found, outputs, inputs)
            found.product(rows, inputs, outputs)
            if name in self.targets:
                found.each(0, "load", "load")
                found.quantised(rank, rank * inputs)
                found.product(rows, inputs, rank)
                found.quantised(rows, rows * rank)
                found.quantised(outputs, outputs * rank)
                found.product(rows, rank, outputs)
                found.each(rows * outputs, "multiply", "add")
