# Runs modules of tests one after the other: sh tests.sh SECONDS MODULE...
# A module is one word of several lines: the program, and the names of its tests.
# A line that begins with the character 1E tells the host where each begins and how it ended.
seconds=$1
shift
number=0
set -f
IFS='
'
for module; do
    printf '\n\036begin %d\n' "$number"
    timeout -s KILL "$seconds" $module --exact --test-threads=2 --show-output </dev/null 2>&1
    printf '\n\036end %d\n' "$?"
    number=$((number + 1))
done
