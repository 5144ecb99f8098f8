-- What each attempt of a job spent its wall time on; the engine tells it each minute and at the attempt's end.
--
-- The parts and `unattributed_seconds` sum to `wall_seconds`. An engine that lost its state tells a new row with a later
-- `began`; the old row stays.

CREATE TABLE IF NOT EXISTS tocsin.ettr
(
    cluster               LowCardinality(String),
    job_id                String CODEC(ZSTD(1)),
    attempt               UInt32 CODEC(T64, ZSTD(1)),
    began                 DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'first sign of the attempt',
    until                 DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'its end, or when this was told',
    told                  DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'stream time of this account',
    is_over               Bool COMMENT 'the attempt ended, or another one followed',
    wall_seconds          Float64 CODEC(ZSTD(1)),
    productive_seconds    Float64 CODEC(ZSTD(1)) COMMENT 'steps that were made for the first time',
    recomputed_seconds    Float64 CODEC(ZSTD(1)) COMMENT 'steps whose numbers were reached before',
    start_up_seconds      Float64 CODEC(ZSTD(1)) COMMENT 'first hello to the begin of the next step',
    detection_seconds     Float64 CODEC(ZSTD(1)) COMMENT 'onset of a standstill or death to its verdict',
    diagnosis_seconds     Float64 CODEC(ZSTD(1)) COMMENT 'verdict to its confirmation',
    idle_seconds          Float64 CODEC(ZSTD(1)) COMMENT 'announced phases and stopped processes, without steps',
    scheduling_seconds    Float64 CODEC(ZSTD(1)) COMMENT 'no process: until the next attempt',
    unattributed_seconds  Float64 CODEC(ZSTD(1)) COMMENT 'no pair of events tells anything of it',
    ettr_ratio            Float64 CODEC(ZSTD(1)) COMMENT 'productive share of the wall time, 0 to 1',
    steps                 UInt64 CODEC(T64, ZSTD(1)),
    recomputed_steps      UInt64 CODEC(T64, ZSTD(1)),
    last_step             Int64 CODEC(T64, ZSTD(1)) COMMENT '-1 = none',
    written               DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(told)
ORDER BY (cluster, job_id, attempt, began)
TTL toDateTime(written) + INTERVAL 400 DAY;

-- All attempts of a job together, from the first sign of the first to the end of the last. Time between two rows, while
-- no engine kept an account, is unattributed.
CREATE OR REPLACE VIEW tocsin.ettr_by_job AS
SELECT
    cluster,
    job_id AS job,
    uniqExact(attempt) AS attempts,
    min(e.began) AS began,
    max(e.until) AS until,
    argMax(e.is_over, (e.attempt, e.told)) AS is_over,
    (toUnixTimestamp64Nano(max(e.until)) - toUnixTimestamp64Nano(min(e.began))) / 1e9 AS wall_seconds,
    sum(e.productive_seconds) AS productive_seconds,
    sum(e.recomputed_seconds) AS recomputed_seconds,
    sum(e.start_up_seconds) AS start_up_seconds,
    sum(e.detection_seconds) AS detection_seconds,
    sum(e.diagnosis_seconds) AS diagnosis_seconds,
    sum(e.idle_seconds) AS idle_seconds,
    sum(e.scheduling_seconds) AS scheduling_seconds,
    greatest(0, wall_seconds - productive_seconds - recomputed_seconds - start_up_seconds - detection_seconds
        - diagnosis_seconds - idle_seconds - scheduling_seconds) AS unattributed_seconds,
    if(wall_seconds > 0, productive_seconds / wall_seconds, 0) AS ettr_ratio,
    sum(e.steps) AS steps,
    sum(e.recomputed_steps) AS recomputed_steps,
    max(e.last_step) AS last_step
FROM tocsin.ettr AS e FINAL
GROUP BY cluster, job_id;
