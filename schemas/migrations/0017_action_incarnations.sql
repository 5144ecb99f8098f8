-- On which boots, nodes and pods of its machines, and on which run in Slurm, an action rests.

ALTER TABLE tocsin.action_changes
    ADD COLUMN IF NOT EXISTS boot_ids Array(String) CODEC(ZSTD(1))
        COMMENT 'of hosts, in their order; empty: not known' AFTER hosts;
ALTER TABLE tocsin.action_changes
    ADD COLUMN IF NOT EXISTS node_uids Array(String) CODEC(ZSTD(1))
        COMMENT 'UIDs of the Kubernetes nodes, in the order of hosts' AFTER boot_ids;
ALTER TABLE tocsin.action_changes
    ADD COLUMN IF NOT EXISTS pods Array(String) CODEC(ZSTD(1))
        COMMENT 'UIDs of the pods of the job, else their names, in the order of hosts' AFTER node_uids;
ALTER TABLE tocsin.action_changes
    ADD COLUMN IF NOT EXISTS slurm_job_id String CODEC(ZSTD(1)) AFTER pods;
ALTER TABLE tocsin.action_changes
    ADD COLUMN IF NOT EXISTS slurm_restart_count Int32 DEFAULT -1 CODEC(ZSTD(1))
        COMMENT 'how often Slurm had requeued the job; -1: not known' AFTER slurm_job_id;

CREATE OR REPLACE VIEW tocsin.actions_now AS
SELECT * EXCEPT (written)
FROM tocsin.action_changes FINAL
ORDER BY cluster, action_id, revision DESC
LIMIT 1 BY cluster, action_id;
