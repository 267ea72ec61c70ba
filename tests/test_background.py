"""How often tokens occur in general text: counted, kept in a file, and kept by every index that was built with it."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import build_random, random_documents, random_text
from test_repair import flip
from test_sharded import make_shards

from secateurs import Background, Document, EncodedText, Frequencies, Index, SecateursError, ShardedIndex
from secateurs.background import PACKAGED, choose_background
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.vocabulary import fingerprint
from secateurs.errors import DamagedIndexError, UsageError
from secateurs.importance import order_positions
from secateurs.storage.repair import repair


def table(name: str = "mine", vocabulary: str = "0" * 16) -> Background:
    """Of the tokens 0 to 29, whose frequencies have nothing to do with those in random_documents."""
    counts = np.random.default_rng(7).permutation(30) ** 3 + 1
    return Background.of_counts(name, vocabulary, np.arange(30), counts)


def as_dict(frequencies: Frequencies) -> dict[int, int]:
    return dict(zip(frequencies.token_ids.tolist(), frequencies.collection.tolist(), strict=True))


def by_token(background: Background, encoder: OnnxEncoder) -> dict[str, int]:
    return {encoder.token_text(token): count for token, count in as_dict(background.counts).items()}


def order_of(index: Index | ShardedIndex, query: EncodedText, **settings: Any) -> list[int]:
    """All positions of the query, most important first."""
    return list(index.search(query, order="rarity", p=len(query), **settings).kept)


# Counting


def test_wordpieces_are_counted_without_punctuation_and_specials(encoder: OnnxEncoder) -> None:
    texts = ["The goldfish, the pond!", "A [MASK] of gold...", ""]
    counted = Background.count(texts, encoder, "by hand")
    by_hand = {"the": 2, "gold": 2, "##fish": 1, "pond": 1, "a": 1, "mask": 1, "of": 1}
    assert by_token(counted, encoder) == by_hand
    assert counted.tokens == 9
    assert (counted.name, counted.vocabulary) == ("by hand", encoder.vocabulary)


def test_what_is_counted_is_what_documents_store(encoder: OnnxEncoder) -> None:
    texts = ["Goldfish grow as large as their pond lets them.", "Cats (and owls) hunt by night; bees don't."]
    stored: Counter[int] = Counter()
    for encoded in encoder.encode_documents(texts):
        stored.update(encoded.token_ids[encoded.token_kinds == 0].tolist())
    assert as_dict(Background.count(texts, encoder, "stored").counts) == stored


def test_there_is_no_document_limit(encoder: OnnxEncoder) -> None:
    assert by_token(Background.count(["pond " * 1000], encoder, "long"), encoder) == {"pond": 1000}


def test_batch_by_batch_is_the_same_as_at_once(encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["zebra", "the pond", "pond, pond", "gold"]
    at_once = Background.count(texts, encoder, "all")
    monkeypatch.setattr("secateurs.background._CHARACTERS_AT_ONCE", 6)
    assert as_dict(Background.count(iter(texts), encoder, "all").counts) == as_dict(at_once.counts)
    monkeypatch.setattr("secateurs.background._TEXTS_AT_ONCE", 1)
    assert as_dict(Background.count(iter(texts), encoder, "all").counts) == as_dict(at_once.counts)


def test_no_texts_make_an_empty_table(encoder: OnnxEncoder, tmp_path: Path) -> None:
    Background.count([], encoder, "empty").save(tmp_path / "empty.npz")
    assert as_dict(Background.load(tmp_path / "empty.npz").counts) == {}


class Bare:
    """An encoder that cannot tokenise without encoding."""

    dim = 16
    spec = {"kind": "bare", "model": "bare", "fingerprint": "1" * 16}  # noqa: RUF012

    def encode_query(self, text: str) -> EncodedText:
        return random_text(np.random.default_rng(len(text)), 3)

    def encode_documents(self, texts: Any) -> Any:
        return map(self.encode_query, texts)

    def token_text(self, token_id: int) -> str:
        return str(token_id)


def test_an_encoder_that_cannot_count_is_named() -> None:
    with pytest.raises(UsageError, match="Bare cannot count tokens"):
        Background.count(["text"], Bare(), "none")


def test_a_single_text_is_not_taken_for_a_list_of_letters(encoder: OnnxEncoder) -> None:
    with pytest.raises(UsageError, match="a list of texts"):
        Background.count("goldfish", encoder, "none")


def test_a_vocabulary_is_known_by_its_tokens_and_ids_and_not_by_their_order() -> None:
    assert fingerprint({"a": 0, "b": 1}) == fingerprint({"b": 1, "a": 0})
    assert len({fingerprint(v) for v in ({"a": 0, "b": 1}, {"a": 1, "b": 0}, {"a": 0}, {"a": 0, "c": 1})}) == 4


# Files


@pytest.mark.parametrize("largest", [1, 255, 70_000, 1 << 33])
def test_a_file_holds_the_exact_counts(largest: int, tmp_path: Path) -> None:
    saved = Background.of_counts("größer", "ab" * 8, np.array([0, 3, 4, 90_000]), np.array([5, 0, largest, 1]))
    saved.save(tmp_path / "table")
    loaded = Background.load(tmp_path / "table")
    assert (loaded.name, loaded.vocabulary) == ("größer", "ab" * 8)
    assert as_dict(loaded.counts) == {0: 5, 4: largest, 90_000: 1}
    assert loaded.digest == saved.digest != table().digest


def test_what_is_not_a_background_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    table().save(path)
    sound = path.read_bytes()
    others = {"text": b"token\tcount\n", "nothing": b"", "cut": sound[:-40], "altered": sound[:80] + b"!" + sound[81:]}
    for content in others.values():
        path.write_bytes(content)
        with pytest.raises(SecateursError, match=r"file.npz is not a background .*secateurs background"):
            Background.load(path)
    for arrays in (
        {"counts": np.ones(3, int)},
        {"name": "n", "vocabulary": "v", "token_ids": np.ones(3, int), "counts": np.ones(2, int)},
        {"name": "n", "vocabulary": "v", "token_ids": np.ones(3, int), "counts": np.ones(3)},
        {"name": "n", "vocabulary": "v", "token_ids": np.array([5, -1]), "counts": np.ones(2, int)},
    ):
        np.savez(path, **arrays)
        with pytest.raises(SecateursError, match="is not a background"):
            Background.load(path)
    np.save(tmp_path / "array.npy", np.ones(3))
    with pytest.raises(SecateursError, match="is not a background"):
        Background.load(tmp_path / "array.npy")


def test_an_unknown_name_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="no background 'klingon': the package has english"):
        Background.load("klingon")


# The packaged table


def test_the_packaged_table_is_small_and_that_of_the_built_in_model(encoder: OnnxEncoder) -> None:
    assert PACKAGED["english"].stat().st_size < 100_000
    english = Background.load("english")
    assert (english.name, english.vocabulary) == ("english", encoder.vocabulary)
    assert english.tokens > 10_000_000


def test_the_packaged_table_is_of_english(encoder: OnnxEncoder) -> None:
    count = by_token(Background.load("english"), encoder)
    assert max(count, key=count.__getitem__) == "the"
    assert max(count["gold"], count["##fish"]) < count["how"] < count["which"]
    assert not set(count) & {"[CLS]", "[SEP]", "[MASK]", "[PAD]", ",", "."}


# Which background an index gets


def test_auto_is_the_packaged_table_for_its_vocabulary_and_none_otherwise(
    encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = choose_background("auto", encoder)
    assert chosen is not None
    assert chosen.digest == Background.load("english").digest
    assert choose_background("auto", Bare()) is None
    assert choose_background("auto", None) is None
    assert choose_background(None, encoder) is None
    monkeypatch.setattr(encoder, "vocabulary", "f" * 16)
    assert choose_background("auto", encoder) is None


def test_another_vocabulary_is_refused_before_any_work_and_said_which(encoder: OnnxEncoder, tmp_path: Path) -> None:
    table(vocabulary="e" * 16).save(tmp_path / "t.npz")
    for given in (table(vocabulary="e" * 16), tmp_path / "t.npz", str(tmp_path / "t.npz")):
        with pytest.raises(UsageError, match=f"'mine' .*{'e' * 16}.*'colbert-small' .{encoder.vocabulary}"):
            Index.build(tmp_path / "i.sec", [], encoder=encoder, background=given)
    assert not (tmp_path / "i.sec").exists()
    with pytest.raises(UsageError, match="not list"):
        Index.build(tmp_path / "i.sec", [], encoder=None, background=[1])  # type: ignore[arg-type]


def test_without_an_encoder_that_knows_its_vocabulary_any_table_can_be_given(tmp_path: Path) -> None:
    assert choose_background("english", None) is not None
    documents = [{"docno": "a", "text": "any"}]
    index = Index.build(tmp_path / "i.sec", documents, encoder=Bare(), background=table())
    assert index.info()["background"] == {"name": "mine", "vocabulary": "0" * 16}


def test_an_index_of_the_built_in_model_puts_words_of_asking_behind_words_of_the_topic(
    encoder: OnnxEncoder, tmp_path: Path
) -> None:
    """Here "how" occurs once and "pond" twice: only the background knows that "how" is the more frequent word."""
    documents = [
        {"docno": "a", "text": "A pond. How deep?"},
        {"docno": "b", "text": "The pond."},
    ]
    index = Index.build(tmp_path / "i.sec", documents, encoder=encoder)
    assert index.info()["background"] == {"name": "english", "vocabulary": encoder.vocabulary}
    query = index.encode_query("how pond")  # [CLS] [unused0] how pond [SEP]
    words = {
        order: [i for i in index.search(query, order=order, p=9).kept if i in (2, 3)] for order in ("icf", "rarity")
    }
    assert words == {"icf": [2, 3], "rarity": [3, 2]}


# What an index does with it


def test_without_a_background_rarity_is_icf(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec")
    assert index.info()["background"] is None
    assert index.frequencies.background is None
    for seed in range(10):
        query = random_text(np.random.default_rng(seed), 8)
        assert order_of(index, query) == list(index.search(query, order="icf", p=8).kept)


def test_an_index_keeps_its_background_through_every_change(tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    index = build_random(path, background=table())

    def check(opened: Index) -> None:
        background = opened.frequencies.background
        assert background is not None
        assert as_dict(background) == as_dict(table().counts)
        assert opened.info()["background"] == {"name": "mine", "vocabulary": "0" * 16}
        for seed in range(5):
            query = random_text(np.random.default_rng(seed), 8)
            plain = opened.frequencies.with_background(None)
            expected = order_positions("rarity", query, plain.with_background(table().counts)).tolist()
            assert order_of(opened, query) == expected

    query = random_text(np.random.default_rng(0), 8)
    assert order_of(index, query) != list(index.search(query, order="icf", p=8).kept)
    check(index)
    rng = np.random.default_rng(1)
    index.add([Document(f"n{i}", "", {"i": i}, random_text(rng, 5)) for i in range(5)])
    check(index)
    first = index.manifest.codebook.name
    index.add([Document(f"m{i}", "", {"i": i}, random_text(rng, 9)) for i in range(150)])  # learns a new codebook
    assert index.manifest.codebook.name != first
    check(index)
    index.delete(["d003", "n1"])
    check(index)
    index.compact()
    check(index)
    index.check()
    check(Index(path))
    index.delete([document.docno for document in index.documents()])
    index.add(random_documents(9))  # the first documents of an empty index
    check(index)


def test_a_filter_changes_the_frequencies_and_not_the_background(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", background=table())
    query = random_text(np.random.default_rng(0), 8)
    matching = Frequencies.none()
    for document in random_documents(40)[30:]:
        matching += Frequencies.of(document.encoded.token_ids, np.array([0, len(document.encoded)]))  # type: ignore
    expected = order_positions("rarity", query, matching.with_background(table().counts)).tolist()
    assert order_of(index, query, where="i >= 30", frequencies="matching") == expected


def test_shards_order_the_query_as_one_index_does(tmp_path: Path) -> None:
    documents = random_documents(60)
    index = Index.build(tmp_path / "one.sec", documents, encoder=None, background=table())
    folder = make_shards(tmp_path / "many.sec", documents, 3, background=table())
    with ShardedIndex(folder) as shards:
        assert shards.info()["background"] == index.info()["background"]
        for seed in range(10):
            query = random_text(np.random.default_rng(seed), 8)
            assert order_of(shards, query) == order_of(index, query)
            narrow: dict[str, Any] = {"where": "i >= 40", "frequencies": "matching"}
            assert order_of(shards, query, **narrow) == order_of(index, query, **narrow)


def test_repair_keeps_the_background(tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    build_random(path, background=table())
    flip(next(path.glob("codebooks/*/cell_centroids.npy")))
    assert not repair(path).lost
    background = Index(path).frequencies.background
    assert background is not None
    assert as_dict(background) == as_dict(table().counts)


@pytest.mark.parametrize("removed", [False, True])
def test_a_damaged_background_is_found_named_and_put_aside(tmp_path: Path, removed: bool) -> None:
    path = tmp_path / "i.sec"
    build_random(path, background=table())
    backup = shutil.copytree(path, tmp_path / "backup.sec")
    file = next(path.glob("codebooks/*/background.npy"))
    file.unlink() if removed else flip(file)
    with pytest.raises(DamagedIndexError, match=r"background.npy"):
        Index(path)
    report = repair(path)
    assert report.lost
    assert any("lost: the background 'mine'" in line for line in report.lines)
    assert "no document is lost" in report.lines
    index = Index(path)
    index.check()
    assert index.info()["background"] is None
    assert len(index) == len(Index(backup))


def test_an_index_without_a_background_opens_without_one() -> None:
    index = Index(Path(__file__).parent / "data" / "format-1")
    assert index.info()["background"] is None
    assert index.frequencies.background is None


def test_an_index_is_replaced_by_one_with_another_background(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", background=table())
    build_random(tmp_path / "i.sec", background=replace(table(), name="other"), overwrite=True)
    index.refresh()
    assert index.info()["background"]["name"] == "other"
