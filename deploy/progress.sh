# shellcheck shell=bash
# Sourced by the scripts of this repository. Shows what is going on while a long command runs.
#
#   with_progress "building" LOGFILE command args...
#
# Runs the command with its output in LOGFILE. On a terminal one line shows the seconds so far and the command's last line;
# elsewhere such a line is printed every ten seconds. A command of under two seconds shows nothing. On failure the end of
# LOGFILE is printed and the command's exit status returned. Ctrl-C ends the command too.

if [ -t 1 ] && [ -z "${CI:-}" ]; then progress_on_terminal=1; else progress_on_terminal=0; fi

# The last line of a log that says something, cut to the terminal's width.
progress_last_line() {
  local columns=100
  [ "$progress_on_terminal" = 1 ] && columns=$(tput cols 2>/dev/null || echo 100)
  tail -c 2000 "$1" 2>/dev/null | tr '\r' '\n' | grep -v '^[[:space:]]*$' | tail -n 1 | tr -cd '[:print:]' |
    cut -c "1-$((columns > 40 ? columns - 36 : 40))"
}

with_progress() {
  local what=$1 log=$2
  shift 2
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$! previous_traps
  previous_traps=$(trap -p INT TERM)
  # A background command of a script ignores Ctrl-C, so it is ended by hand; then the script's own traps have their turn.
  # shellcheck disable=SC2064  # the pid is known now
  trap "kill $pid 2>/dev/null; wait $pid 2>/dev/null; echo; exit 130" INT TERM
  local start=$SECONDS shown=0 next=2 status=0
  while kill -0 "$pid" 2>/dev/null; do
    local elapsed=$((SECONDS - start))
    if [ "$elapsed" -ge "$next" ]; then
      shown=1
      if [ "$progress_on_terminal" = 1 ]; then
        printf '\r\033[K  %s: %d s  %s' "$what" "$elapsed" "$(progress_last_line "$log")"
        next=$((elapsed + 1))
      else
        printf '  %s: %d s  %s\n' "$what" "$elapsed" "$(progress_last_line "$log")"
        next=$((elapsed + 10))
      fi
    fi
    sleep 0.2
  done
  wait "$pid" || status=$?
  trap - INT TERM
  eval "$previous_traps"
  [ "$shown" = 1 ] && [ "$progress_on_terminal" = 1 ] && printf '\r\033[K'
  if [ "$status" != 0 ]; then
    echo "$what failed with exit status $status. The end of $log:" >&2
    tail -n 40 "$log" >&2
  elif [ "$shown" = 1 ]; then
    echo "  $what: done in $((SECONDS - start)) s"
  fi
  return "$status"
}
