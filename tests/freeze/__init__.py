"""Behaviour that was frozen before the code is restructured: rows, and bytes at the door.

Two gates compare what the code does with what it did when `expected/` was recorded:

- **rows** (`test_rows.py`): sequences of neutral verbs (`sequences/*.ndjson`: accept, start,
  finish, reset, erase, ...) are played on real stores, and the outcome of every verb and every row
  of every table are compared. Each sequence is played on SQLite and PostgreSQL, one command at a
  time, by two processes in turns, without caches, and with commands that share commits.
- **door** (`test_door.py`): conversations (`conversations/`) are held with a real gateway, and
  status, headers and body or events of every answer are compared, and every byte that was sent to
  the upstream.

Of the code, the first gate knows only what is in `store_adapter.py`, and the second only what is in
`door_adapter.py`. Whoever renames or moves something edits these adapters. Sequences, conversations
and expectations stay as they are.

Ids are counted and times are set or masked, nothing else. A failing test shows the first lines that
differ, and the place of the first byte.

`python -m tests.freeze record` writes what is not recorded yet, and says what differs.
`python -m tests.freeze record rows/once` also replaces the named part. Whoever changes behaviour on
purpose records the parts that it changes, reads the difference line by line, and commits it with
the change, in a commit that says why. Nothing is recorded anew only because a test fails.
"""
