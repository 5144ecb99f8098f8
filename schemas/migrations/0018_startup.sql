-- What each start of an attempt took: one row for the whole of it (stage '') and one for each stage.
--
-- The engine tells a start every ten seconds while it goes on, and when training begins; the newest rows stay. GPU time
-- counts until training, and each instant of each GPU counts once: the sums of `own_gpu_seconds` and
-- `waiting_gpu_seconds` over the rows of a start are `start_up_seconds * gpus`. `start_up_seconds` is that of `ettr`.

CREATE TABLE IF NOT EXISTS tocsin.startup
(
    cluster              LowCardinality(String),
    job_id               String CODEC(ZSTD(1)),
    attempt              UInt32 CODEC(T64, ZSTD(1)),
    began                DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'first hello or begin of a stage',
    start_kind           LowCardinality(String) COMMENT 'full or hot, empty for the whole start',
    stage                String CODEC(ZSTD(1)) COMMENT 'empty: the whole start; its own GPU time is told by no stage',
    told                 DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'stream time of this row',
    trained              DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'begin of the first step, 1970 = none',
    start_up_seconds     Float64 CODEC(ZSTD(1)) COMMENT 'began to trained, 0 = it has not trained',
    hosts                UInt32 CODEC(T64, ZSTD(1)) COMMENT 'hosts of the attempt',
    gpus                 UInt32 CODEC(T64, ZSTD(1)) COMMENT 'ranks of the attempt',
    stage_began          DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'first begin on any host, 1970 = unknown',
    stage_ended          DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'last end on any host so far, 1970 = none',
    stage_hosts          UInt32 CODEC(T64, ZSTD(1)) COMMENT 'hosts that are or have been in it',
    open_hosts           UInt32 CODEC(T64, ZSTD(1)) COMMENT 'hosts that have begun and not ended',
    lost_hosts           UInt32 CODEC(T64, ZSTD(1)) COMMENT 'hosts past the stage whose mark is missing',
    median_seconds       Float64 CODEC(ZSTD(1)) COMMENT 'of the hosts that have ended, -1 = none has',
    slowest_host         String CODEC(ZSTD(1)),
    slowest_began        DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when it began, 1970 = unknown',
    slowest_ended        DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'when it ended, 1970 = it has not',
    last_host            String CODEC(ZSTD(1)) COMMENT 'the host that ended last',
    saved_gpu_seconds    Float64 CODEC(ZSTD(1)) COMMENT 'GPU time that the job would have saved without that host',
    own_gpu_seconds      Float64 CODEC(ZSTD(1)) COMMENT 'hosts were in the stage',
    waiting_gpu_seconds  Float64 CODEC(ZSTD(1)) COMMENT 'hosts had ended it and waited for the last one',
    cache_hit_ratio      Float64 CODEC(ZSTD(1)) COMMENT 'mean of what processes told, 0 to 1; -1 = nothing was told',
    written              DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(told)
ORDER BY (cluster, job_id, attempt, began, start_kind, stage)
TTL toDateTime(written) + INTERVAL 400 DAY;

-- How many GPUs an attempt has, so that its times can be counted in GPU-hours.
ALTER TABLE tocsin.ettr
    ADD COLUMN IF NOT EXISTS gpus UInt32 CODEC(T64, ZSTD(1)) COMMENT 'ranks of the attempt, 0 = not told' AFTER last_step;

-- What starts took of a cluster's GPU time, by day (UTC): the share that Bootseer measures. Times over midnight count on
-- both days. Attempts that told no number of GPUs count in neither. Starts are told sooner than an attempt's times: an
-- attempt lasted at least until its training began.
CREATE OR REPLACE VIEW tocsin.startup_by_day AS
SELECT
    cluster,
    day,
    countIf(is_start AND is_first_day) AS starts,
    sumIf(gpu_seconds, is_start) / 3600 AS start_up_gpu_hours,
    sumIf(gpu_seconds, NOT is_start) / 3600 AS allocated_gpu_hours,
    if(allocated_gpu_hours > 0, start_up_gpu_hours / allocated_gpu_hours, 0) AS start_up_ratio
FROM
(
    SELECT
        cluster,
        is_start,
        toDate('1970-01-01') + arrayJoin(range(intDiv(since_ns, 86400000000000), intDiv(until_ns, 86400000000000) + 1)) AS day,
        day = toDate(fromUnixTimestamp64Nano(since_ns, 'UTC')) AS is_first_day,
        gpus * greatest(0, least(until_ns, (toInt64(toUInt16(day)) + 1) * 86400000000000)
            - greatest(since_ns, toInt64(toUInt16(day)) * 86400000000000)) / 1e9 AS gpu_seconds
    FROM
    (
        SELECT
            cluster, true AS is_start, gpus, toUnixTimestamp64Nano(s.began) AS since_ns,
            toUnixTimestamp64Nano(s.trained) AS until_ns
        FROM tocsin.startup AS s FINAL
        WHERE stage = '' AND start_up_seconds > 0
        UNION ALL
        SELECT
            e.cluster AS cluster, false AS is_start, e.gpus AS gpus, toUnixTimestamp64Nano(e.began) AS since_ns,
            greatest(toUnixTimestamp64Nano(e.until), t.trained_ns) AS until_ns
        FROM (SELECT cluster, job_id, attempt, gpus, began, until FROM tocsin.ettr FINAL WHERE gpus > 0) AS e
        LEFT JOIN
        (
            SELECT cluster, job_id, attempt, max(toUnixTimestamp64Nano(trained)) AS trained_ns
            FROM tocsin.startup FINAL
            WHERE stage = '' AND start_up_seconds > 0
            GROUP BY cluster, job_id, attempt
        ) AS t ON e.cluster = t.cluster AND e.job_id = t.job_id AND e.attempt = t.attempt
    )
)
GROUP BY cluster, day;
