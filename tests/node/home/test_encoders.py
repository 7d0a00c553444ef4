"""Encoders of a home: from a disk and from a Hub, with what says how vectors are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.home.models import add_model, find_model
from node.home.paths import Home
from tasks.models.errors import ModelUnsupported
from tasks.models.opening import POOLING, open_embedder
from tests.node.home.hub_server import Hub, serving
from tests.tasks.models.test_encoders import write_encoder
from tests.tasks.passed import ENCODER

pytest.importorskip("huggingface_hub", reason="THE EXTRA models IS NOT INSTALLED")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An encoder whose vectors are the first token's, as they are."""
    made = tmp_path / "made"
    (made / POOLING).parent.mkdir(parents=True)
    (made / POOLING).write_text('{"pooling_mode_cls_token": true}')
    (made / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer"}]')
    (made / "1_Pooling/weights.bin").write_bytes(b"pickle")
    return write_encoder(made)


def check(home: Home) -> None:
    path = find_model(home, "words")
    assert path is not None
    with open_embedder(path) as opened:
        assert (opened.shape, opened.pooling, opened.normalised) == (ENCODER, "cls", False)
    assert not (path / "1_Pooling/weights.bin").exists()


def test_an_encoder_of_a_disk_keeps_what_a_vector_is(folder: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    record = add_model(home, str(folder), "words")
    assert (record.layers, record.width, record.vocabulary, record.context) == (2, 8, 40, 16)
    assert POOLING in [file.name for file in record.files] and record.notes == ()
    check(home)


def test_an_encoder_of_a_hub_is_fetched_with_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    with serving(Hub(files, repository="org/words")) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        home = Home(tmp_path / "home")
        assert add_model(home, "hf:org/words", "words").revision
    check(home)


def test_a_model_of_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    write_encoder(tmp_path / "made", model_type="mamba")
    with pytest.raises(ModelUnsupported, match="mamba"):
        add_model(Home(tmp_path / "home"), str(tmp_path / "made"), "words")
