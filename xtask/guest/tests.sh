# Runs test programs one after the other: sh tests.sh SECONDS PROGRAM...
# A line that begins with the character 1E tells the host where each begins and how it ended.
# The variable OPEN has the options that leave out what does not pass on the device yet.
# A program that fails is run once more, and the second run counts: the drivers have races of their own. What the first
# run said is shown.
seconds=$1
shift
number=0
run() {
    timeout -s KILL "$seconds" "$1" --test-threads=2 --show-output $OPEN </dev/null 2>&1
}
for program; do
    printf '\n\036begin %d\n' "$number"
    run "$program" >/run/first
    status=$?
    if [ "$status" -eq 0 ]; then
        cat /run/first
    else
        sed 's/^/first run: /' /run/first
        run "$program"
        status=$?
    fi
    printf '\n\036end %d\n' "$status"
    number=$((number + 1))
done
