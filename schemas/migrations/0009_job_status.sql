-- The newest state of each attempt of a job, as the engine tells it every ten seconds of event time.
-- The age of `ts` of the newest row says whether anything is judged now.

CREATE TABLE IF NOT EXISTS tocsin.job_status
(
    cluster         LowCardinality(String),
    job_id          String CODEC(ZSTD(1)),
    attempt         UInt32 CODEC(T64, ZSTD(1)),
    ts              DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'event time of the state',
    known           Bool COMMENT 'false: the engine has forgotten the attempt',
    ended           Bool,
    hosts           UInt32 CODEC(T64, ZSTD(1)),
    ranks           UInt32 CODEC(T64, ZSTD(1)),
    stepping_ranks  UInt32 CODEC(T64, ZSTD(1)),
    max_step        Int64 CODEC(T64, ZSTD(1)) COMMENT '-1 = none known',
    abstained       Array(String) CODEC(ZSTD(1)) COMMENT 'reason and how often no verdict was given for it',
    open_verdicts   UInt32 CODEC(T64, ZSTD(1)),
    status_json     String CODEC(ZSTD(1)) COMMENT 'what tocsin status --json says of the attempt',
    models_json     String CODEC(ZSTD(1)) COMMENT 'the models that the engine uses',
    written         DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(ts)
ORDER BY (cluster, job_id, attempt)
TTL toDateTime(written) + INTERVAL 30 DAY;
