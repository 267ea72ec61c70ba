"""Figure 3 of Tonellotto & Macdonald (2021) with PyTerrier: effectiveness against documents retrieved.

    pip install "secateurs[model,pyterrier,bench]"
    python examples/pyterrier_figure3.py [COLLECTION]

COLLECTION is a folder with a corpus (corpus.jsonl, .tsv or .csv), queries (queries.tsv or BEIR's queries.jsonl) and
judgements (qrels, or BEIR's qrels/test.tsv), plain or gzipped. Without it, a known-item collection is made from the
documentation of this Python's standard library, offline. At most 200 queries are used. The index and the figure are
left in the current folder; an index that is there is used again.

Every "# %%" begins a cell, for editors and notebooks that know them.
"""

# %% What is needed. PyTerrier runs without Java here.
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyterrier as pt
from ir_measures import AP, RR, NumRet, nDCG

from secateurs import Index, SecateursError
from secateurs.corpus import read_corpus
from secateurs.demo import standard_library
from secateurs.integrations.pyterrier import Candidates, Prune, QueryEncoder, Scorer, SecateursIndexer
from secateurs.lab.topics import collection_files, read_topics

IN_NOTEBOOK = "ipykernel" in sys.modules
ARGUMENTS = [] if IN_NOTEBOOK else sys.argv[1:]
if len(ARGUMENTS) > 1 or any(argument.startswith("-") for argument in ARGUMENTS):
    print(__doc__)
    sys.exit(0 if ARGUMENTS in (["--help"], ["-h"]) else 2)
COLLECTION = Path(ARGUMENTS[0]) if ARGUMENTS else None
K_PRIME = 100 if COLLECTION is None else 1000  # the paper's 1000 would be half of a collection as small as ours
PS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32)
MOST_QUERIES = 200


# %% A collection: documents, queries (qid, query) and judgements (qid, docno, label).
def known_items():
    """First sentences of docstrings are queries, and the rest of each is the one document that is relevant."""
    documents, queries = [], []
    for document in standard_library():
        signature, _, said = document["text"].partition(": ")
        summary, _, rest = said.partition(". ")
        if 6 <= len(summary.split()) <= 20 and len(rest.split()) >= 20:
            queries.append({"qid": document["docno"], "query": summary})
            document = {**document, "text": f"{signature}: {rest}"}
        documents.append(document)
    chosen = pd.DataFrame(queries[:: -(-len(queries) // MOST_QUERIES)])
    return documents, chosen, chosen[["qid"]].assign(docno=chosen["qid"], label=1)


def collection(folder):
    """A collection of your own."""
    try:
        corpus, queries_file, qrels_file = collection_files(folder)
        topics = read_topics(str(queries_file), str(qrels_file))
    except SecateursError as error:
        sys.exit(str(error))
    judged = [(qid, docno, grade) for qid, grades in topics.qrels.items() for docno, grade in grades.items()]
    queries = pd.DataFrame(topics.queries.items(), columns=["qid", "query"])
    return read_corpus(corpus), queries, pd.DataFrame(judged, columns=["qid", "docno", "label"])


documents, queries, qrels = known_items() if COLLECTION is None else collection(COLLECTION)
queries = queries[queries["qid"].isin(qrels[qrels["label"] > 0]["qid"])].head(MOST_QUERIES)
if queries.empty:
    sys.exit("no query has a relevant document")
print(f"{len(queries)} queries")

# %% An index that can gather as the paper does: by FAISS, which looks into 10 partitions.
name = "standard-library" if COLLECTION is None else COLLECTION.resolve().name
path = Path(f"{name}.figure3.sec")
index = Index(path) if path.exists() else SecateursIndexer(path, gather="faiss").index(documents)
print(f"{len(index):,} documents")


# %% One pipeline for each order and p. They share their first stage, which plan="tree" runs once.
def pipeline(order, p):
    gather = Candidates(index, gather="faiss", k_prime=K_PRIME)
    return QueryEncoder(index) >> Prune(index, order=order, p=p) >> gather >> Scorer(index)


settings = [(order, p) for order in ("first", "icf") for p in PS]
systems = {"unpruned": pipeline("icf", None)} | {f"{order} {p}": pipeline(order, p) for order, p in settings}
relevant = {"rel": 2} if qrels["label"].max() > 1 else {}
measures = [nDCG @ 10, AP(**relevant) @ 1000, RR(**relevant) @ 10]

# %% The experiment: paired t-tests against the unpruned system, corrected for their number.
table = pt.Experiment(
    systems, queries, qrels, [*measures, NumRet], baseline=0, correction="bonferroni", plan="tree", verbose=False
).set_index("name")
table["retrieved"] = table[str(NumRet)] / len(queries)  # NumRet is a sum over the queries
print(
    table[["retrieved", *map(str, measures)]].to_string(
        float_format="{:.4f}".format, formatters={"retrieved": "{:,.0f}".format}
    )
)

# %% The figure. A point is hollow where the difference from the unpruned system is significant.
figure, panels = plt.subplots(1, len(measures), figsize=(13, 4), layout="constrained")
for panel, measure in zip(panels, map(str, measures), strict=True):
    panel.axhline(table[measure]["unpruned"], color="grey", linewidth=1, linestyle=":", label="unpruned")
    for order, label, colour in (("first", "First", "tab:red"), ("icf", "ICF", "tab:blue")):
        rows = table.loc[[f"{order} {p}" for p in PS]]
        panel.plot(rows["retrieved"], rows[measure], color=colour, linewidth=1, zorder=2)
        for reject, face in ((False, colour), (True, "white")):
            some = rows[rows[f"{measure} reject"] == reject]
            panel.scatter(some["retrieved"], some[measure], s=28, facecolor=face, edgecolor=colour, zorder=3)
        three = rows.loc[f"{order} 3"]
        panel.annotate("p = 3", (three["retrieved"], three[measure]), (5, -11), textcoords="offset points", fontsize=8)
        panel.scatter([], [], s=28, color=colour, label=label)
    panel.scatter([], [], s=28, facecolor="white", edgecolor="black", label="significantly different")
    panel.set_xlabel("documents retrieved (mean per query)")
    panel.set_title(measure)
    panel.grid(alpha=0.3)
panels[0].legend(loc="lower right")
size = f"{len(queries)} queries, {len(index):,} documents, k' = {K_PRIME}"
figure.suptitle(f"{name}: {size}, p = {PS[0]} to {PS[-1]} from left to right")
figure.savefig(f"{name}.figure3.png", dpi=150)
print(f"{name}.figure3.png")
