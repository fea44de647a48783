"""The server side of the index: a Qdrant server or cluster that answers for builds of this home.

What belongs here: connecting (`connection`), the store over a collection (`store`), making, filling and naming
collections (`collections`), what this home knows of them (`records`), bringing a build there and promoting it
(`deploy`). What does not: making builds; a server only ever holds what an embedded build holds.
"""
