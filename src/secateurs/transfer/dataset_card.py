"""The page of an index on the Hub: README.md of its repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CARD = "README.md"
GENERATED = "<!-- Written by secateurs push: the next push replaces this file, unless this line is removed. -->"


def dataset_card(repo: str, facts: Mapping[str, Any]) -> str:
    """`facts` are those of Index.info(), or of a collection in shards."""
    name = repo.partition("/")[2]
    sharded = "shards" in facts
    rows = {
        "documents": f"{facts['documents']:,}",
        "embeddings": f"{facts['embeddings']:,} of {facts['dim']} dimensions",
        "encoder": _encoder(facts["encoder"]),
        "store": facts["store"],
        "gather": ", ".join(facts["gather"]),
        "bytes": f"{facts['bytes']:,}",
    }
    if sharded:
        rows["shards"] = str(len(facts["shards"]))
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    kind = "ShardedIndex" if sharded else "Index"
    return f"""---
tags:
- secateurs
- late-interaction
- colbert
viewer: false
---
{GENERATED}

# {name}

A late-interaction (ColBERT) search index of [secateurs](https://pypi.org/project/secateurs/), with the texts of its
documents.

| | |
|---|---|
{table}

```
pip install "secateurs[hub,model]"
secateurs pull {repo} {name}.sec
secateurs search {name}.sec "your query"
```

```python
from secateurs import {kind}

index = {kind}.pull("{repo}", "{name}.sec")
```

An index is data that compiled code reads: pull indexes of people whom you trust.
"""


def _encoder(spec: Mapping[str, Any]) -> str:
    """Its name; of a folder only the last part, because the rest tells how a disk is laid out."""
    if "model" not in spec:
        return "none: the index is searched with embeddings"
    model = str(spec["model"]).replace("\\", "/")
    return f"`{model if model.count('/') == 1 and not model.startswith(('/', '.')) else model.rpartition('/')[2]}`"
