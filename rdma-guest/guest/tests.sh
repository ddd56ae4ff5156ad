# Runs programs one after the other: sh tests.sh SECONDS PROGRAM...
# A program is one word of several lines: its path, and its arguments.
# A line that begins with the character 1E tells the host where each begins and how it ended: its status, and `time` or
# `memory` if that limit ended it.
seconds=$1
shift
number=0
set -f
IFS='
'
# How many processes the kernel has killed because memory ran out.
killed() {
    sed -n 's/^oom_kill //p' /proc/vmstat
}
uptime() {
    read -r line </proc/uptime
    echo "${line%%.*}"
}
for program; do
    printf '\n\036begin %d\n' "$number"
    started=$(uptime)
    before=$(killed)
    timeout -s KILL "$seconds" $program </dev/null 2>&1
    status=$?
    limit=none
    if [ "$(killed)" -gt "$before" ]; then
        limit=memory
    elif [ "$status" = 137 ] && [ $(($(uptime) - started)) -ge "$seconds" ]; then
        limit=time
    fi
    printf '\n\036end %d %s\n' "$status" "$limit"
    number=$((number + 1))
done
