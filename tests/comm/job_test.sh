#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a job that ends badly and checks how: job_test.sh WAY EXPECTED_CODE MESSAGE COUNT -- COMMAND...
# The job must end by itself within the time limit, with that exit code, and print MESSAGE exactly COUNT times in lines
# that begin with "deltaport: error: ".
way=$1 expected=$2 message=$3 count=$4
shift 5
output=$(timeout -k 5 60 "$@" "$way" 2>&1)
code=$?
echo "$output"
if [ "$expected" = nonzero ]; then
  [ "$code" -ne 0 ] && [ "$code" -ne 124 ] || { echo "FAILED: exit code $code"; exit 1; }
elif [ "$code" -ne "$expected" ]; then
  echo "FAILED: exit code $code, expected $expected"
  exit 1
fi
found=$(echo "$output" | grep -c "^deltaport: error: ")
[ "$found" -eq "$count" ] || { echo "FAILED: $found error lines, expected $count"; exit 1; }
[ "$count" -eq 0 ] || echo "$output" | grep -qF "deltaport: error: $message" || { echo "FAILED: no \"$message\""; exit 1; }
