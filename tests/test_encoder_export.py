"""Folders as pylate-onnx-export makes them: `onnx_config.json` beside the model, any tokenizer."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_onnx import states, write_model
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from secateurs import Index, SecateursError, TokenKind
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_settings import OnnxSettings

CLS, MARKER, SEP, MASK, W, PUNCT = (
    TokenKind.CLS,
    TokenKind.MARKER,
    TokenKind.SEP,
    TokenKind.MASK,
    TokenKind.WORD,
    TokenKind.PUNCTUATION,
)
DIM = 8
TEXTS = ["Goldfish grow in ponds, and cats sleep.", "the cats and the goldfish", "Do goldfish grow?", "ponds; grow! ÄÖ"]
WORDS = ["gold", "##fish", "grow", "in", "pond", "##s", "and", "cats", "sleep", "do", "the", ",", ".", "?", "!", ";"]


def bert() -> Tokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = Tokenizer(models.WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(names[:5])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def byte_level(framed: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 10, trainer)
    if framed:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


TOKENIZERS = {"bert": bert, "byte-level": byte_level, "unframed": lambda: byte_level(framed=False)}


def export(folder: Path, kind: str, **changes: Any) -> tuple[Tokenizer, np.ndarray, dict[str, Any]]:
    """A folder of that layout; its tokenizer, its table, and its onnx_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = TOKENIZERS[kind]()
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), DIM)).astype(np.float32)
    write_model(folder / "model.onnx", table, token_types=kind == "bert")
    config = {
        "model_type": "ColBERT",
        "uses_token_type_ids": kind == "bert",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 16,
        "document_length": 12,
        "do_query_expansion": True,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [",", ".", "?", "and", "no such token"],
        "embedding_dim": DIM,
        "mask_token_id": 4,
        "pad_token_id": 4,
        "query_prefix_id": tokenizer.token_to_id("[Q] "),
        "document_prefix_id": tokenizer.token_to_id("[D] "),
        "do_lower_case": False,
    } | changes
    (folder / "onnx_config.json").write_text(json.dumps(config))
    return tokenizer, table, config


def published(tokenizer: Tokenizer, config: dict[str, Any], text: str, is_query: bool) -> tuple[list[int], list[int]]:
    """The token ids and the attention mask of the tool that reads such folders, a step at a time.

    That tool attends to the MASKs of every model; PyLate, which trains the models, only if the configuration says so.
    """
    name, length = ("query", config["query_length"]) if is_query else ("document", config["document_length"])
    text = text.strip()
    ids = tokenizer.encode(text.lower() if config["do_lower_case"] else text).ids
    if len(ids) > length - 1:
        ids = ids[: length - 2] + ids[-1:]
    ids = [ids[0], config[f"{name}_prefix_id"], *ids[1:]]
    attended = [1] * len(ids)
    if is_query and config["do_query_expansion"]:
        masks = length - len(ids)
        ids += [config["mask_token_id"]] * masks
        attended += [int(config["attend_to_expansion_tokens"])] * masks
    return ids, attended


@pytest.mark.parametrize("kind", ["bert", "byte-level"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attend_to_expansion_tokens": True, "do_lower_case": True},
        {"do_query_expansion": False, "query_length": 7, "skiplist_words": []},
    ],
)
def test_positions_and_embeddings_are_those_of_the_tools_that_publish_such_folders(
    tmp_path_factory: pytest.TempPathFactory, kind: str, changes: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("export")
    tokenizer, table, config = export(folder, kind, **changes)
    encoder = OnnxEncoder.load(str(folder))
    skipped = {tokenizer.token_to_id(word) for word in config["skiplist_words"]}

    @given(st.one_of(st.sampled_from(TEXTS), st.text(alphabet="goldfish CATS ,.?\n\tÄİß🐟", max_size=40)))
    def agree(text: str) -> None:
        ids, attended = published(tokenizer, config, text, is_query=True)
        query = encoder.encode_query(text)
        assert query.token_ids.tolist() == ids
        np.testing.assert_allclose(query.embeddings, states(table, np.array(ids), np.array(attended)), atol=1e-5)
        ids, attended = published(tokenizer, config, text, is_query=False)
        stored = [number for number, token in enumerate(ids) if token not in skipped]
        document = encoder.encode_document(text)
        assert document.token_ids.tolist() == [ids[number] for number in stored]
        expected = states(table, np.array(ids), np.array(attended))[stored]
        np.testing.assert_allclose(document.embeddings, expected, atol=1e-5)
        assert encoder.document_spans(text)[0].tolist() == document.token_ids.tolist()

    agree()


def test_kinds_of_a_folder_with_berts_tokenizer(tmp_path: Path) -> None:
    export(tmp_path, "bert", query_length=10)
    encoder = OnnxEncoder.load(str(tmp_path))
    query = encoder.encode_query("Goldfish and cats?")
    shown = [encoder.token_text(int(token)) for token in query.token_ids]
    assert shown[1].lower() == "[q] "  # lower case in some versions of the library, so its id is what counts
    assert [shown[0], *shown[2:]] == ["[CLS]", "gold", "##fish", "and", "cats", "?", "[SEP]", "[MASK]", "[MASK]"]
    assert query.token_kinds.tolist() == [CLS, MARKER, W, W, PUNCT, W, PUNCT, SEP, MASK, MASK]
    document = encoder.encode_document("Goldfish and cats!")
    assert [encoder.token_text(int(token)) for token in document.token_ids[2:-1]] == ["gold", "##fish", "cats", "!"]
    assert document.token_kinds.tolist() == [CLS, MARKER, W, W, W, W, SEP]
    assert encoder.dim == DIM


def test_kinds_of_a_folder_with_a_byte_level_tokenizer(tmp_path: Path) -> None:
    export(tmp_path, "byte-level", do_query_expansion=False)
    encoder = OnnxEncoder.load(str(tmp_path))
    query = encoder.encode_query("goldfish grow?")
    shown = [encoder.token_text(int(token)) for token in query.token_ids]
    assert shown[:2] == ["<s>", "[Q] "]
    assert "".join(shown[2:-1]) == "goldfishĠgrow?"
    assert shown[-1] == "</s>"
    assert query.token_kinds.tolist() == [CLS, MARKER] + [W] * (len(query) - 4) + [PUNCT, SEP]


def test_the_name_of_a_special_token_in_a_text_is_text(tmp_path: Path) -> None:
    export(tmp_path, "byte-level")
    document = OnnxEncoder.load(str(tmp_path)).encode_document("<s> <mask>")
    assert document.token_ids.tolist().count(0) == 1  # <s>, at the start
    assert 4 not in document.token_ids  # <mask>


def test_a_text_without_special_tokens_around_it_has_its_marker_second_as_in_training(tmp_path: Path) -> None:
    export(tmp_path, "unframed", document_length=4)
    encoder = OnnxEncoder.load(str(tmp_path))
    document = encoder.encode_document("cats grow in ponds")
    assert document.token_kinds.tolist() == [W, MARKER, W, W]
    assert document.cut > 0
    first, second = encoder.document_spans("  cats grow in ponds")[1][:2]
    assert first is not None
    assert first[0] == 2
    assert second is None
    assert encoder.encode_document("").token_kinds.tolist() == [MARKER]


def test_spans_are_those_of_the_text_before_it_was_stripped_and_lowered(tmp_path: Path) -> None:
    export(tmp_path, "byte-level", do_lower_case=True, skiplist_words=[], document_length=40)
    encoder = OnnxEncoder.load(str(tmp_path))
    text = "\n İİ CATS grow "
    ids, spans = encoder.document_spans(text)
    shown = {encoder.token_text(int(token)): text[slice(*span)] for token, span in zip(ids, spans, strict=True) if span}
    assert shown["Ġcats"].strip() == "CATS"
    assert shown["Ġgrow"].strip() == "grow"


def test_the_token_that_pads_is_found_if_the_export_does_not_know_it(tmp_path: Path) -> None:
    tokenizer, _, _ = export(tmp_path, "byte-level", mask_token_id=103)  # what is written for "there is none"
    assert OnnxEncoder.load(str(tmp_path)).settings.mask == "<mask>"
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<mask>"]
    content["model"]["vocab"]["other"] = content["model"]["vocab"].pop("<mask>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "onnx_config.json").write_text(json.dumps({"mask_token_id": 103, "pad_token_id": 2}))
    assert OnnxEncoder.load(str(tmp_path)).settings.mask == 2


def test_fields_that_an_export_leaves_out_have_its_defaults(tmp_path: Path) -> None:
    export(tmp_path, "bert")
    (tmp_path / "onnx_config.json").write_text("{}")
    assert OnnxEncoder.load(str(tmp_path)).settings == OnnxSettings(
        query_length=48, query_limit=48, query_marker="[Q] ", document_marker="[D] ", skip=(), projection=None
    )


def test_an_empty_prefix_is_no_marker(tmp_path: Path) -> None:
    export(tmp_path, "bert", document_prefix="", document_prefix_id=None)
    document = OnnxEncoder.load(str(tmp_path)).encode_document("cats grow")
    assert document.token_kinds.tolist() == [CLS, W, W, SEP]


def test_our_settings_come_before_those_of_the_export(tmp_path: Path) -> None:
    _, _, config = export(tmp_path, "bert")
    (tmp_path / "secateurs.json").write_text(json.dumps({"query_limit": 64, "skip": ["cats"]}))
    encoder = OnnxEncoder.load(str(tmp_path))
    assert len(encoder.encode_query("grow " * 100)) == 64
    assert encoder.encode_document("cats, grow").token_kinds.tolist() == [CLS, MARKER, W, W, SEP]
    assert encoder.settings.query_marker == config["query_prefix_id"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_prefix_id": 9999}, 'has no token 9999: name the right one as "query_marker"'),
        ({"document_length": "long"}, r"onnx_config\.json: document_limit must be a whole number"),
        ({"document_prefix_id": -1}, r"onnx_config\.json: document_marker is a token, its id, or null, not -1"),
        ({"skiplist_words": [1]}, r"onnx_config\.json: skip is a list of tokens"),
        ({"query_prefix": "[question]", "query_prefix_id": None}, r"has no token '\[question\]'"),
    ],
)
def test_a_wrong_export_says_what_is_wrong(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    export(tmp_path, "bert", **changes)
    with pytest.raises(SecateursError, match=message):
        OnnxEncoder.load(str(tmp_path))


def test_the_int8_model_is_used_if_it_is_named_or_the_only_one(tmp_path: Path) -> None:
    _, table, _ = export(tmp_path, "bert")
    write_model(tmp_path / "model_int8.onnx", table[::-1], token_types=True)
    full = OnnxEncoder.load(str(tmp_path))
    (tmp_path / "secateurs.json").write_text('{"model_file": "model_int8.onnx"}')
    named = OnnxEncoder.load(str(tmp_path))
    (tmp_path / "secateurs.json").unlink()
    (tmp_path / "model.onnx").unlink()
    only = OnnxEncoder.load(str(tmp_path))
    embeddings = [encoder.encode_document("cats grow").embeddings for encoder in (full, named, only)]
    assert not np.allclose(embeddings[0], embeddings[1])
    assert np.array_equal(embeddings[1], embeddings[2])
    assert full.spec["fingerprint"] != named.spec["fingerprint"] == only.spec["fingerprint"]


def test_the_fingerprint_covers_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    _, table, _ = export(tmp_path, "bert")
    inside = OnnxEncoder.load(str(tmp_path)).encode_document("cats grow").embeddings
    write_model(tmp_path / "model.onnx", table, token_types=True, external=True)
    beside = OnnxEncoder.load(str(tmp_path))
    assert np.array_equal(beside.encode_document("cats grow").embeddings, inside)
    (tmp_path / "model.onnx.data").write_bytes(table[::-1].tobytes())
    assert OnnxEncoder.load(str(tmp_path)).spec["fingerprint"] != beside.spec["fingerprint"]


def test_an_index_of_such_a_folder_finds_a_document_by_its_words(tmp_path: Path) -> None:
    export(tmp_path / "model", "byte-level")
    texts = {"fish": "goldfish grow in ponds", "cats": "the cats sleep"}
    documents = [{"docno": docno, "text": text} for docno, text in texts.items()]
    index = Index.build(tmp_path / "i.sec", documents, encoder=OnnxEncoder.load(str(tmp_path / "model")))
    assert index.search("the cats sleep")[0].docno == "cats"
    assert index.search("goldfish grow in ponds")[0].docno == "fish"


@pytest.mark.slow
def test_an_index_records_the_commit_of_such_a_model_and_loads_it_again(tmp_path: Path) -> None:
    export(tmp_path / "model", "byte-level")
    repository = tmp_path / "hub" / "models--author--tiny-export"
    (repository / "refs").mkdir(parents=True)

    def run(code: str, commit: str) -> list[str]:
        (repository / "refs" / "main").write_text(commit)
        environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
        return subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).split()

    shutil.copytree(tmp_path / "model", repository / "snapshots" / ("a" * 40))
    path, documents = str(tmp_path / "i.sec"), [{"docno": "fish", "text": "goldfish grow"}]
    build = f"from secateurs import Index; i = Index.build({path!r}, {documents}, encoder='author/tiny-export')"
    show = "print(i.encoder.spec['revision'], i.search('goldfish')[0].score)"
    before = run(f"{build}; {show}", "a" * 40)
    assert before[0] == "a" * 40
    export(tmp_path / "model", "bert")
    shutil.copytree(tmp_path / "model", repository / "snapshots" / ("b" * 40))
    assert run(f"from secateurs import Index; i = Index({path!r}); {show}", "b" * 40) == before


class FakeHub:
    """The client of a hub where one repository holds these files; it notes what it fetches."""

    constants = SimpleNamespace(HF_HUB_OFFLINE=False)

    def __init__(self, files: dict[str, str], cache: Path) -> None:
        self.files = files
        self.folder = cache / ("c" * 40)

    def snapshot_download(
        self, name: str, revision: str | None, allow_patterns: list[str], local_files_only: bool
    ) -> str:
        from fnmatch import fnmatch

        assert not local_files_only
        assert revision in (None, "c" * 40)
        for path, content in self.files.items():
            if any(fnmatch(path, pattern) for pattern in allow_patterns):
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / path).write_text(content)
        return str(self.folder)

    def fetched(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("held", "model_file", "fetched"),
    [
        (["model.onnx", "model_int8.onnx", "onnx_config.json", "model.safetensors"], None, ["model.onnx"]),
        (["model.onnx", "model_int8.onnx", "onnx_config.json"], "model_int8.onnx", ["model_int8.onnx"]),
        (["model_int8.onnx", "onnx_config.json"], None, ["model_int8.onnx"]),
        (["model.onnx", "model.onnx.data", "onnx_config.json"], None, ["model.onnx", "model.onnx.data"]),
        (["onnx/model.onnx", "1_Dense/model.safetensors"], None, ["onnx/model.onnx", "1_Dense/model.safetensors"]),
    ],
)
def test_of_a_hub_model_only_the_files_that_are_used_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: list[str], model_file: str | None, fetched: list[str]
) -> None:
    from secateurs.encoders import model_folder

    hub = FakeHub(dict.fromkeys(["tokenizer.json", *held], "{}"), tmp_path)
    monkeypatch.setattr(model_folder, "require", lambda name, extra: hub)
    assert model_folder.hub_folder("author/model", None, model_file) == (hub.folder, "c" * 40)
    assert {path for path in hub.fetched() if not path.endswith(".json")} == set(fetched)
