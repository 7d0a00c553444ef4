"""The table of operators: nothing else can stand in a program (market.md 4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tasks.programs.operators import Operator
from tasks.programs.operators.attention import CAUSAL, PLACE_ROWS, POSITIONS, SCALE_COLUMNS, SINCE
from tasks.programs.operators.decoding import STEP_PLACE, STORE_INTEGERS, TOKEN_AT, UNTIL
from tasks.programs.operators.elementwise import ELEMENTWISE
from tasks.programs.operators.groups import CONTRACT_GROUPS
from tasks.programs.operators.heads import JOIN_HEADS, SPLIT_HEADS, TRANSPOSE_GROUPS
from tasks.programs.operators.indexing import GATHER, GATHER_GROUPS, ONE_HOT, TRANSPOSE
from tasks.programs.operators.loops import LOOP_FLAG, LOOP_NUMBER, LOOP_ROWS, LOOP_WEIGHTS
from tasks.programs.operators.rotary import ROTARY, ROTATE
from tasks.programs.operators.row_sampling import DRAW_BY, SHARE_BY, TEMPER
from tasks.programs.operators.rows import CONTRACT, QUANTISE, ROW_EXPONENT, ROW_MAXIMUM, ROW_SUM
from tasks.programs.operators.sampling import (
    COUNT_FROM,
    DRAW,
    FIRST_ABOVE,
    RAISE_THRESHOLD,
    SHARE_OF,
    SUM_FROM,
    SUM_UP_TO,
)
from tasks.programs.operators.scalars import BIAS_CORRECTION, SAMPLE_ORDER, SCALAR
from tasks.programs.operators.schedules import LEARNING_RATE
from tasks.programs.operators.storage import LOAD, SCALE_BYTES, STORE
from tasks.programs.operators.whole import FIND, LOAD_INTEGERS, NUMBER, SCALE_ROWS

__all__ = ["OPERATORS"]

_ALL: Final[tuple[Operator, ...]] = (
    CONTRACT, QUANTISE, ROW_EXPONENT, ROW_MAXIMUM, ROW_SUM, LOAD, SCALE_BYTES, STORE, GATHER, ONE_HOT, TRANSPOSE,
    CONTRACT_GROUPS, SPLIT_HEADS, JOIN_HEADS, TRANSPOSE_GROUPS, POSITIONS, CAUSAL, SCALE_COLUMNS, PLACE_ROWS,
    SINCE,
    ROTARY, ROTATE, LOAD_INTEGERS, NUMBER, SCALE_ROWS, FIND, BIAS_CORRECTION, SAMPLE_ORDER, SCALAR, GATHER_GROUPS,
    LEARNING_RATE, STEP_PLACE, TOKEN_AT, UNTIL, STORE_INTEGERS, SUM_FROM, COUNT_FROM, SUM_UP_TO, FIRST_ABOVE,
    RAISE_THRESHOLD, SHARE_OF, DRAW, TEMPER, SHARE_BY, DRAW_BY, LOOP_FLAG, LOOP_NUMBER, LOOP_ROWS, LOOP_WEIGHTS,
    *ELEMENTWISE,
)  # fmt: skip
OPERATORS: Final[Mapping[str, Operator]] = MappingProxyType({one.name: one for one in _ALL})
