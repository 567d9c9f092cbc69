//! The shell every Wattle service shares: the bus, the clock, config, logs, shutdown.
