# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts: one line per phase with its seconds; what the phase prints goes to the file $log.

# phase LABEL COMMAND...: runs the command with `set -e` in force; on failure prints the end of its log and exits with
# its status. To be called as a plain command: within `if` or `||` bash ignores `set -e`.
phase() {
  local label=$1 started=$SECONDS status first_line
  shift
  mkdir -p "$(dirname "${log:?}")"
  touch "$log"
  first_line=$(($(wc -l <"$log") + 1))
  printf '%s ... ' "$label"
  printf '== %s\n' "$label" >>"$log"
  set +e
  (
    set -e
    "$@"
  ) </dev/null >>"$log" 2>&1
  status=$?
  set -e
  if ((status == 0)); then
    printf '%d s\n' $((SECONDS - started))
    return
  fi
  printf 'failed after %d s (status %d). The end of %s:\n' $((SECONDS - started)) "$status" "$log"
  tail -n +"$first_line" "$log" | tail -n 60
  exit "$status"
}

# usage SCRIPT: prints the comment block at the top of a script, which is its help text.
usage() {
  awk 'NR > 2 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$1"
}

# Parallel compilations: one per core, but no more than memory allows at 2 GiB each.
build_jobs() {
  local by_memory
  by_memory=$(awk '/^MemAvailable:/ { print int($2 / 2097152) }' /proc/meminfo)
  echo $((by_memory < 1 ? 1 : by_memory < $(nproc) ? by_memory : $(nproc)))
}

# Lets Open MPI run as root (it refuses by default), share cores when there are fewer than ranks, and leave the binding
# of threads to the application. Other MPI libraries ignore these variables.
export_mpi_settings() {
  if ((EUID == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  # Containers often forbid one process to read another's memory, which Open MPI's shared-memory transport tries first.
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
}
