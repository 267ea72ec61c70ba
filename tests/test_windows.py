"""Long documents: windows that overlap, together one document."""

from itertools import pairwise
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateurs import Index, TokenKind
from secateurs.cancellation import cancelled_by
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.windows import windows
from secateurs.errors import CancelledError
from secateurs.matches import find_matches

FRAME = {TokenKind.CLS, TokenKind.MARKER, TokenKind.SEP, TokenKind.SUMMARY}
LIMIT, OVERLAP = 40, 9
ROOM = LIMIT - 3


@pytest.fixture(scope="module")
def encoder() -> OnnxEncoder:
    return OnnxEncoder.load(settings={"document_limit": LIMIT, "overlap": OVERLAP})


def words(count: int) -> str:
    """Words of one wordpiece each, all different in neighbouring places."""
    known = ["pond", "fish", "river", "cat", "house", "stone", "tree", "road", "bird", "light", "water", "grass"]
    return " ".join(known[(i * i + i // 7) % len(known)] for i in range(count))


@given(st.integers(0, 2_000), st.integers(1, 60), st.data())
def test_every_wordpiece_is_stored_once_in_the_window_where_it_is_farthest_from_the_edge(
    pieces: int, room: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, room - 1))
    planned = windows(pieces, room, overlap)
    stored = [piece for window in planned for piece in range(window.first, window.last)]
    assert stored == list(range(pieces))
    for window in planned:
        assert window.begin <= window.first <= window.last <= window.end
        assert window.end - window.begin == min(room, pieces)
    for here, there in pairwise(planned):
        assert here.end - there.begin >= overlap
        assert here.begin < there.begin
        for piece in range(there.begin, here.end):
            from_the_end, from_the_beginning = here.end - 1 - piece, piece - there.begin
            if abs(from_the_end - from_the_beginning) > 1:
                assert (piece < here.last) == (from_the_end > from_the_beginning)
    steps = [there.begin - here.begin for here, there in pairwise(planned)]
    assert not steps or max(steps) - min(steps) <= 1


def test_windows_worked_out_by_hand() -> None:
    assert windows(10, 10, 4) == [(0, 10, 0, 10)]
    assert windows(16, 10, 4) == [(0, 10, 0, 8), (6, 16, 8, 16)]
    assert windows(17, 10, 4) == [(0, 10, 0, 6), (3, 13, 6, 10), (7, 17, 10, 17)]
    assert windows(17, 10, None) == [(0, 10, 0, 10)]
    assert windows(0, 10, 4) == [(0, 0, 0, 0)]


def test_a_short_document_is_encoded_as_without_windows(encoder: OnnxEncoder) -> None:
    cut = OnnxEncoder.load(settings={"document_limit": LIMIT})
    for text in ("", "fish", words(ROOM)):
        in_windows, at_once = encoder.encode_document(text), cut.encode_document(text)
        assert np.array_equal(in_windows.embeddings, at_once.embeddings)
        assert in_windows.token_kinds.tolist() == at_once.token_kinds.tolist()


def test_a_long_document_keeps_every_word_in_its_order_and_nothing_is_cut(encoder: OnnxEncoder) -> None:
    text = words(150)
    document = encoder.encode_document(text)
    is_word = document.token_kinds == TokenKind.WORD
    assert [encoder.token_text(int(i)) for i in document.token_ids[is_word]] == text.split()
    assert document.cut == 0
    assert np.linalg.norm(document.embeddings, axis=1) == pytest.approx(1, abs=1e-5)


def test_embeddings_are_those_of_the_windows_each_as_a_document_by_itself(encoder: OnnxEncoder) -> None:
    text = words(100)
    document = encoder.encode_document(text)
    embeddings = document.embeddings[document.token_kinds == TokenKind.WORD]
    for window in windows(100, ROOM, OVERLAP):
        alone = encoder.encode_document(" ".join(text.split()[window.begin : window.end]))
        part = slice(2 + window.first - window.begin, 2 + window.last - window.begin)
        assert np.array_equal(alone.embeddings[part], embeddings[window.first : window.last])


def test_a_document_has_one_summary_and_the_frames_of_all_windows(encoder: OnnxEncoder) -> None:
    kinds = encoder.encode_document(words(100)).token_kinds.tolist()
    frames = [kind for kind in kinds if kind in FRAME]
    first = [TokenKind.CLS, TokenKind.SUMMARY, TokenKind.SEP]
    later = [TokenKind.CLS, TokenKind.MARKER, TokenKind.SEP] * (len(windows(100, ROOM, OVERLAP)) - 1)
    assert frames == first + later
    token_ids, spans = encoder.document_spans(words(100))
    assert token_ids.tolist() == encoder.encode_document(words(100)).token_ids.tolist()
    assert [span is None for span in spans] == [kind in FRAME for kind in kinds]


def test_spans_point_at_the_same_words_in_every_window(encoder: OnnxEncoder) -> None:
    text = "🐟 " + " ".join(f"Fïsh, Café {word}! 日本 cafe\u0301" for word in words(60).split())
    token_ids, spans = encoder.document_spans(text)
    document = encoder.encode_document(text)
    assert token_ids.tolist() == document.token_ids.tolist()
    assert len(windows(len(encoder._wordpieces(text)), ROOM, OVERLAP)) > 5
    shown = {}
    for token_id, span in zip(token_ids.tolist(), spans, strict=True):
        if span is not None:
            shown.setdefault(encoder.token_text(token_id), set()).add(text[slice(*span)])
    assert shown["fish"] == {"Fïsh", "fish"}
    assert shown["cafe"] == {"Café", "cafe"}
    assert shown["日"] == {"日"}
    assert shown["river"] == {"river"}
    places = [span for span in spans if span is not None]
    assert places == sorted(places)
    assert places[-1][1] == len(text) - 1  # the accent that stands alone belongs to no wordpiece


def test_highlights_and_explanations_point_at_words_after_the_first_window(
    encoder: OnnxEncoder, tmp_path: Path
) -> None:
    text = words(120) + " the zebra 日本 sleeps " + words(50)
    documents = [{"docno": "d", "text": text}, {"docno": "e", "text": "fish"}]
    index = Index.build(tmp_path / "i.sec", documents, encoder=encoder)
    query = index.encode_query("zebra")
    matches = find_matches(index, query, index.frequencies, "d", text)
    assert matches is not None
    zebra = int(np.flatnonzero(query.token_ids == encoder._tokenizer.token_to_id("zebra"))[0])
    assert [text[m.start : m.end] for m in matches if zebra in m.positions] == ["zebra"]
    (explained,) = (token for token in index.explain("zebra", "d").tokens if token.position == zebra)
    _, spans = encoder.document_spans(text)
    (position,) = explained.match_positions
    assert (explained.match, text[slice(*spans[position])]) == ("zebra", "zebra")


def test_documents_come_in_their_order_whatever_their_length(encoder: OnnxEncoder) -> None:
    texts = [words(count) for count in (5, 200, 0, 38, 37, 90)]
    for text, encoded in zip(texts, encoder.encode_documents(texts), strict=True):
        assert np.array_equal(encoded.embeddings, encoder.encode_document(text).embeddings)


def test_a_long_document_is_read_no_further_ahead_than_it_has_to(
    encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    framed = 0
    original = OnnxEncoder._framed

    def counting(self: OnnxEncoder, *arguments: object, **named: object) -> object:
        nonlocal framed
        framed += 1
        return original(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(OnnxEncoder, "_framed", counting)
    stream = encoder.encode_documents(["fish", words(20_000)])
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert framed < 20 * encoder.workers


def test_encoding_a_long_document_stops_when_it_is_cancelled(encoder: OnnxEncoder) -> None:
    stop = Event()

    def texts() -> object:
        yield "fish"
        stop.set()
        yield words(500)

    with cancelled_by(stop), pytest.raises(CancelledError):
        list(encoder.encode_documents(texts()))  # type: ignore[arg-type]
