-- Schema 3. Accounts, QOS and reservations that were made at run time, as one JSON document; and what accounts and
-- users have used, exact: what fair share and budgets are computed from. Of runs, on whose GPUs they last stood, and the
-- GPU-seconds that a preemption threw away.

CREATE TABLE policy (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    doc BLOB NOT NULL
);
CREATE TABLE usage (
    account TEXT NOT NULL,
    user TEXT NOT NULL,
    doc BLOB NOT NULL,
    PRIMARY KEY (account, user)
) WITHOUT ROWID;
ALTER TABLE runs ADD COLUMN class TEXT;
ALTER TABLE runs ADD COLUMN lost_gpu_secs INTEGER NOT NULL DEFAULT 0;
