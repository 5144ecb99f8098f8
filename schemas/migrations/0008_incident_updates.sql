-- One row per update of a verdict, renewals left out: the history that `tocsin incidents show` prints.
--
-- The table `incidents` keeps the highest update only. Writing an update again replaces its row.

CREATE TABLE IF NOT EXISTS tocsin.incident_updates
(
    verdict_id     String CODEC(ZSTD(1)),
    update_number  UInt32 CODEC(T64, ZSTD(1)),
    cluster        LowCardinality(String),
    job_id         String CODEC(ZSTD(1)),
    attempt        UInt32 CODEC(T64, ZSTD(1)),
    state          LowCardinality(String),
    reason         LowCardinality(String),
    fault          LowCardinality(String),
    cause          LowCardinality(String),
    machine        String CODEC(ZSTD(1)) COMMENT 'the suspects in words',
    action         LowCardinality(String) COMMENT 'what this update proposes',
    confidence     Float64 CODEC(ZSTD(1)) COMMENT '0 to 1',
    evidence       String CODEC(ZSTD(1)) COMMENT 'the strongest piece of evidence as one sentence',
    evidence_ids   Array(String) CODEC(ZSTD(1)),
    witnesses      Array(String) CODEC(ZSTD(1)) COMMENT 'who saw it, as host:kind',
    detected       DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'stream time that completed this update',
    written        DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(written)
PARTITION BY toYYYYMM(detected)
ORDER BY (verdict_id, update_number)
TTL written + INTERVAL 400 DAY;
