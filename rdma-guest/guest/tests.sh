# Runs programs one after the other: sh tests.sh SECONDS PROGRAM...
# A program is one word of several lines: its path, and its arguments.
# A line that begins with the character 1E tells the host where each begins and how it ended.
seconds=$1
shift
number=0
set -f
IFS='
'
for program; do
    printf '\n\036begin %d\n' "$number"
    timeout -s KILL "$seconds" $program </dev/null 2>&1
    printf '\n\036end %d\n' "$?"
    number=$((number + 1))
done
