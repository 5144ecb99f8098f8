-- What people tell tocsin: whether a verdict was right, and which work is planned.

-- The latest judgement of each verdict.
CREATE TABLE IF NOT EXISTS tocsin.feedback
(
    cluster     LowCardinality(String),
    verdict_id  String CODEC(ZSTD(1)),
    is_true     Bool COMMENT 'whether the verdict was right',
    note        String CODEC(ZSTD(1)) COMMENT 'why, in the words of the person',
    actor       LowCardinality(String) COMMENT 'who says so',
    ts          DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when it was said',
    written     DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(ts)
ORDER BY (cluster, verdict_id)
TTL written + INTERVAL 400 DAY;

-- The latest word on each planned work; one that is ended early has an earlier end.
CREATE TABLE IF NOT EXISTS tocsin.maintenance
(
    maintenance_id  String CODEC(ZSTD(1)),
    cluster         LowCardinality(String),
    target_kind     LowCardinality(String) COMMENT 'host, leaf or job',
    target          String CODEC(ZSTD(1)),
    begins          DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    ends            DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'first moment after the work',
    reason          String CODEC(ZSTD(1)) COMMENT 'what is done, in the words of the person',
    actor           LowCardinality(String) COMMENT 'who said it last',
    ts              DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when it was said',
    written         DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(ts)
ORDER BY (cluster, maintenance_id)
TTL written + INTERVAL 400 DAY;
