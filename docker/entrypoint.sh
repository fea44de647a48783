#!/bin/sh
# The volume is empty the first time: lay the instance's configuration, then run what was asked.
set -eu
mkdir -p "$DAGSTER_HOME" "$GEORAG_HOME"
[ -f "$DAGSTER_HOME/dagster.yaml" ] || cp /app/dagster.yaml "$DAGSTER_HOME/dagster.yaml"
exec "$@"
