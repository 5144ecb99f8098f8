-- Which incident of the fleet stands for which verdict: that verdict pages nobody. One row per verdict, the newest word.

CREATE TABLE IF NOT EXISTS tocsin.fleet_covers
(
    cluster      LowCardinality(String),
    verdict_id   String CODEC(ZSTD(1)),
    incident_id  String CODEC(ZSTD(1)) COMMENT 'the incident of the fleet; empty: none stands for it any more',
    ts           DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'since when',
    written      DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(ts)
ORDER BY (cluster, verdict_id)
TTL written + INTERVAL 400 DAY;
