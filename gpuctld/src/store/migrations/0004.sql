-- Schema 4. Jobs share the rows of their requests; sums of use by the hour; what runs made of their GPUs; the history of each GPU by UUID; how forecast starts turned out.

-- Rows of specs are what requests have in common now; scripts are the jobs' own.
ALTER TABLE jobs ADD COLUMN script BLOB;
ALTER TABLE arrays ADD COLUMN script BLOB;

-- Sums by the hour. summed = 1: the run is in them; older runs are added after the start, a few at a time.
CREATE TABLE usage_keys (
    id INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    user TEXT NOT NULL,
    partition TEXT NOT NULL,
    class TEXT NOT NULL,
    gpus TEXT NOT NULL,
    tags TEXT NOT NULL,
    UNIQUE (account, user, partition, class, gpus, tags)
);
-- span is the length of a block in hours (1, 24, 768); begun counts runs whose start lies in it.
CREATE TABLE usage_sums (
    span INTEGER NOT NULL,
    block INTEGER NOT NULL,
    key INTEGER NOT NULL,
    begun INTEGER NOT NULL,
    millis INTEGER NOT NULL,
    cpu_millis INTEGER NOT NULL,
    cpu_used_micros INTEGER NOT NULL,
    mem_mib_secs INTEGER NOT NULL,
    mem_peak_mib_secs INTEGER NOT NULL,
    idle_ms INTEGER NOT NULL,
    busy_percent_ms INTEGER NOT NULL,
    busy_told_ms INTEGER NOT NULL,
    energy_mj INTEGER NOT NULL,
    PRIMARY KEY (span, block, key)
) WITHOUT ROWID;
-- The runs that an hour has a part of: what a report that begins or ends within it reads.
CREATE TABLE run_hours (
    hour INTEGER NOT NULL,
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (hour, job, attempt)
) WITHOUT ROWID;
ALTER TABLE runs ADD COLUMN summed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_unsummed ON runs (end_ms) WHERE summed = 0 AND end_ms IS NOT NULL;
CREATE INDEX runs_repeated ON runs (end_ms) WHERE attempt > 1;

-- What runs made of their GPUs. NULL: nobody sampled.
ALTER TABLE runs ADD COLUMN gpu_sampled_ms INTEGER;
ALTER TABLE runs ADD COLUMN gpu_idle_ms INTEGER;
ALTER TABLE runs ADD COLUMN gpu_busy_percent_ms INTEGER;
ALTER TABLE runs ADD COLUMN gpu_busy_told_ms INTEGER;
ALTER TABLE runs ADD COLUMN gpu_memory_percent_ms INTEGER;
ALTER TABLE runs ADD COLUMN gpu_memory_told_ms INTEGER;
ALTER TABLE runs ADD COLUMN gpu_memory_peak_bytes INTEGER;
ALTER TABLE runs ADD COLUMN gpu_power_peak_mw INTEGER;
ALTER TABLE runs ADD COLUMN gpu_temperature_peak_c INTEGER;
ALTER TABLE runs ADD COLUMN gpu_energy_mj INTEGER;
ALTER TABLE runs ADD COLUMN gpu_nvlink_kib INTEGER;
ALTER TABLE runs ADD COLUMN gpu_pcie_kib INTEGER;
ALTER TABLE runs ADD COLUMN gpu_slowed_ms INTEGER;

-- Time in which a run stood still, which is not charged; and since when it does, while it does.
ALTER TABLE runs ADD COLUMN suspended_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN suspended_since_ms INTEGER;

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

-- When their GPUs stood idle: the longest spells, as JSON. NULL: never seen.
ALTER TABLE runs ADD COLUMN idle_spells TEXT;
CREATE INDEX runs_idle ON runs (end_ms) WHERE idle_spells IS NOT NULL;

-- Results of checks of GPUs in idle gaps; the newest of each GPU.
CREATE TABLE gpu_checks (
    uuid TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    -- Number of the event that says it.
    seq INTEGER NOT NULL,
    node INTEGER NOT NULL,
    -- The report as it came: results, trouble, why it was stopped.
    report TEXT NOT NULL,
    PRIMARY KEY (uuid, seq)
) WITHOUT ROWID;

-- Forecast starts, and what became of them.
CREATE TABLE forecasts (
    job INTEGER NOT NULL,
    -- How old the job was: 0 newly submitted, 1 after 10 minutes, 2 after 4 hours, 3 after 16.
    age INTEGER NOT NULL,
    partition TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    -- When it starts if everything takes as long as its like did of late, and if everything takes as long as it may.
    expected_ms INTEGER NOT NULL,
    at_limits_ms INTEGER NOT NULL,
    -- NULL: too little was known.
    earliest_ms INTEGER,
    latest_ms INTEGER,
    -- 1: it stands for those that were forecast with it, and is learned from.
    sampled INTEGER NOT NULL,
    -- NULL while the job waits.
    ended_ms INTEGER,
    -- 1 it started, 0 it left the queue without.
    started INTEGER,
    PRIMARY KEY (job, age)
) WITHOUT ROWID;
CREATE INDEX forecasts_open ON forecasts (job) WHERE ended_ms IS NULL;
CREATE INDEX forecasts_ended ON forecasts (ended_ms) WHERE ended_ms IS NOT NULL;

-- Who changed accounts, users, QOS and reservations: few among very many events.
CREATE INDEX events_policy ON events (seq) WHERE kind = 'policy_changed';
