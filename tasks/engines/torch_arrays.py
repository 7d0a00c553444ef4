"""torch's spelling of the array operations, for CPU and CUDA (extra ``ml``); the same bits as NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tasks.engines.arrays import Array
from tasks.engines.errors import EngineMissing

__all__ = ["TorchArrays", "has_gpu"]

_EXPONENT_SHIFT: Final = 52
_EXPONENT_MASK: Final = 0x7FF
_EXPONENT_BIAS: Final = 1023


def has_gpu() -> bool:
    """Tell whether torch is installed and finds a CUDA device."""
    if not (Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()):
        return False  # no driver: spares a machine without a card the seconds that importing torch takes
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


class TorchArrays:
    """Float64 tensors on one device; eager mode only, for a compiler would fuse multiply and add."""

    def __init__(self, device: str = "cpu") -> None:
        try:
            import torch
        except ImportError as error:
            raise EngineMissing("torch is not installed: make ml, or pip install dekube-node[ml]") from error
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise EngineMissing("torch sees no CUDA device")
        torch.set_grad_enabled(False)
        torch.set_flush_denormal(False)
        self._torch: Any = torch
        self._device: Any = torch.device(device)
        self.device = f"{device}:torch"

    def load(self, values: np.ndarray) -> Array:
        """See Arrays."""
        return self._torch.tensor(np.asarray(values, dtype=np.float64), device=self._device)

    def load_bytes(self, values: np.ndarray) -> Array:
        """See Arrays."""
        return self._torch.tensor(np.asarray(values, dtype=np.uint8), device=self._device)

    def store(self, values: Array) -> np.ndarray:
        """See Arrays."""
        return np.array(values.cpu().numpy(), dtype=np.float64)

    def from_content(self, content: bytes, code: str, rows: int, columns: int) -> Array:
        """See Arrays."""
        values = np.frombuffer(content, dtype=f"<{code}").reshape(rows, columns)
        if code == "i2":
            return self._torch.tensor(values.astype(np.int16), device=self._device)
        return self.load_bytes(values) if code == "u1" else self.load(values)

    def content(self, values: Array, code: str) -> bytes:
        """See Arrays."""
        return values.cpu().numpy().astype(f"<{code}", copy=False).tobytes()  # type: ignore[no-any-return]

    def constant(self, value: float) -> Array:
        """See Arrays."""
        return self._torch.full((1, 1), value, dtype=self._torch.float64, device=self._device)

    def counting(self, count: int) -> Array:
        """See Arrays."""
        return self._torch.arange(count, dtype=self._torch.float64, device=self._device).reshape(1, count)

    def matmul(self, left: Array, right: Array) -> Array:
        """See Arrays."""
        return self._torch.matmul(left, right)

    def rint(self, values: Array) -> Array:
        """See Arrays."""
        return self._torch.round(values)

    def sqrt(self, values: Array) -> Array:
        """See Arrays. On the CPU by NumPy: torch takes a vector library's root, which is not rounded right."""
        if self._device.type == "cpu":
            return self._torch.from_numpy(np.sqrt(values.numpy()))
        return self._torch.sqrt(values)

    def abs(self, values: Array) -> Array:
        """See Arrays."""
        return self._torch.abs(values)

    def where(self, condition: Array, yes: Array | float, no: Array | float) -> Array:
        """See Arrays."""
        torch = self._torch
        if not torch.is_tensor(yes):  # two plain numbers would become float32
            yes = torch.tensor(yes, dtype=torch.float64, device=self._device)
        if not torch.is_tensor(no):
            no = torch.tensor(no, dtype=torch.float64, device=self._device)
        return torch.where(condition, yes, no)

    def clip(self, values: Array, low: float, high: float) -> Array:
        """See Arrays."""
        return self._torch.clamp(values, low, high)

    def amax(self, values: Array, axis: int) -> Array:
        """See Arrays."""
        return self._torch.amax(values, dim=axis, keepdim=True)

    def sum_integers(self, values: Array, axis: int) -> Array:
        """See Arrays."""
        return self._torch.sum(values, dim=axis, keepdim=True)

    def running_sums(self, values: Array) -> Array:
        """See Arrays."""
        return self._torch.cumsum(values, dim=1)

    def exponent(self, values: Array) -> Array:
        """See Arrays."""
        return ((values.view(self._torch.int64) >> _EXPONENT_SHIFT) & _EXPONENT_MASK) - _EXPONENT_BIAS

    def fraction(self, values: Array) -> Array:
        """See Arrays."""
        mantissa = values.view(self._torch.int64) & ((1 << _EXPONENT_SHIFT) - 1)
        return (mantissa | (_EXPONENT_BIAS << _EXPONENT_SHIFT)).view(self._torch.float64)

    def power_of_two(self, exponents: Array) -> Array:
        """See Arrays."""
        return ((exponents + _EXPONENT_BIAS) << _EXPONENT_SHIFT).view(self._torch.float64)

    def to_integers(self, values: Array) -> Array:
        """See Arrays."""
        return values.to(self._torch.int64)

    def to_doubles(self, values: Array) -> Array:
        """See Arrays."""
        return values.to(self._torch.float64)

    def narrow(self, values: Array) -> Array:
        """See Arrays."""
        return values if values.dtype == self._torch.int16 else self.to_doubles(values)

    def take_rows(self, values: Array, rows: Array) -> Array:
        """See Arrays."""
        return values[rows[:, 0]]

    def stack(self, parts: Sequence[Array], axis: int) -> Array:
        """See Arrays."""
        return self._torch.stack(tuple(parts), axis)

    def with_rows(self, values: Array, rows: Array, starts: Sequence[int]) -> Array:
        """See Arrays."""
        result = values.clone()
        for sequence, start in enumerate(starts):
            result[sequence, :, start : start + rows.shape[2]] = rows[sequence]
        return result

    def round_to_single(self, values: Array, smallest: float) -> Array:
        """See Arrays."""
        torch = self._torch
        rounded = values.to(torch.float32)
        kept = torch.where(torch.abs(rounded) < smallest, torch.zeros_like(rounded), rounded)
        return kept.to(torch.float64)

    def all_below(self, values: Array, limit: float) -> bool:
        """See Arrays."""
        return bool((self._torch.abs(values) < limit).all())
