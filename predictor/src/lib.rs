//! Learns how a job's speed and power answer to GPUs, clocks, caps and neighbours.
