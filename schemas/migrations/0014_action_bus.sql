-- What the controller decided and what executors said. `actions` has what engines propose; nobody executes that.

-- One row per change of an action; the highest revision of the highest epoch is its present form.
CREATE TABLE IF NOT EXISTS tocsin.action_changes
(
    cluster        LowCardinality(String),
    job_id         String CODEC(ZSTD(1)),
    attempt        UInt32 CODEC(T64, ZSTD(1)),
    action_id      String CODEC(ZSTD(1)),
    revision       UInt64 CODEC(T64, ZSTD(1)),
    epoch          UInt64 CODEC(T64, ZSTD(1)) COMMENT 'of the controller that published it',
    verdict_id     String CODEC(ZSTD(1)),
    update_number  UInt32 CODEC(T64, ZSTD(1)) COMMENT 'newest update of the verdict that it rests on',
    kind           LowCardinality(String),
    hosts          Array(String) CODEC(ZSTD(1)),
    target_kind    LowCardinality(String) COMMENT 'empty = the whole job',
    target         String CODEC(ZSTD(1)),
    cause          LowCardinality(String),
    rule           LowCardinality(String) COMMENT 'of the policy',
    budget_class   LowCardinality(String) COMMENT 'signal, driver and firmware',
    state          LowCardinality(String) COMMENT 'docs/actions.md has the states',
    reason         LowCardinality(String),
    detail         String CODEC(ZSTD(1)),
    actor          String CODEC(ZSTD(1)) COMMENT 'who approved, denied or cancelled it',
    holder         LowCardinality(String) COMMENT 'executor that has it',
    issued         DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    deadline       DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    changed        DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    written        DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(epoch)
PARTITION BY toYYYYMM(issued)
ORDER BY (cluster, job_id, action_id, revision)
TTL written + INTERVAL 400 DAY;

-- One row per message of an executor.
CREATE TABLE IF NOT EXISTS tocsin.action_acks
(
    cluster        LowCardinality(String),
    job_id         String CODEC(ZSTD(1)),
    attempt        UInt32 CODEC(T64, ZSTD(1)),
    action_id      String CODEC(ZSTD(1)),
    executor       LowCardinality(String),
    seq            UInt64 CODEC(T64, ZSTD(1)),
    epoch          UInt64 CODEC(T64, ZSTD(1)),
    kind           LowCardinality(String) COMMENT 'claimed, started, done, failed, refused, expired, blocked, undone',
    reason         LowCardinality(String),
    detail         String CODEC(ZSTD(1)),
    effects        Array(String) CODEC(ZSTD(1)) COMMENT 'names of what was changed',
    said           DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    written        DateTime('UTC') DEFAULT now('UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(written)
PARTITION BY toYYYYMM(said)
ORDER BY (cluster, job_id, action_id, executor, seq)
TTL written + INTERVAL 400 DAY;

-- The present form of each action.
CREATE OR REPLACE VIEW tocsin.actions_now AS
SELECT * EXCEPT (written)
FROM tocsin.action_changes FINAL
ORDER BY cluster, action_id, revision DESC
LIMIT 1 BY cluster, action_id;
