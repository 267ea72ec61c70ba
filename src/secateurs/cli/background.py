"""The command that counts tokens of general text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..encoders import DEFAULT_MODEL
from ..errors import SecateursError, UsageError
from ..progress import counted
from .options import EncoderKind, EncoderSettings, Model, SkipBad, encoder_settings
from .printing import SkippedDocuments

commands = typer.Typer()
_SUFFIX = ".npz"


@commands.command(epilog="Example:  secateurs background wiki.jsonl.gz news.tsv german.npz --model my-german-colbert")
def background(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS... FILE",
            help="What to count, as  secateurs index  takes it, in one or many files; and last the file for the "
            "counts, which ends in .npz.",
        ),
    ],
    model: Model = DEFAULT_MODEL,
    encoder: EncoderKind = "onnx",
    setting: EncoderSettings = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What  secateurs info  calls it; by default the file's name.")
    ] = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace a file of that name.")] = False,
) -> None:
    """Count how often each token occurs in general text, for the order rarity:  secateurs index --background FILE."""
    from ..background import Background
    from ..corpus import count_documents, read_corpus
    from ..encoders import load_encoder

    *corpora, last = paths
    target = Path(last)
    if not corpora or target.suffix != _SUFFIX:
        raise UsageError(
            f"name what to count first, and then the file for the counts, which ends in {_SUFFIX}:  "
            "secateurs background CORPUS... FILE"
        )
    if target.exists() and not overwrite:
        raise SecateursError(f"{target} is there already: choose another name, or replace it with --overwrite")
    if not target.parent.is_dir():
        raise SecateursError(f"there is no folder {target.parent}")
    skipped = SkippedDocuments()
    readers = [read_corpus(corpus, skipped if skip_bad else None) for corpus in corpora]
    expected = [count_documents(corpus) for corpus in corpora]
    known = [count for count in expected if count is not None]
    texts = 0

    def read() -> Iterator[str]:
        nonlocal texts
        for reader in readers:
            for document in reader:
                texts += 1
                yield document.text

    table = Background.count(
        read(),
        load_encoder(model, encoder, settings=encoder_settings(setting)),
        name or target.stem,
        total=sum(known) if len(known) == len(expected) else None,
    )
    table.save(target)
    types = counted(len(table.counts.token_ids), "type")
    typer.echo(f"{target}: {counted(texts, 'text')}, {counted(table.tokens, 'token')}, {types}")
    skipped.print_count()
