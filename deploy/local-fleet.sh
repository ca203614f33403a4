#!/usr/bin/env bash
# Starts a whole fleet on loopback, to play with: a directory, holders and a requester. Each is a
# ckvd of its own in the background. Builds if needed. The directory keeps its corpora in
# DIR/directory until the next "up".
#   deploy/local-fleet.sh up --holders N --state DIR [--fabrics shm,tcp] [--capacity 1GiB]
#       prints CKV_REQUESTER=host:port and CKV_DIRECTORY=host:port on stdout. If it fails, it
#       prints there what unsets both and makes eval fail
#   deploy/local-fleet.sh down --state DIR
#       ends the processes by pid and waits for them. If one was dead already or does not end in
#       time, shows its last log line and exits 1
#   deploy/local-fleet.sh status --state DIR
#       prints one line per process; exits 1 if one is dead
# Example:
#   eval "$(deploy/local-fleet.sh up --holders 3 --state /tmp/fleet)"; export CKV_REQUESTER CKV_DIRECTORY
#   build/release/bin/ckvctl status
#   deploy/local-fleet.sh down --state /tmp/fleet
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
ckvd=$repo/build/release/bin/ckvd
ready_timeout_s=30  # a daemon is ready in well under a second; a loaded machine gets its time
down_timeout_s=15   # the daemons' own drain takes at most 10

usage() {
  sed -n '2,15p' "$0" | sed 's/^# \{0,1\}//'
}

# wrong WHAT: usage goes to stderr, for a shell may eval what is on stdout.
wrong() {
  echo "local-fleet: $*" >&2
  usage >&2
  exit 2
}

help() {
  if [ "$command" = up ]; then
    usage >&2
    echo false
  else
    usage
  fi
  exit 0
}

die() {
  echo "local-fleet: $*" >&2
  exit 1
}

# A pid is ours only if the process it names runs our binary: pids are reused.
is_ours() {
  local exe
  exe=$(readlink "/proc/$1/exe" 2>/dev/null) || return 1
  [ "${exe% (deleted)}" = "$ckvd" ]
}

# start NAME ARGS...: starts one daemon in its own session, with log and pid in the state folder.
start() {
  local name=$1
  shift
  rm -f "$state/$name.ready"
  setsid "$ckvd" --name="$name" --listen=127.0.0.1:0 --ready-file="$state/$name.ready" "$@" \
    </dev/null >"$state/$name.log" 2>&1 &
  echo "$!" >"$state/$name.pid"
}

# await NAME: prints the address in its ready file; shows the log if the file never comes.
await() {
  local name=$1 pid deadline=$((SECONDS + ready_timeout_s))
  pid=$(<"$state/$name.pid")
  until [ -s "$state/$name.ready" ]; do
    if ! kill -0 "$pid" 2>/dev/null || [ $SECONDS -ge $deadline ]; then
      echo "local-fleet: $name did not start; its log:" >&2
      tail -n 20 "$state/$name.log" >&2
      down >&2 || true
      exit 1
    fi
    sleep 0.05
  done
  head -n 1 "$state/$name.ready"
}

up() {
  [[ $holders =~ ^[1-9][0-9]?$ ]] || die "--holders takes a number from 1 to 99, not '$holders'"
  mkdir -p "$state"
  if compgen -G "$state/*.pid" >/dev/null; then
    die "$state holds a fleet already; end it with: deploy/local-fleet.sh down --state $state"
  fi
  "$repo/deploy/build.sh" release ckvd ckvctl
  # Holders keep chunks in memory only, so corpora of an earlier fleet would be of nothing.
  rm -rf "$state/directory"
  start directory --role=directory --directory-path="$state/directory"
  local directory
  directory=$(await directory)
  for i in $(seq "$holders"); do
    start "holder-$i" --role=holder --directory="$directory" --fabrics="$fabrics" \
      --store-capacity="$capacity"
  done
  start requester --role=requester --directory="$directory" --fabrics="$fabrics"
  for i in $(seq "$holders"); do
    await "holder-$i" >/dev/null
  done
  local requester
  requester=$(await requester)
  echo "CKV_REQUESTER=$requester"
  echo "CKV_DIRECTORY=$directory"
}

# failed NAME WHAT: reports the failure, with the last line that the daemon wrote.
failed() {
  echo "local-fleet: $1 $2. Its last log line:" >&2
  tail -n 1 "$state/$1.log" >&2 || true
}

# The requester ends first, so that nothing asks holders that are going away; the directory last.
down() {
  local name pid code=0 deadline=$((SECONDS + down_timeout_s))
  [ -d "$state" ] || die "no such folder: $state"
  for name in requester $(cd "$state" && ls -- *.pid 2>/dev/null | sed 's/\.pid$//' | grep '^holder-') directory; do
    [ -f "$state/$name.pid" ] || continue
    pid=$(<"$state/$name.pid")
    if is_ours "$pid"; then
      kill -TERM "$pid" 2>/dev/null || true
      while is_ours "$pid" && [ $SECONDS -lt $deadline ]; do
        sleep 0.05
      done
      if is_ours "$pid"; then
        kill -KILL "$pid" 2>/dev/null || true
        failed "$name" "(pid $pid) did not drain in time; killed"
        code=1
      fi
    else
      failed "$name" "(pid $pid) was dead already"
      code=1
    fi
    rm -f "$state/$name.pid" "$state/$name.ready"
  done
  return $code
}

status() {
  local file name pid code=0
  for file in "$state"/*.pid; do
    [ -f "$file" ] || die "no fleet in $state"
    name=$(basename "$file" .pid)
    pid=$(<"$file")
    if is_ours "$pid"; then
      echo "$name pid $pid at $(head -n 1 "$state/$name.ready" 2>/dev/null || echo '(starting)')"
    else
      echo "$name is not running; see $state/$name.log"
      code=1
    fi
  done
  return $code
}

[ $# -ge 1 ] || wrong "no command"
command=$1
shift
if [ "$command" = up ]; then
  # What an earlier fleet exported must not reach it, or a fleet that took its ports.
  trap '[ $? -eq 0 ] || echo "unset CKV_REQUESTER CKV_DIRECTORY; false"' EXIT
fi
holders=3 state='' fabrics=shm,tcp capacity=1GiB
while [ $# -gt 0 ]; do
  case $1 in
    --holders | --state | --fabrics | --capacity)
      [ $# -ge 2 ] || wrong "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift 2
      ;;
    -h | --help) help ;;
    *) wrong "no such option: $1" ;;
  esac
done
case $command in
  up | down | status) ;;
  -h | --help) help ;;
  *) wrong "no such command: $command" ;;
esac
[ -n "$state" ] || wrong "--state DIR is missing"
case $command in
  up) up ;;
  down) down ;;
  status) status ;;
esac
