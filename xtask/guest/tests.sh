# Runs test programs one after the other: sh tests.sh SECONDS PROGRAM...
# A line that begins with the character 1E tells the host where each begins and how it ended.
seconds=$1
shift
number=0
for program; do
    printf '\n\036begin %d\n' "$number"
    timeout -s KILL "$seconds" "$program" --test-threads=2 --show-output </dev/null 2>&1
    printf '\n\036end %d\n' "$?"
    number=$((number + 1))
done
