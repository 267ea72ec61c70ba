"""The HTTP service and the explorer page: `secateurs serve`. Needs  pip install "secateurs[serve]".

A request passes the files in this order:

    server.py        opens the indexes and runs uvicorn
    admission.py     which requests are admitted: by host, key (keys.py), size and number (limits.py)
    app.py           the routes; requests.py and answers.py describe what goes in and out, openapi.py both
    workers.py       threads, so that the event loop is never busy with a search
    request_work.py  how much work a request is, and whether that is allowed
    served_index.py  the library's verbs on an index, with a cache of encoded queries
    highlights.py    which words of a document matched
    problems.py      every error, as application/problem+json

metrics.py counts, for Prometheus. web/ is the explorer page.
"""
