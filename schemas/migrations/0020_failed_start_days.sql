-- The starts of a cluster's day, those that failed apart.

-- What starts took of a cluster's GPU time, by day (UTC), those that never trained included. Times over midnight count on
-- both days. Attempts that told no number of GPUs count in neither. Starts are told sooner than an attempt's times: an
-- attempt lasted at least until its training began, or its start was over. `failed_starts` and `failed_gpu_hours` are parts
-- of `starts` and `start_up_gpu_hours`: those that came to no step of a job that tells its steps.
CREATE OR REPLACE VIEW tocsin.startup_by_day AS
SELECT
    cluster,
    day,
    countIf(is_start AND is_first_day) AS starts,
    countIf(is_start AND is_first_day AND is_failed) AS failed_starts,
    sumIf(gpu_seconds, is_start) / 3600 AS start_up_gpu_hours,
    sumIf(gpu_seconds, is_start AND is_failed) / 3600 AS failed_gpu_hours,
    sumIf(gpu_seconds, NOT is_start) / 3600 AS allocated_gpu_hours,
    if(allocated_gpu_hours > 0, start_up_gpu_hours / allocated_gpu_hours, 0) AS start_up_ratio
FROM
(
    SELECT
        cluster,
        is_start,
        is_failed,
        toDate('1970-01-01') + arrayJoin(range(intDiv(since_ns, 86400000000000), intDiv(until_ns, 86400000000000) + 1)) AS day,
        day = toDate(fromUnixTimestamp64Nano(since_ns, 'UTC')) AS is_first_day,
        gpus * greatest(0, least(until_ns, (toInt64(toUInt16(day)) + 1) * 86400000000000)
            - greatest(since_ns, toInt64(toUInt16(day)) * 86400000000000)) / 1e9 AS gpu_seconds
    FROM
    (
        SELECT
            cluster, true AS is_start, s.is_failed AS is_failed, gpus, toUnixTimestamp64Nano(s.began) AS since_ns,
            toUnixTimestamp64Nano(greatest(s.trained, s.over)) AS until_ns
        FROM tocsin.startup AS s FINAL
        WHERE stage = '' AND start_up_seconds > 0
        UNION ALL
        SELECT
            e.cluster AS cluster, false AS is_start, false AS is_failed, e.gpus AS gpus, toUnixTimestamp64Nano(e.began) AS since_ns,
            greatest(toUnixTimestamp64Nano(e.until), t.start_until_ns) AS until_ns
        FROM (SELECT cluster, job_id, attempt, gpus, began, until FROM tocsin.ettr FINAL WHERE gpus > 0) AS e
        LEFT JOIN
        (
            SELECT cluster, job_id, attempt, max(toUnixTimestamp64Nano(greatest(trained, over))) AS start_until_ns
            FROM tocsin.startup FINAL
            WHERE stage = '' AND start_up_seconds > 0
            GROUP BY cluster, job_id, attempt
        ) AS t ON e.cluster = t.cluster AND e.job_id = t.job_id AND e.attempt = t.attempt
    )
)
GROUP BY cluster, day;
