-- Hosts with at least two upheld incidents within 90 days, in whatever jobs.
--
-- An incident is upheld for a host if a person said that it was right (the last word counts), or if a check on the host
-- failed. It counts only with a cause that blames a machine, and not if it began under planned work on the host or its
-- job. What was cancelled counts only if a person upheld it afterwards. The list holds the causes that blame a machine.
CREATE OR REPLACE VIEW tocsin.repeat_offenders AS
SELECT
    cluster,
    host,
    count() AS incidents,
    countIf(is_by_person) AS by_people,
    uniqExact(job, attempt) AS jobs,
    arraySort(groupUniqArray(toString(cause))) AS causes,
    min(since) AS first,
    max(since) AS last
FROM
(
    SELECT
        h.cluster AS cluster,
        h.host AS host,
        h.job AS job,
        h.attempt AS attempt,
        h.verdict_id AS verdict_id,
        h.cause AS cause,
        h.since AS since,
        h.judgement = 'right' AND (h.state != 'cancelled' OR f.ts > h.ended) AS is_by_person,
        h.judgement = '' AND h.state != 'cancelled' AND has(u.seen, concat(h.host, ':check')) AS is_by_check
    FROM tocsin.host_incidents AS h
    LEFT JOIN (SELECT cluster, verdict_id, ts FROM tocsin.feedback FINAL) AS f
        ON f.cluster = h.cluster AND f.verdict_id = h.verdict_id
    LEFT JOIN
    (
        SELECT verdict_id, groupUniqArrayArray(witnesses) AS seen, max(reason = 'repeat_offender') AS is_count
        FROM tocsin.incident_updates FINAL
        GROUP BY verdict_id
    ) AS u ON u.verdict_id = h.verdict_id
    WHERE u.is_count = 0 AND h.since > now() - INTERVAL 90 DAY AND h.cause IN (
        'ecc_error', 'pcie_downgrade', 'nic_dropout', 'gpu_card_drop', 'nvlink_error', 'aoc_error',
        'gpu_execution_error', 'hdfs_error', 'machine_unreachable', 'power_cap', 'thermal_throttle',
        'cpu_contention', 'network_slow', 'unknown')
)
WHERE (is_by_person OR is_by_check) AND (cluster, verdict_id, host) NOT IN
(
    SELECT p.cluster, p.verdict_id, p.host
    FROM tocsin.host_incidents AS p
    INNER JOIN (SELECT cluster, target_kind, target, begins, ends FROM tocsin.maintenance FINAL) AS m
        ON m.cluster = p.cluster
    WHERE (m.target_kind = 'host' AND m.target = p.host OR m.target_kind = 'job' AND m.target = p.job)
        AND p.since >= m.begins AND p.since < m.ends
)
GROUP BY cluster, host
HAVING incidents >= 2;
