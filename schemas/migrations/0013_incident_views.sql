-- What an SRE asks of the incidents: docs/queries.md has the queries. All views leave canaries out.

-- Alarms are counted by the detector of the strongest evidence, and by the version of its model.
ALTER TABLE tocsin.incidents
    ADD COLUMN IF NOT EXISTS detector LowCardinality(String) DEFAULT JSONExtractString(evidence_json, 1, 'detector')
    COMMENT 'detector of the strongest evidence';
ALTER TABLE tocsin.incidents
    ADD COLUMN IF NOT EXISTS model_version LowCardinality(String) DEFAULT ''
    COMMENT 'version of that detector''s model; empty = it has none, or the row is older than this column';

-- Each incident with its times, and what people said of it.
CREATE OR REPLACE VIEW tocsin.incident_times AS
SELECT
    i.cluster AS cluster,
    i.job_id AS job,
    i.attempt AS attempt,
    i.verdict_id AS verdict_id,
    i.machine AS machine,
    arrayMap(s -> s.2, arrayFilter(s -> s.1 = 'host',
        JSONExtract(i.suspects_json, 'Array(Tuple(kind String, name String))'))) AS hosts,
    i.fault AS fault,
    i.cause AS cause,
    i.state AS state,
    i.reason AS reason,
    i.action AS action,
    i.confidence AS confidence,
    i.detector AS detector,
    i.model_version AS model_version,
    toDateTime64(i.onset, 3, 'UTC') AS since,
    toDateTime64(i.opened, 3, 'UTC') AS opened,
    if(u.confirmations > 0, toDateTime64(u.first_confirmed, 3, 'UTC'), NULL) AS confirmed,
    if(i.state IN ('open', 'confirmed'), NULL, toDateTime64(i.detected, 3, 'UTC')) AS ended,
    u.confirmations > 0 OR i.state = 'confirmed' AS was_confirmed,
    greatest(0, toUnixTimestamp64Nano(i.opened) - toUnixTimestamp64Nano(i.onset)) / 1e9 AS seconds_to_open,
    if(u.confirmations > 0,
        greatest(0, toUnixTimestamp64Nano(u.first_confirmed) - toUnixTimestamp64Nano(i.onset)) / 1e9,
        NULL) AS seconds_to_confirm,
    multiIf(f.verdict_id = '', '', f.is_true, 'right', 'wrong') AS judgement,
    f.note AS note,
    f.actor AS judged_by,
    i.summary AS summary
FROM tocsin.incidents AS i FINAL
LEFT JOIN
(
    SELECT
        verdict_id,
        countIf(state = 'confirmed') AS confirmations,
        minIf(detected, state = 'confirmed') AS first_confirmed
    FROM tocsin.incident_updates FINAL
    GROUP BY verdict_id
) AS u ON u.verdict_id = i.verdict_id
LEFT JOIN (SELECT cluster, verdict_id, is_true, note, actor FROM tocsin.feedback FINAL) AS f
    ON f.cluster = i.cluster AND f.verdict_id = i.verdict_id
WHERE i.reason != 'canary';

-- A row for each host that an incident names.
CREATE OR REPLACE VIEW tocsin.host_incidents AS
SELECT * EXCEPT (hosts, host_name), host_name AS host
FROM (SELECT *, hosts AS host_name FROM tocsin.incident_times)
ARRAY JOIN host_name;

-- Hosts that were named with reason at least twice within 90 days, in whatever jobs. What was taken back, what a
-- person judged wrong and what hurt no job does not count.
CREATE OR REPLACE VIEW tocsin.repeat_offenders AS
SELECT
    cluster,
    host,
    count() AS incidents,
    countIf(judgement = 'right') AS upheld,
    uniqExact(job, attempt) AS jobs,
    arraySort(groupUniqArray(toString(cause))) AS causes,
    min(since) AS first,
    max(since) AS last
FROM tocsin.host_incidents
WHERE was_confirmed AND state != 'cancelled' AND judgement != 'wrong' AND fault != 'degraded'
    AND since > now() - INTERVAL 90 DAY
GROUP BY cluster, host
HAVING incidents >= 2;

-- What named a machine and should not have: a person said so, or it was confirmed and then taken back.
CREATE OR REPLACE VIEW tocsin.false_accusations AS
SELECT
    if(judgement = 'wrong', 'judged wrong', 'taken back') AS how_known,
    note,
    judged_by,
    * EXCEPT (note, judged_by)
FROM tocsin.incident_times
WHERE notEmpty(hosts) AND fault != 'degraded'
    AND (judgement = 'wrong' OR (judgement != 'right' AND was_confirmed AND state = 'cancelled'));

-- How much was watched: minutes of a host with samples, as days. Counted to within a percent.
CREATE OR REPLACE VIEW tocsin.machine_days AS
SELECT
    cluster,
    toDate(minute, 'UTC') AS day,
    uniqCombined64(host) AS hosts,
    uniqCombined64(host, minute) / 1440 AS machine_days
FROM tocsin.host_health FINAL
WHERE samples > 0
GROUP BY cluster, day;

-- How often machines were named, by who saw it. Divide by machine_days.
CREATE OR REPLACE VIEW tocsin.alarms_by_detector AS
SELECT
    cluster,
    toDate(opened, 'UTC') AS day,
    detector,
    model_version,
    count() AS alarms,
    countIf(was_confirmed) AS confirmed_alarms,
    countIf(judgement = 'wrong' OR (judgement = '' AND was_confirmed AND state = 'cancelled')) AS false_alarms
FROM tocsin.incident_times
WHERE notEmpty(hosts) AND fault != 'degraded'
GROUP BY cluster, day, detector, model_version;
