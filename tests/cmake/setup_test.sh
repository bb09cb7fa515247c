#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a copy of lib/cmake/setup where dpkg-query, apt-get, cmake and the like are stand-ins that note how they were
# called: setup_test.sh PART
#   arguments  --help, and arguments that do not exist
#   complete   everything is there: twice, nothing is installed
#   missing    one package of Debian's is not there: that one is installed, or named where only root may install
#   here       as complete, but with this machine's own packages and CMake
#   failing    an installation fails: its status and the end of its log
# Exit code 77: not on this system.
set -u

source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
machine=$(mktemp -d)
trap 'rm -rf "$machine"' EXIT
calls=$machine/calls
mkdir -p "$machine/bin" "$machine/tree/lib" "$machine/missing"
cp -R "$source_root/lib/cmake" "$machine/tree/lib/cmake"
: >"$calls"

# stand_in NAME <<< BODY: a program of the machine; it notes its call and then does BODY.
stand_in() {
  { printf '#!/bin/sh\necho "%s $*" >>"%s"\n' "$1" "$calls" && cat; } >"$machine/bin/$1"
  chmod +x "$machine/bin/$1"
}

stand_in cmake <<<'exit 0'
stand_in ninja <<<'exit 0'
stand_in c++ <<<'exit 0'
stand_in dpkg <<<'exit 0'
# Installs what it is told to.
stand_in apt-get <<<"for word; do rm -f '$machine/missing/'\"\$word\"; done"
# Every package that is asked for is installed, but those named in the folder `missing`.
stand_in dpkg-query <<<"for word; do case \$word in --*) ;; *) [ -e '$machine/missing/'\"\$word\" ] || echo \"\$word installed\" ;; esac; done"

fail() {
  printf 'FAILED: %s\noutput:\n%s\ncalls:\n' "$1" "$output"
  cat "$calls"
  exit 1
}
# run ARGUMENTS...: sets `code` and `output`.
run() {
  output=$(PATH=$machine/bin:$PATH "$machine/tree/lib/cmake/setup" "$@" 2>&1)
  code=$?
}
expect_code() { [[ $code -eq $1 ]] || fail "exit code $code, expected $1"; }
expect_text() { [[ $output == *"$1"* ]] || fail "no \"$1\""; }
expect_nothing_installed() { ! grep -q '^apt-get\|^dpkg ' "$calls" || fail "an installation was tried"; }

on_debian() {
  local ID='' VERSION_ID=''
  # shellcheck source=/dev/null
  [[ -r /etc/os-release ]] && source /etc/os-release
  [[ $ID == debian && ${VERSION_ID%%.*} -ge 12 ]]
}

case $1 in
  arguments)
    run --help
    expect_code 0
    expect_text "lib/cmake/setup [--for run|tests|ci]"
    expect_text "Exit codes:"
    run --fro tests
    expect_code 2
    expect_text "unknown argument '--fro'"
    run --for everything
    expect_code 2
    expect_text "--for takes run, tests or ci, not 'everything'"
    run --for
    [[ $code -ne 0 ]] || fail "--for without a value was taken"
    [[ ! -s $calls ]] || fail "programs were called before the arguments were read"
    ;;
  complete)
    for purpose in run tests ci; do
      run --for $purpose
      expect_code 0
      expect_nothing_installed
      [[ -z $output ]] || fail "nothing to say was expected"
    done
    ;;
  here)
    # What the build around this test found, setup finds too; it says where (Kokkos_ROOT).
    rm "$machine"/bin/{cmake,ninja,c++,dpkg-query}
    run
    for package in $(sed -n 's/^apt-get .* install //p' "$calls" | tr ' ' '\n' | grep -v '^-'); do
      dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || exit 77
    done
    expect_nothing_installed
    [[ $code -ne 2 ]] || exit 77 # a library is missing that the build was told to leave out
    expect_code 0
    run
    expect_code 0
    expect_nothing_installed
    ;;
  missing)
    on_debian || exit 77
    : >"$machine/missing/zlib1g-dev"
    run
    if ((EUID != 0)); then
      expect_code 2
      expect_text "has to install: zlib1g-dev"
      expect_nothing_installed
      exit 0
    fi
    expect_code 0
    expect_text "Installing 1 of Debian's packages ... "
    grep -q '^apt-get .*install .* zlib1g-dev$' "$calls" || fail "zlib1g-dev was not asked for"
    ! grep -q '^apt-get .*hwloc' "$calls" || fail "a package that is there was asked for"
    : >"$calls"
    run
    expect_code 0
    expect_nothing_installed
    ;;
  failing)
    on_debian && ((EUID == 0)) || exit 77
    : >"$machine/missing/zlib1g-dev"
    stand_in apt-get <<<'echo "E: no such mirror"; exit 100'
    run
    expect_code 100
    expect_text "failed after"
    expect_text "E: no such mirror"
    ;;
esac
