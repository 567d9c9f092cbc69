//! Unit tests of the live placer, on small clusters in memory ([`world`]).

mod adoption;
mod advised;
mod bounds;
mod budget;
mod clock;
mod conditions;
mod consequences;
mod event_starts;
mod events;
mod expected;
mod extremes;
mod fault_injection;
mod feeder_events;
mod forced_colocation;
mod grid;
mod identity;
mod job_energy;
mod job_failures;
mod kills;
mod kinds;
mod limits_under_faults;
mod listing;
mod measured_power;
mod measures;
mod node;
mod node_faults;
mod node_sleep;
mod orders;
mod plans;
mod power_over_time;
mod power_shares;
mod records;
mod settling;
mod silence;
mod site_jobs;
mod site_power;
mod stages;
mod submissions;
mod times;
mod twin;
mod verdict;
mod world;

use wattle_common::job::JobSpec;

use super::*;

fn job_id(job: &str) -> JobId {
    JobId::new(job).unwrap()
}

fn spec(job: &str, gpus: u32) -> JobSpec {
    JobSpec {
        memory_mib_max: Some(1_000),
        consents_to_sharing: true,
        checkpoint_signal: Some("SIGUSR1".to_owned()),
        ..wattle_testkit::job_spec(job, gpus)
    }
}

/// The reply to a request which the record of this generation reflects.
fn accepted(job: &str, generation: u64) -> Reply {
    Reply::Accepted { job: job_id(job), generation }
}

fn refused(reply: &Reply) -> &str {
    match reply {
        Reply::Refused { error } => error,
        Reply::Accepted { job, .. } => panic!("{job} was accepted"),
    }
}
