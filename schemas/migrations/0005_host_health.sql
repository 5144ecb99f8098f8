-- Per job, host and minute: how well it was watched, and how far from its peers it was.
-- Counts only grow within a minute, so the row with the largest sum is the latest, whatever came last.

CREATE TABLE IF NOT EXISTS tocsin.host_health
(
    cluster       LowCardinality(String),
    job_id        LowCardinality(String),
    host          LowCardinality(String),
    minute        DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
    attempt       UInt32 CODEC(T64, ZSTD(1)),
    samples       UInt32 CODEC(T64, ZSTD(1)),
    late          UInt32 CODEC(T64, ZSTD(1)) COMMENT 'records that came after their slice was closed',
    gaps          UInt32 CODEC(T64, ZSTD(1)) COMMENT 'metric slices without a frame of this host',
    worst_score   Float64 CODEC(Gorilla, ZSTD(1)) COMMENT '1.0 is the alarm line of its detector',
    worst_metric  LowCardinality(String),
    revision      UInt64 MATERIALIZED samples + late + gaps CODEC(T64, ZSTD(1)),
    written       DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(revision)
PARTITION BY toYYYYMM(minute)
ORDER BY (cluster, job_id, host, minute, attempt)
TTL written + INTERVAL 60 DAY;
