-- What the scheduler was asked to do, and what became of it: one row per action, the latest state stays.

CREATE TABLE IF NOT EXISTS tocsin.actions
(
    verdict_id     String CODEC(ZSTD(1)),
    update_number  UInt32 CODEC(T64, ZSTD(1)) COMMENT 'the update of the verdict that asks',
    cluster        LowCardinality(String),
    job_id         String CODEC(ZSTD(1)),
    attempt        UInt32 CODEC(T64, ZSTD(1)),
    kind           LowCardinality(String),
    target_kind    LowCardinality(String) COMMENT 'empty = the whole job',
    target         String CODEC(ZSTD(1)),
    reason         LowCardinality(String),
    budget         LowCardinality(String),
    issued         DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    deadline       DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    state          LowCardinality(String) COMMENT 'proposed, accepted, done, refused, failed, cancelled, expired',
    changed        DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when it came into this state',
    detail         String CODEC(ZSTD(1)) COMMENT 'what the executor says',
    dry_run        Bool,
    written        DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(changed)
PARTITION BY toYYYYMM(issued)
ORDER BY (cluster, job_id, verdict_id, update_number, kind, target_kind, target)
TTL written + INTERVAL 400 DAY;
