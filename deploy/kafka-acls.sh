#!/bin/sh
# The rights of each Kafka user, as docs/deploy.md names them. It asks Kafka's own kafka-acls.sh:
#   BOOTSTRAP=HOST:PORT CONFIG=admin.properties PREFIX=tocsin deploy/kafka-acls.sh
# What is granted already stays as it is. Nothing is taken away.
set -eu
prefix=${PREFIX:-tocsin}

grant() { # USER, then what kafka-acls.sh takes
  user=$1
  shift
  kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$CONFIG" \
    --add --allow-principal "User:$user" "$@"
}

# Agents write what hosts say, and read nothing.
for topic in frames steps collectives events clock; do
  grant tocsin-agent --operation Write --operation Describe --topic "$prefix.$topic"
done

# Flink, controller, alerts, ticker and sink.
for operation in Read Write Describe Create Alter DescribeConfigs AlterConfigs; do
  grant tocsin --operation "$operation" --topic "$prefix." --resource-pattern-type prefixed
done
for group in flink sink-clickhouse sink-clickhouse.reports controller alerts; do
  grant tocsin --operation Read --group "$prefix.$group"
done
for name in flink controller alerts; do
  grant tocsin --operation Write --operation Describe --transactional-id "$prefix.$name" \
    --resource-pattern-type prefixed
done

# Executors read actions and say what became of them; they join no group and write in no transaction.
grant tocsin-executor --operation Read --operation Describe --topic "$prefix.actions"
grant tocsin-executor --operation Write --operation Describe --topic "$prefix.action-acks"

# People who approve, deny and cancel (tocsin actions), plan work and judge (docs/notes.md).
grant tocsin-operator --operation Read --operation Describe --topic "$prefix.actions"
grant tocsin-operator --operation Write --operation Describe --topic "$prefix.action-acks"
grant tocsin-operator --operation Write --operation Describe --topic "$prefix.operator-notes"
grant tocsin-operator --operation Read --operation Describe --topic "$prefix.operator-answers"
grant tocsin-operator --operation Read --operation Describe --topic "$prefix.notes-taken"
