-- Canaries measure how long a verdict takes to get here; they are no incidents.

-- The latest update of every verdict, in whatever state, with what became of its latest action.
CREATE OR REPLACE VIEW tocsin.incidents_all AS
SELECT
    transform(i.fault,
        ['fail_stop', 'hang', 'fail_slow', 'silent_corruption', 'degraded'],
        ['stopped', 'hangs', 'slow', 'computes wrongly', 'degraded'],
        toString(i.fault)) AS what,
    toDateTime64(i.onset, 3, 'UTC') AS since,
    i.machine AS machine,
    arrayStringConcat(arrayMap(r -> toString(r), arraySort(arrayDistinct(arrayFlatten(i.suspect_ranks)))), ', ') AS ranks,
    if(i.cause_meaning = '', toString(i.cause), concat(i.cause, ': ', i.cause_meaning)) AS why,
    multiIf(
        a.state = '' AND i.action = 'none', 'none',
        a.state = '', concat(i.action, ' (proposed)'),
        concat(a.kind, if(a.target = '', '', concat(' ', a.target)), ' (', a.state, if(a.dry_run, ', dry run', ''), ')')
    ) AS action,
    arrayStringConcat(i.evidence_text, '; ') AS evidence,
    i.confidence AS confidence,
    i.job_id AS job,
    i.verdict_id AS verdict_id,
    i.summary AS summary,
    i.state AS state,
    i.fault AS fault,
    i.cause AS cause,
    i.reason AS reason,
    i.cluster AS cluster,
    i.attempt AS attempt,
    i.update_number AS update_number,
    i.common AS common,
    i.opened AS opened,
    i.detected AS detected,
    i.evidence_text AS evidence_list
FROM tocsin.incidents AS i FINAL
LEFT JOIN
(
    SELECT
        verdict_id,
        argMax(toString(kind), (update_number, changed)) AS kind,
        argMax(target, (update_number, changed)) AS target,
        argMax(toString(state), (update_number, changed)) AS state,
        argMax(dry_run, (update_number, changed)) AS dry_run
    FROM tocsin.actions FINAL
    GROUP BY verdict_id
) AS a ON a.verdict_id = i.verdict_id
WHERE i.reason != 'canary';
