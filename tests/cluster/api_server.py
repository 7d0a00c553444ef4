"""``dekube api`` as its user runs it: a process beside a node of a test network, and a tiny model with texts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tasks.programs.llama_shape import LlamaShape
from tests.cluster.network import wait_for
from tests.tasks.models.checkpoints import write_folder

__all__ = ["MAX_PRICE", "SHAPE", "WORDS", "ApiServer", "batch_lines", "rows_of", "write_model"]

CONTROL: Final = ("<|im_start|>", "<|im_end|>")
BYTES: Final = 256
SHAPE: Final = LlamaShape(
    vocabulary=BYTES + 8, width=8, layers=1, heads=2, key_heads=1, head_width=4, hidden=12, context=64,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip
MAX_PRICE: Final = 1_000
"""DKB for 10^12 work units: jobs this small are worth their checks then."""
WORDS: Final = ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op")


def write_model(folder: Path) -> Path:
    """Write a tiny seeded Llama whose tokens are bytes and the turns of a chat."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir()
    write_folder(folder, SHAPE, eos_token_id=BYTES + 1)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROL])
    (folder / "tokenizer.json").write_text(made.to_str())
    return folder


def rows_of(words: tuple[str, ...] = WORDS) -> bytes:
    """Return rows for fine-tuning: each word is answered with itself backwards."""
    turns = [
        {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word[::-1]}]}
        for word in words
    ]
    return "\n".join(map(json.dumps, turns)).encode()


def batch_lines(model: str, words: tuple[str, ...] = WORDS, **body: Any) -> list[dict[str, Any]]:
    """Return a request for each word."""
    return [
        {
            "custom_id": word, "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": model, "messages": [{"role": "user", "content": word}], "max_tokens": 4, **body},
        }
        for word in words
    ]  # fmt: skip


class ApiServer:
    """The process, and where it is."""

    def __init__(self, home: Path, budget: str, model: Path | None = None) -> None:
        """Without ``model`` the models of the home are served."""
        self.home = home
        named = [] if model is None else ["--model", f"tiny={model}"]
        self._ready = home.parent / f"{home.name}-api.json"
        self._command = [
            sys.executable, "-m", "node", "api", "run", "--home", home, *named, "--budget", budget,
            "--max-price", MAX_PRICE, "--port", 0, "--ready-file", self._ready,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again too, and wait until it listens."""
        self._ready.unlink(missing_ok=True)
        self._process = subprocess.Popen([*map(str, self._command)])
        wait_for(self._listens, "the server of jobs listens")

    def _listens(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "it has ended"
        return self._ready.exists() and self._ready.read_text() != ""

    @property
    def base_url(self) -> str:
        """What a client is told."""
        return f"http://127.0.0.1:{json.loads(self._ready.read_text())['port']}/v1"

    @property
    def key(self) -> str:
        """The same."""
        return (self.home / "api" / "key").read_text().strip()

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it. Nothing may be left of it but its folder."""
        if self._process is not None:
            self._process.send_signal(number)
            status = self._process.wait(30)
            self._process = None
            assert status in (0, -number), status
