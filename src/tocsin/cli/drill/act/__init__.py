"""``tocsin drill --act``: a job is struck, the fault named, and the job trains again by a signed action."""
