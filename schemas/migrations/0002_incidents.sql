-- One row per update of a verdict; the highest update number stays.
--
-- ReplacingMergeTree merges inside one partition only, so the partition comes from `opened`, which an
-- update does not move. The views read with FINAL, which also joins rows across partitions.
--
-- TTL counts from when the row was written, not from when the fault was: a recording of last year that
-- is replayed today is not deleted while it is read.

CREATE TABLE IF NOT EXISTS tocsin.incidents
(
    verdict_id     String CODEC(ZSTD(1)),
    update_number  UInt32 CODEC(T64, ZSTD(1)),
    cluster        LowCardinality(String),
    job_id         String CODEC(ZSTD(1)),
    attempt        UInt32 CODEC(T64, ZSTD(1)),
    state          LowCardinality(String),
    fault          LowCardinality(String),
    cause          LowCardinality(String),
    cause_meaning  LowCardinality(String),
    reason         LowCardinality(String),
    action         LowCardinality(String),
    confidence     Float64 CODEC(ZSTD(1)) COMMENT '0 to 1',
    suspects       Array(String) CODEC(ZSTD(1)) COMMENT 'names of the hosts (ranks without a topology); [] = nobody',
    suspect_ranks  Array(Array(Int32)) CODEC(ZSTD(1)) COMMENT 'beside suspects: ranks singled out, [] = the whole host',
    suspects_json  String CODEC(ZSTD(1)),
    common         String CODEC(ZSTD(1)) COMMENT 'what several suspects share, e.g. leaf leaf3; empty = nothing',
    machine        String CODEC(ZSTD(1)) COMMENT 'the suspects in words',
    onset          DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    opened         DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'detected of the first update',
    detected       DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'stream time that completed this update',
    expires        DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'no action of this verdict after it',
    updated        DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when this row was written',
    evidence_json  String CODEC(ZSTD(1)),
    evidence_text  Array(String) CODEC(ZSTD(1)) COMMENT 'one sentence per piece of evidence, strongest first',
    summary        String CODEC(ZSTD(1)) COMMENT 'the incident in one sentence'
)
ENGINE = ReplacingMergeTree(update_number)
PARTITION BY toYYYYMM(opened)
ORDER BY (cluster, job_id, verdict_id)
TTL toDateTime(updated) + INTERVAL 400 DAY;
