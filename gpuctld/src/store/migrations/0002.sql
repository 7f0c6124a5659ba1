-- Schema 2. Tasks that were cancelled before they had a record: accounting finds their arrays by the time of it.

ALTER TABLE arrays ADD COLUMN cancelled_ms INTEGER;
UPDATE arrays SET cancelled_ms =
    (SELECT max(at) FROM events WHERE events.job = arrays.id AND kind = 'tasks_cancelled');
CREATE INDEX arrays_cancelled ON arrays (cancelled_ms) WHERE cancelled_ms IS NOT NULL;
