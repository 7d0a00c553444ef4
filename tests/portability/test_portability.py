"""Some settings of the machine give the same bits, and another bit is found; all settings: the nightly run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.portability.__main__ import compare, differences, model_file, prompts_of, run
from tests.portability.settings import NEEDED, ROOT, SETTINGS, needed_of

BY_NAME = {setting.name: setting for setting in SETTINGS}
QUICK = [BY_NAME[f"NumPy, {name}"] for name in ("one thread", "two threads", "kernels for Prescott")]


def wanted(prompts: int, new_tokens: int, file: str = "") -> dict[str, Any]:
    return {"model": file, "prompts": prompts_of(file, prompts), "new_tokens": new_tokens}


@pytest.mark.slow
def test_completions_and_roots_are_the_same_whatever_runs_beside_them() -> None:
    ran, wrong = compare(QUICK, wanted(prompts=8, new_tokens=6), loads=1)
    assert ran == len(QUICK) and not wrong


@pytest.mark.slow
def test_a_difference_is_found() -> None:
    found = run(QUICK[0], wanted(prompts=1, new_tokens=2))
    assert "completion_0" in found and "contract_20" in found and "finetune_6" in found
    other = {**found, "contract_20": "0" * 32, "new": ""}
    assert differences(found, other) == ["contract_20", "new"] and not differences(found, dict(found))


def test_the_locked_packages_that_the_work_needs_keep_their_hashes() -> None:
    lock = needed_of((ROOT / "requirements-dev.lock").read_text(encoding="ascii"))
    names = {line.partition("==")[0] for line in lock.splitlines() if "==" in line and not line.startswith(" ")}
    assert names == NEEDED and "plyvel" not in lock
    assert all("--hash=sha256:" in part for part in lock.split("\n\n") if part)


@pytest.mark.nightly
@pytest.mark.skipif(not model_file(), reason="make models WAS NOT RUN: COMPLETIONS OF SMOLLM2 WERE NOT COMPARED")
def test_all_settings_give_the_same_completions_with_real_weights() -> None:
    ran, wrong = compare(SETTINGS, wanted(prompts=100, new_tokens=32, file=model_file()), loads=2)
    assert ran >= 8 and not wrong
