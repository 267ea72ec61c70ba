"""Which words of a document matched, and how the terminal marks them."""

import numpy as np
from rich.text import Text

from secateurs import Index
from secateurs.cli.printing import _marked
from secateurs.matches import Match, find_matches


def match(text: str, word: str, strength: float) -> Match:
    start = text.index(word)
    return Match(start, start + len(word), np.array([0]), np.array([0.9]), np.array([1]), 1.0, strength)


def bold(marked: Text) -> list[str]:
    return [marked.plain[span.start : span.end] for span in marked.spans]


def test_rare_words_match_more_strongly_than_common_words(index: Index) -> None:
    query = "how do I read a zip archive"
    ranking = index.search(query)
    strength: dict[str, float] = {}
    for hit in ranking:
        for found in find_matches(index, ranking.query, index.frequencies, hit.docno, hit.text) or ():
            word = hit.text[found.start : found.end].lower()
            strength[word] = max(strength.get(word, 0.0), found.strength)
    assert strength["zip"] > 0.5
    assert max(strength.get(word, 0.0) for word in ("a", "the", "to", "of")) < 0.2


def test_the_terminal_marks_telling_matches_only_and_keeps_the_text_as_it_is() -> None:
    text = "Read a file of the archive."
    marked = _marked(text, [match(text, "Read", 0.6), match(text, " a "[1:2], 0.05), match(text, "archive", 0.8)])
    assert marked.plain == text
    assert bold(marked) == ["Read", "archive"]


def test_the_terminal_begins_just_before_the_first_telling_match() -> None:
    text = "One two three four five six seven eight nine ten eleven goldfish grow."
    marked = _marked(text, [match(text, "goldfish", 0.7)])
    assert marked.plain.startswith("… ")
    assert marked.plain.endswith("ten eleven goldfish grow.")
    assert bold(marked) == ["goldfish"]


def test_a_text_without_matches_is_shown_from_its_beginning() -> None:
    assert _marked("Goldfish\ngrow\tslowly.", None).plain == "Goldfish grow slowly."


def test_control_characters_of_a_document_do_not_reach_the_terminal() -> None:
    text = "Read \x1b[31m the archive\x07."
    marked = _marked(text, [match(text, "archive", 0.8)])
    assert "\x1b" not in marked.plain
    assert "\x07" not in marked.plain
