-- Schema 5. A cluster has an id, so that another's database is told from an older one of its own; what is past its time goes: requests
-- that no job or array has are found by these.

ALTER TABLE meta ADD COLUMN cluster_id TEXT NOT NULL DEFAULT '';
UPDATE meta SET cluster_id = lower(hex(randomblob(16)));
-- Jobs and runs that ended before it may be gone; sums of use stay. Milliseconds since 1970.
ALTER TABLE meta ADD COLUMN pruned_before_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_spec ON jobs (spec);
CREATE INDEX arrays_spec ON arrays (spec);
CREATE INDEX arrays_end ON arrays (end_ms) WHERE end_ms IS NOT NULL;

-- What reports need of runs that are gone: by hour and kind how many were there when the hour began, and the runs of jobs that ran more than
-- once, which count as one job.
CREATE TABLE pruned_hours (
    hour INTEGER NOT NULL,
    key INTEGER NOT NULL,
    carried INTEGER NOT NULL,
    PRIMARY KEY (hour, key)
) WITHOUT ROWID;
CREATE TABLE pruned_repeats (
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    key INTEGER NOT NULL,
    start_ms INTEGER NOT NULL,
    end_ms INTEGER NOT NULL,
    PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE INDEX pruned_repeats_end ON pruned_repeats (end_ms);

-- The newest window in which nodes may bring runs that a restored database does not know, as JSON.
ALTER TABLE meta ADD COLUMN adoption BLOB;

-- Time in which nodes of a run were not its own any more before its end, on average over what it held; not charged.
ALTER TABLE runs ADD COLUMN unheld_ms INTEGER NOT NULL DEFAULT 0;
-- The GPUs and slices that a run holds, and what befell them: JSON, NODE:UUID and words. NULL: not known, none.
ALTER TABLE runs ADD COLUMN gpu_uuids TEXT;
ALTER TABLE runs ADD COLUMN gpu_events TEXT;
-- The image it ran in, NAME@sha256:... NULL: none.
ALTER TABLE runs ADD COLUMN image TEXT;
