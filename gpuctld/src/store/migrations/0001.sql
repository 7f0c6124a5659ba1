-- Schema 1. Rows are the checkpoint (index columns and a JSON document), events the history; one
-- transaction writes both. Times are milliseconds since 1970. live = 1: read at boot.

CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    release TEXT NOT NULL,
    cluster TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    next_job INTEGER NOT NULL,
    next_node INTEGER NOT NULL,
    seq INTEGER NOT NULL
);

-- A request as accepted. Never changed: an update of a job makes a new one. Tasks share their array's.
CREATE TABLE specs (
    id INTEGER PRIMARY KEY,
    script BLOB,
    environment BLOB,
    work_dir TEXT NOT NULL,
    comment TEXT NOT NULL,
    tags TEXT NOT NULL,
    doc BLOB NOT NULL
);

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    live INTEGER NOT NULL,
    spec INTEGER NOT NULL,
    array_id INTEGER,
    array_index INTEGER,
    user TEXT NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    qos TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    submit_ms INTEGER NOT NULL,
    start_ms INTEGER,
    end_ms INTEGER,
    attempt INTEGER NOT NULL,
    limit_secs INTEGER,
    exit TEXT NOT NULL,
    end_text TEXT NOT NULL,
    doc BLOB NOT NULL
);
CREATE INDEX jobs_live ON jobs (id, array_id) WHERE live = 1;
CREATE INDEX jobs_end ON jobs (end_ms) WHERE end_ms IS NOT NULL;
CREATE INDEX jobs_user_end ON jobs (user, end_ms) WHERE end_ms IS NOT NULL;

CREATE TABLE arrays (
    id INTEGER PRIMARY KEY,
    live INTEGER NOT NULL,
    spec INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    user TEXT NOT NULL,
    submit_ms INTEGER NOT NULL,
    end_ms INTEGER,
    doc BLOB NOT NULL
);
CREATE INDEX arrays_live ON arrays (id) WHERE live = 1;

CREATE TABLE runs (
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    live INTEGER NOT NULL,
    user TEXT NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    qos TEXT NOT NULL,
    name TEXT NOT NULL,
    tags TEXT NOT NULL,
    state TEXT NOT NULL,
    placed_ms INTEGER NOT NULL,
    start_ms INTEGER,
    end_ms INTEGER,
    cpus INTEGER NOT NULL,
    mem_bytes INTEGER NOT NULL,
    -- thousandths of GPUs by type, JSON: {"h100":4000}
    gpus TEXT NOT NULL,
    nodes INTEGER NOT NULL,
    nodelist TEXT NOT NULL,
    exit TEXT NOT NULL,
    end_text TEXT NOT NULL,
    cpu_micros INTEGER NOT NULL,
    peak_bytes INTEGER NOT NULL,
    -- the run while it is live
    doc BLOB,
    PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE INDEX runs_live ON runs (job, attempt) WHERE live = 1;
CREATE INDEX runs_end ON runs (end_ms) WHERE end_ms IS NOT NULL;

CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    removed_ms INTEGER,
    doc BLOB NOT NULL
);
CREATE TABLE automatic_drains (
    at INTEGER NOT NULL,
    node INTEGER NOT NULL,
    PRIMARY KEY (at, node)
) WITHOUT ROWID;

CREATE TABLE tokens (
    hash TEXT PRIMARY KEY,
    doc BLOB NOT NULL
) WITHOUT ROWID;

-- Scripts and environments. last_use is a day number since 1970.
CREATE TABLE blobs (
    sha BLOB PRIMARY KEY,
    last_use INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX blobs_last_use ON blobs (last_use);

CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    job INTEGER,
    attempt INTEGER,
    node INTEGER,
    doc BLOB NOT NULL
);
CREATE INDEX events_job ON events (job, seq) WHERE job IS NOT NULL;
CREATE INDEX events_node ON events (node, seq) WHERE node IS NOT NULL AND job IS NULL;
