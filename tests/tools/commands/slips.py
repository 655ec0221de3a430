"""What is typed wrongly, of any command: a line that says so, an exit status, and nothing else."""


def offenders(run, slips):
    """`slips`: arguments, exit status, words of the line. Those that end otherwise, with what they print."""
    found = []
    for arguments, status, words in slips:
        result = run(*arguments)
        is_right = result.exit_code == status and words in result.output and "Traceback" not in result.output
        found += [] if is_right else [(arguments, result.exit_code, words, result.output)]
    return found
