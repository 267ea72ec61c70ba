"""The HTTP service and the explorer page: `secateurs serve`. Needs  pip install "secateurs[serve]".

A request meets the files in this order:

    server.py      opens the indexes and runs uvicorn
    gate.py        who may come in: host, key, size, number
    app.py         the routes; requests.py and answers.py are what goes in and out
    work.py        threads, so that the event loop is never busy searching
    served.py      the library's verbs on one index, with a cache of encoded queries
    highlights.py  which words of a document matched
    problems.py    every error, as application/problem+json
"""
