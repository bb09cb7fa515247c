#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts a listening job, asks it to stop in one way, and checks that it says so and ends with code 85:
# signal_job_test.sh WAY COMMAND...
#   launcher-usr1   SIGUSR1 to the launcher, which forwards it
#   rank-term       SIGTERM to the last rank only
#   checkpoint-stop SIGUSR2 to the first rank (must go on), then the file STOP
way=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  cat "$folder/log"
  echo "FAILED: $1"
  kill -KILL "$job" 2>/dev/null
  exit 1
}
# Waits up to 30 s for a line that begins with $1.
wait_for() {
  tries=300
  until grep -q "^$1" "$folder/log"; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "no line \"$1\""
    sleep 0.1
  done
}
"$@" "$folder" >"$folder/log" 2>&1 &
job=$!
wait_for ready
ranks=$(sed -n 's/^ready //p' "$folder/log")
case $way in
  launcher-usr1)
    kill -USR1 "$job"
    cause=SIGUSR1
    ;;
  rank-term)
    kill -TERM "${ranks##* }"
    cause=SIGTERM
    ;;
  checkpoint-stop)
    kill -USR2 "${ranks%% *}"
    wait_for "checkpoint: SIGUSR2"
    touch "$folder/STOP"
    cause="file STOP"
    ;;
esac
wait "$job"
code=$?
[ "$code" -eq 85 ] || fail "exit code $code, expected 85"
grep -q "^stopped: $cause" "$folder/log" || fail "no line \"stopped: $cause\""
[ ! -e "$folder/STOP" ] || fail "the file STOP was left behind"
