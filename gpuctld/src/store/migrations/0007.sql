-- Schema 7. Bills: closed months, corrections and used prices as one JSON document; which blobs closed months are stored in.

CREATE TABLE billing (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    doc BLOB NOT NULL
);
CREATE TABLE bill_months (
    month TEXT PRIMARY KEY,
    -- The stored bill in blobs, which is kept for ever.
    bill BLOB NOT NULL
) WITHOUT ROWID;
-- Parts of GPUs that a run holds, JSON: [[type, MIG profile or "share", thousandths of GPUs, pieces], ...]. NULL: whole GPUs only.
ALTER TABLE runs ADD COLUMN gpu_parts TEXT;
