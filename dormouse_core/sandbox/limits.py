"""What a candidate runs under, by name: the isolation level, its layers, and the line that says what they do not stop.

Not here: the calls that put the layers in force (sandbox/child.py, in the process that dies with the candidate).
"""

ISOLATION = "process"
"""A bare interpreter's forked child under process limits. Not a jail: files and sockets of this user are within reach."""

BASE_LAYERS = ("bare_interpreter", "forked_child", "own_session", "empty_environment", "empty_directory", "closed_fds",
               "rlimit_cpu", "rlimit_as", "rlimit_fsize", "rlimit_nofile", "no_core", "no_new_privs", "death_signal", "wall_backstop",
               "output_limit")
"""In force for every candidate; the runner adds what it found by trying (`setuid`, `setuid_read`, `rlimit_nproc`)."""

FORK_BAN = "rlimit_nproc"

NOT_A_JAIL = ("exec verifier: candidates run isolated as `process` only (limits on CPU, memory, files and processes); this is not a full "
              "jail yet. A hostile program could read this user's files or use the network: judge programs of your own policies, or run "
              "in a container.")
NO_FORK_BAN = ("exec verifier: this machine lets a candidate fork (RLIMIT_NPROC has no effect for this user); its group is killed when it "
               "ends, but a fork bomb is bounded only by the machine. Run as an ordinary user.")

MAX_OUTPUT = 1 << 20
"""Bytes a candidate may claim, all frames together."""
OUTPUT_SLACK = 1 << 16
"""What a candidate may claim beyond sixteen times its task's expected values."""
