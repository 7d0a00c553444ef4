from __future__ import annotations

import io
from typing import Any

import pytest
import structlog

from node.home.options import LogOptions
from node.telemetry.logs import configure_logs


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_strangers_text_stays_in_its_line(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of peers and relays end up in logs; none may look like a line of ours or steer the terminal."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    before = structlog.get_config()
    try:
        configure_logs(LogOptions(format=form))
        forged = "x\n2026-01-01 [info] final\r\x1b[2J\u202e\u2028\x9b"
        structlog.get_logger("test").warning("refused", reason=forged, peer=b"\1\2", name="für")
    finally:
        structlog.configure(**before)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\r" not in text and "\x1b[2J" not in text and "\u202e" not in text and "\x9b" not in text
    assert "\u2028" not in text
    assert "0x0102" in text and ("für" in text or "f\\u00fcr" in text)
