//! Starts, checkpoints, moves and stops the processes of jobs.
