//! Defines the tables of the run's database, `run.sqlite`.
//!
//! Jobs and candidates are identified by name, because `--resume` must find their results. Their positions in the plan
//! are not stable: if a glob finds one more file, all later positions shift.

/// The `PRAGMA user_version`. Every change of the tables increments it. There is no migration, so a run can be read
/// only by a program with the schema version that wrote it.
pub(super) const VERSION: i64 = 13;

/// The `PRAGMA application_id`, "OPTS". It distinguishes a run's database from other programs' databases.
pub(super) const APPLICATION_ID: i64 = 0x4f50_5453;

pub(super) const TABLES: &str = "
CREATE TABLE meta (
    key    TEXT PRIMARY KEY,
    value  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE run (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    name       TEXT NOT NULL,
    status     TEXT NOT NULL,
    started    TEXT NOT NULL,
    finished   TEXT,
    version    TEXT NOT NULL,
    device     TEXT NOT NULL,
    exit_code  INTEGER
) STRICT;

CREATE TABLE job (
    key               INTEGER PRIMARY KEY,
    place             INTEGER NOT NULL,
    name              TEXT NOT NULL UNIQUE,
    status            TEXT NOT NULL,
    detail            TEXT,
    baseline          TEXT,
    winner            TEXT,
    winner_confirmed  INTEGER NOT NULL DEFAULT 0,
    ranking           TEXT,
    unsettled_because TEXT,
    entries           INTEGER,
    bytes             INTEGER,
    unique_bytes      INTEGER,
    captures_digest   TEXT,
    captures_form     TEXT,
    signature_digest  TEXT
) STRICT;

CREATE TABLE candidate (
    key            INTEGER PRIMARY KEY,
    job            INTEGER NOT NULL REFERENCES job (key),
    place          INTEGER NOT NULL,
    name           TEXT NOT NULL,
    source_path    TEXT,
    other_paths    TEXT NOT NULL,
    source_digest  TEXT,
    tier           TEXT NOT NULL,
    not_timed_because  TEXT,
    status         TEXT,
    blame          TEXT,
    failed_stage   TEXT,
    detail         TEXT,
    feedback       TEXT,
    rank           INTEGER,
    speedup        TEXT,
    times          TEXT,
    failed_beside  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job, name)
) STRICT;

CREATE TABLE attempt (
    key              INTEGER PRIMARY KEY,
    candidate        INTEGER NOT NULL REFERENCES candidate (key),
    stage            TEXT NOT NULL,
    number           INTEGER NOT NULL,
    worker           INTEGER,
    lease            INTEGER,
    predicted        INTEGER,
    started          TEXT NOT NULL,
    status           TEXT,
    blame            TEXT,
    detail           TEXT,
    ms               REAL,
    report           TEXT,
    artifact_digest  TEXT,
    artifact_path    TEXT,
    superseded       INTEGER NOT NULL DEFAULT 0,
    UNIQUE (candidate, stage, number)
) STRICT;

CREATE TABLE worker (
    id                INTEGER PRIMARY KEY,
    role              TEXT NOT NULL,
    pid               INTEGER NOT NULL,
    started           TEXT NOT NULL,
    ready_ms          REAL,
    ended             TEXT,
    end_class         TEXT,
    recycled_because  TEXT,
    leases            INTEGER NOT NULL DEFAULT 0,
    peak_owed         INTEGER,
    peak_device       INTEGER
) STRICT;

CREATE TABLE phase (
    key        INTEGER PRIMARY KEY,
    candidate  INTEGER NOT NULL REFERENCES candidate (key),
    stage      TEXT NOT NULL,
    worker     INTEGER NOT NULL,
    predicted  INTEGER,
    peak_owed  INTEGER,
    peak_reclaimable  INTEGER,
    predicted_device  INTEGER,
    peak_device  INTEGER,
    swap_delta  INTEGER,
    switch_us  INTEGER,
    started    TEXT NOT NULL,
    ended      TEXT,
    UNIQUE (candidate, stage, worker, started)
) STRICT;

CREATE TABLE replay (
    key           INTEGER PRIMARY KEY,
    place         INTEGER NOT NULL,
    name          TEXT NOT NULL UNIQUE,
    budget        INTEGER NOT NULL,
    floor         INTEGER,
    all_resident  INTEGER,
    status        TEXT,
    blame         TEXT,
    detail        TEXT,
    started       TEXT,
    ended         TEXT,
    worker        INTEGER,
    lease         INTEGER,
    attempts      INTEGER NOT NULL DEFAULT 0,
    predicted     INTEGER,
    peak_owed     INTEGER,
    ms            REAL,
    inputs        TEXT,
    result        TEXT,
    failure       TEXT
) STRICT;

CREATE TABLE replay_phase (
    key        INTEGER PRIMARY KEY,
    replay     INTEGER NOT NULL REFERENCES replay (key),
    worker     INTEGER NOT NULL,
    predicted  INTEGER,
    peak_owed  INTEGER,
    peak_reclaimable  INTEGER,
    predicted_device  INTEGER,
    peak_device  INTEGER,
    swap_delta  INTEGER,
    switch_us  INTEGER,
    started    TEXT NOT NULL,
    ended      TEXT
) STRICT;

CREATE TABLE policy (
    key       INTEGER PRIMARY KEY,
    t         TEXT NOT NULL,
    decision  TEXT NOT NULL,
    reason    TEXT NOT NULL,
    numbers   TEXT NOT NULL,
    worker    INTEGER,
    lease     INTEGER
) STRICT;

CREATE TABLE sample (
    key      INTEGER PRIMARY KEY,
    started  INTEGER NOT NULL,
    ended    INTEGER NOT NULL,
    width    INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    data     BLOB NOT NULL
) STRICT;

CREATE INDEX sample_size ON sample (width, bytes);

CREATE INDEX candidate_place ON candidate (job, place);

CREATE INDEX policy_of_worker ON policy (worker) WHERE worker IS NOT NULL;
";
