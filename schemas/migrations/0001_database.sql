-- The database, and the list of what was applied to it.
-- Every statement of every migration may run twice: a program that dies half way starts the file again.

CREATE DATABASE IF NOT EXISTS tocsin;

CREATE TABLE IF NOT EXISTS tocsin.schema_migrations
(
    number     UInt32,
    name       String,
    sha256     FixedString(64),
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(applied_at)
ORDER BY number;
