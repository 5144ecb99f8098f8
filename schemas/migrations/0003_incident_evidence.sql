-- What a human needs to believe an incident: per cited metric the suspect's series and its peers'
-- median and 5 and 95 %, from 5 minutes before onset. Writing a point again replaces it.

CREATE TABLE IF NOT EXISTS tocsin.incident_evidence
(
    verdict_id      String CODEC(ZSTD(1)),
    metric          LowCardinality(String),
    component_kind  LowCardinality(String),
    component       String CODEC(ZSTD(1)),
    ts              DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    suspect_value   Float64 CODEC(Gorilla, ZSTD(1)) COMMENT 'in the unit of the metric; nan = no sample',
    peer_median     Float64 CODEC(Gorilla, ZSTD(1)),
    peer_p05        Float64 CODEC(Gorilla, ZSTD(1)),
    peer_p95        Float64 CODEC(Gorilla, ZSTD(1)),
    peer_count      UInt32 CODEC(T64, ZSTD(1)),
    written         DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ts)
ORDER BY (verdict_id, metric, component_kind, component, ts)
TTL written + INTERVAL 400 DAY;
