-- What people were told: one row per notice whose delivery ended, well or not. The watchdog's notices are left out.

CREATE TABLE IF NOT EXISTS tocsin.alerts_sent
(
    cluster        LowCardinality(String),
    job_id         String CODEC(ZSTD(1)),
    attempt        UInt32 CODEC(T64, ZSTD(1)),
    verdict_id     String CODEC(ZSTD(1)) COMMENT 'the verdict, or the summary of several',
    update_number  UInt32 CODEC(T64, ZSTD(1)) COMMENT 'the update of the verdict that was told',
    route          LowCardinality(String),
    receiver       LowCardinality(String),
    receiver_kind  LowCardinality(String) COMMENT 'alertmanager, pagerduty, slack, webhook',
    kind           LowCardinality(String) COMMENT 'firing, changed, resolved, taken_back, lapsed',
    severity       LowCardinality(String) COMMENT 'page, ticket, information',
    outcome        LowCardinality(String) COMMENT 'delivered, or the named reason why not',
    detail         String CODEC(ZSTD(1)) COMMENT 'what the adapter says, without secrets',
    tries          UInt32 CODEC(T64, ZSTD(1)),
    made           DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when the notice was made',
    sent           DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when its delivery ended',
    written        DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(written)
ORDER BY (cluster, job_id, verdict_id, route, made, kind)
TTL written + INTERVAL 400 DAY;
