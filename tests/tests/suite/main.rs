//! Tests of the whole system, linked as one binary: a real nats-server, the real binaries, the
//! simulated driver.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod bad_input;
mod book;
mod budgets;
mod chaos;
mod clusters;
mod commands;
mod control;
mod deploy;
mod doctor;
mod documentation;
mod edges;
mod failover;
mod gpu_conditions;
mod gpu_suite;
mod history;
mod identity;
mod kill;
mod kinds;
mod live;
mod messages;
mod metrics;
mod node;
mod operating;
mod overload;
mod plain_english;
mod predictors;
mod probing;
mod python_predictor;
mod sdk;
mod sessions;
mod sleeping;
mod slurm;
mod slurm_faults;
mod slurm_outages;
mod slurm_sleep;
mod supply_chain;
mod tidy;
mod time_steps;
mod traces;
mod up;
mod upgrade;
mod web;
mod web_load;
