"""Settings of an encoder that a user chooses, and that an index remembers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from secateurs import Index, SecateursError, load_encoder
from secateurs.cli.app import app
from secateurs.cluster.build import tasks
from secateurs.cluster.build.builder import build_shards
from secateurs.encoders.built_in import built_in_settings
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.storage.repair import repair

DOCUMENTS = [
    {"docno": "fish", "text": "Goldfish grow as large as their pond. " * 8},
    {"docno": "cats", "text": "Cats sleep for most of the day."},
]


def test_settings_by_name_replace_those_of_the_model_and_keep_the_others(encoder: OnnxEncoder) -> None:
    chosen = OnnxEncoder.load(settings={"query_length": 8, "overlap": 16, "document_limit": 64, "expansion": "all"})
    assert chosen.settings == replace(encoder.settings, query_length=8, overlap=16, document_limit=64)
    assert len(chosen.encode_query("goldfish")) == 8
    assert chosen.merge == encoder.merge
    assert chosen.spec["fingerprint"] != encoder.spec["fingerprint"]
    assert chosen.spec["relevance"] == encoder.spec["relevance"]


def test_the_spec_has_the_settings_that_were_given_and_no_others(encoder: OnnxEncoder) -> None:
    assert "settings" not in load_encoder().spec
    assert "settings" not in load_encoder(settings={}).spec
    same = load_encoder(settings={"overlap": None, "relevance": (0.5, 10.0)})
    assert same.spec["settings"] == {"overlap": None, "relevance": [0.5, 10.0]}
    assert same.spec["fingerprint"] == encoder.spec["fingerprint"]
    assert json.loads(json.dumps(dict(same.spec))) == same.spec


def test_settings_of_a_folder_are_replaced_by_those_that_are_given(tmp_path: Path) -> None:
    for name in ("model.onnx", "tokenizer.json"):
        shutil.copy(wheel_folder() / name, tmp_path / name)
    (tmp_path / "secateurs.json").write_text(json.dumps({"query_length": 20, "projection": None}))
    chosen = load_encoder(str(tmp_path), settings={"query_length": 9})
    assert chosen.encode_query("a").embeddings.shape == (9, 384)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query_size": 1}, r"no setting 'query_size'\. Known settings: query_length, "),
        ({"document_limit": "long"}, r"document_limit must be a whole number.*Known settings: "),
        ({"document_limit": 513}, "document_limit is at most 512"),
        ({"overlap": 297}, "overlap is a whole number from 0 to 296, or null, not 297"),
        ({"overlap": -1}, "overlap is a whole number"),
        ({"overlap": 10.0}, "overlap is a whole number"),
        ({"overlap": True}, "overlap is a whole number"),
        ({"overlap": 0, "document_limit": 3}, "overlap is a whole number from 0 to -1"),
        ({"skip": 7}, "skip is a list of tokens"),
        ({"attend_to_masks": "no", "expansion": "all"}, "attend_to_masks is true or false"),
        ({"attend_to_masks": True}, "goes with expansion"),
        ({"expansion": -1}, "expansion is a whole number"),
        ({"projection": None}, "the files of"),
        ({"projection": 3}, "projection is the name of a file"),
        ({"mask": "[NOTHING]"}, r"no token '\[NOTHING\]'"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error_that_says_why(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SecateursError, match=message):
        load_encoder(settings=settings)


def test_a_sentence_transformers_model_takes_no_settings() -> None:
    with pytest.raises(UsageError, match="document_limit: a sentence-transformers model has its own settings"):
        load_encoder("name", "st", settings={"document_limit": 20})


@pytest.fixture
def chosen() -> OnnxEncoder:
    return OnnxEncoder.load(settings={"document_limit": 20, "overlap": 4})


def test_an_index_loads_its_encoder_with_the_settings_it_was_built_with(tmp_path: Path, chosen: OnnxEncoder) -> None:
    built = Index.build(tmp_path / "i.sec", DOCUMENTS, encoder=chosen)
    assert built.info()["cut_documents"] == 0
    opened = Index(tmp_path / "i.sec")
    assert opened.info()["encoder"]["settings"] == {"document_limit": 20, "overlap": 4}
    assert opened.search("how large do goldfish grow")[0].docno == "fish"
    assert opened.encoder.spec == chosen.spec
    opened.add([{"docno": "again", "text": DOCUMENTS[0]["text"]}])
    assert np.array_equal(*(opened.similarities(chosen.encode_query("pond"), d)[0] for d in ("fish", "again")))


def test_a_repair_encodes_with_the_settings_of_the_index(tmp_path: Path, chosen: OnnxEncoder) -> None:
    index = Index.build(tmp_path / "i.sec", DOCUMENTS, encoder=chosen)
    before = index.similarities(chosen.encode_query("pond"), "fish")[0]
    (damaged,) = (tmp_path / "i.sec").glob("segments/*/embeddings.npy")
    damaged.write_bytes(damaged.read_bytes()[:-4000] + bytes(4000))
    repair(tmp_path / "i.sec")
    after = Index(tmp_path / "i.sec").similarities(chosen.encode_query("pond"), "fish")[0]
    assert np.allclose(before, after, atol=0.02)


def test_a_task_of_a_build_in_shards_loads_the_encoder_with_its_settings(chosen: OnnxEncoder) -> None:
    assert tasks.encoder_to_send(None, chosen, by_name=False) is None  # type: ignore[arg-type]
    loaded = tasks.load_recorded_encoder(json.loads(json.dumps(dict(chosen.spec))))
    assert isinstance(loaded, OnnxEncoder)
    assert loaded.settings == chosen.settings


def test_settings_for_shards_belong_to_a_model_that_is_named(tmp_path: Path, chosen: OnnxEncoder) -> None:
    with pytest.raises(UsageError, match="encoder_settings belong to a model that is named"):
        build_shards(tmp_path / "big.sec", [], shards=1, encoder=chosen, encoder_settings={"overlap": 3})


def test_the_command_line_takes_settings_and_shows_them(tmp_path: Path) -> None:
    corpus, path = tmp_path / "corpus.jsonl", str(tmp_path / "i.sec")
    corpus.write_text("\n".join(map(json.dumps, DOCUMENTS)))
    chosen = [
        "--setting",
        "overlap=4",
        "--setting",
        "document_limit=20",
        "--setting",
        "skip=.!",
        "--setting",
        "merge=null",
    ]
    assert CliRunner().invoke(app, ["index", str(corpus), path, *chosen]).exit_code == 0
    index = Index(path)
    assert index.encoder_spec["settings"] == {"overlap": 4, "document_limit": 20, "skip": ".!", "merge": None}
    assert index.info()["merge"] is None
    assert isinstance(index.encoder, OnnxEncoder)
    expected = built_in_settings("colbert-small", is_our_layer=True)
    assert index.encoder.settings == replace(expected, overlap=4, document_limit=20, skip=".!", merge=None)
    shown = CliRunner().invoke(app, ["info", path]).output
    assert 'settings overlap=4 document_limit=20 skip=".!" merge=null' in shown


@pytest.mark.parametrize("wrong", ["overlap", "=3", "overlap:3"])
def test_a_setting_without_a_name_or_a_value_is_wrong_usage(tmp_path: Path, wrong: str) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps(DOCUMENTS[0]))
    result = CliRunner().invoke(app, ["index", str(corpus), str(tmp_path / "i.sec"), "--setting", wrong])
    assert isinstance(result.exception, UsageError)
    assert "--setting takes NAME=VALUE" in str(result.exception)
