"""The tables of a privacy ledger."""

from __future__ import annotations

from mppfl.database import Book

SCHEMA = """
CREATE TABLE clients (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    round_index INTEGER NOT NULL,
    client INTEGER NOT NULL REFERENCES clients,
    attempt INTEGER NOT NULL,
    mechanism TEXT NOT NULL,
    unit TEXT NOT NULL,
    adjacency TEXT NOT NULL,
    budget REAL,
    worst_case_budget REAL,
    noise_multiplier REAL,
    sampling_rate REAL,
    num_steps INTEGER,
    noise_kind TEXT NOT NULL,
    extra_delta REAL NOT NULL,
    session TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('reserved', 'stored', 'sent')),
    chain BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_event_each ON events (run, round_index, client, attempt);
CREATE TABLE totals (
    client INTEGER NOT NULL REFERENCES clients,
    unit TEXT NOT NULL,
    adjacency TEXT NOT NULL,
    events INTEGER NOT NULL,
    budget REAL NOT NULL,
    worst_case_budget REAL NOT NULL,
    extra_delta REAL NOT NULL,
    not_gaussian INTEGER NOT NULL,
    poisson INTEGER NOT NULL,
    seeded INTEGER NOT NULL,
    PRIMARY KEY (client, unit)
) STRICT, WITHOUT ROWID;
CREATE TABLE caps (
    client INTEGER NOT NULL REFERENCES clients,
    unit TEXT NOT NULL,
    budget REAL NOT NULL,
    PRIMARY KEY (client, unit)
) STRICT, WITHOUT ROWID;
CREATE TABLE uploads (event INTEGER PRIMARY KEY REFERENCES events, sha256 BLOB NOT NULL, content BLOB NOT NULL) STRICT;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), events INTEGER NOT NULL, head BLOB NOT NULL) STRICT;
INSERT INTO state VALUES (1, 0, zeroblob(32));
CREATE TABLE changes (
    id INTEGER PRIMARY KEY,
    after_event INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('cap', 'status', 'run')),
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    budget REAL,
    sha256 BLOB,
    chain BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_training_each ON changes (subject) WHERE kind = 'run';
"""
BOOK = Book("ledger", "a privacy ledger", 0x6D70706C, 3, SCHEMA)  # "mppl"
