//! Whole-system tests: a real nats-server, the real binaries, the simulated driver.
