-- Schema 4. Sums of use by the hour; what runs made of their GPUs; the history of each GPU by UUID; how forecast starts turned out.

-- Sums by the hour.

-- What runs made of their GPUs. NULL: nobody sampled.

-- The history of each GPU, across moves: what was seen of it and done about it.
CREATE TABLE gpu_history (
    uuid TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    -- Number of the event that says it.
    seq INTEGER NOT NULL,
    node INTEGER NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    -- 1: it went out of service by itself, and the breaker counts it for an hour.
    automatic INTEGER NOT NULL,
    PRIMARY KEY (uuid, seq)
) WITHOUT ROWID;
CREATE INDEX gpu_history_automatic ON gpu_history (at_ms) WHERE automatic = 1;

-- Results of checks of GPUs in idle gaps.

-- Forecast starts, and what became of them.
