# What the scripts for the guest machine have in common. It stands before each of them.
failed=0

# The start of each line that `check` prints.
place=

# check NAME PATTERN COMMAND ...: the command ends with 0, and its output has a line with the pattern.
check() {
    name=$1 pattern=$2
    shift 2
    if "$@" >output 2>&1 && grep -q -e "$pattern" output; then
        echo "ok: $place$name: $(grep -e "$pattern" output | tail -n 1 | cut -c 1-150)"
    else
        echo "FAILED: $place$name"
        tail -n 20 output
        failed=$((failed + 1))
    fi
}

