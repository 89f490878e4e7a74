"""Names of catalogue models: spelling, short forms, near misses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loadmaster.errors import AmbiguousNameError, OfflineError, UnknownNameError, UsageError
from loadmaster.models import read_model
from loadmaster.models.readers import catalogue


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("META-LLAMA/llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B"),
        ("gpt2", "openai-community/gpt2"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.1"),
        ("  phi-4 ", "microsoft/phi-4"),
    ],
)
def test_spelling(asked, found):
    assert read_model(asked).name == found


def test_every_name_finds_itself():
    for name in catalogue.names():
        assert catalogue.find(name) == name
        assert catalogue.find(name.lower()) == name
        assert catalogue.find(name.partition("/")[2]) == name


def test_a_look_up_reads_one_file(monkeypatch):
    from loadmaster.models.readers import config_json

    read = []
    plain = config_json.load_text
    monkeypatch.setattr(config_json, "load_text", lambda path, limit: read.append(path) or plain(path, limit))
    catalogue.read("gpt2")
    assert [path.name for path in read] == ["openai-community__gpt2.json"]


def test_a_name_two_organisations_have(monkeypatch):
    monkeypatch.setattr(catalogue, "names", lambda: ["a/same", "b/same"])
    with pytest.raises(AmbiguousNameError, match="a/same, b/same"):
        catalogue.find("same")


@pytest.mark.parametrize("asked", ["Llama-3.1-9B", "qwen2.5-8b", "gpt-2", "mixtral 8x7b"])
def test_a_near_miss_is_offered(asked):
    with pytest.raises(UnknownNameError) as caught:
        read_model(asked)
    assert caught.value.near
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("llava", "llava-hf/llava-1.5-7b-hf"),
        ("Qwen3-Next-80B", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-hf"),
        ("llama-3-8b-instruct", "meta-llama/Meta-Llama-3-8B"),
        ("google/gemma-2-9b-it", "google/gemma-2-9b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-Instruct-v0.3"),
        ("deepsek v3", "deepseek-ai/DeepSeek-V3"),
        ("mistral 7b", "mistralai/Mistral-7B-v0.1"),
        ("gpt 2", "openai-community/gpt2"),
    ],
)
def test_the_same_series_and_size_are_offered_first(asked, first):
    assert catalogue.near(asked)[0] == first


def test_a_variant_is_said_to_have_its_bases_shapes(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for asked in ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"):
        with pytest.raises((UnknownNameError, OfflineError)) as caught:
            read_model(asked)
        assert "instruct and chat variants have the same shapes as their base model" in caught.value.hint
    with pytest.raises(UnknownNameError) as caught:
        read_model("Llama-3.1-9B")
    assert "variants" not in caught.value.hint


def test_a_wild_name_is_an_error_with_a_way_on():
    with pytest.raises(UnknownNameError) as caught:
        read_model("no such model at all")
    assert "models list" in caught.value.hint


@pytest.mark.parametrize("asked", ["", "   ", None])
def test_no_name(asked):
    with pytest.raises(UsageError, match="no model given"):
        read_model(asked)


def test_a_name_and_a_size():
    with pytest.raises(UsageError, match="not both"):
        read_model("gpt2", params="7B")


def test_a_folder_of_that_name_without_a_model(monkeypatch, tmp_path):
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_model("gpt2").name == "openai-community/gpt2"
    with pytest.raises(UsageError, match="holds no config"):
        read_model("./gpt2")


def test_the_hub_is_not_asked_when_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(OfflineError) as caught:
        read_model("Qwen/Qwen2.5-8B")
    assert "Qwen/Qwen2.5-7B" in caught.value.hint
    assert "--params" in caught.value.hint


def test_an_unreachable_hub_fails_in_one_sentence(monkeypatch, tmp_path):
    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    pytest.importorskip("huggingface_hub")
    with pytest.raises(OfflineError, match=r"127\.0\.0\.1 can't be reached"):
        read_model("someone/something")


def test_the_hubs_cache_is_read_without_the_network(monkeypatch, tmp_path):
    root = tmp_path / "hub" / "models--someone--mine"
    snapshot = root / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("a" * 40)
    source = catalogue.FOLDER / "openai-community__gpt2.json"
    (snapshot / "config.json").write_bytes(source.read_bytes())
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    spec = read_model("someone/mine")
    assert spec.name == "someone/mine"
    assert spec.model_type == "gpt2"


def test_reading_a_catalogue_model_is_light():
    code = (
        "import sys; from loadmaster.models import read_model; from loadmaster.models.parameters import parameter_count;"
        "parameter_count(read_model('gpt2'));"
        "heavy = {'numpy', 'torch', 'transformers', 'rich', 'huggingface_hub', 'yaml'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
