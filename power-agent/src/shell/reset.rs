//! The command `reset`: every GPU gets its final cap and an unlocked clock without a running service.

use wattle_common::{GpuIndex, Power};
use wattle_gpu::{Driver, GpuError};

use super::control;
use super::driver_thread::facts;
use crate::config::{Control, Settings};
use crate::gpu_state::GpuFacts;
use crate::node_limit::{CapRequest, common_level};
use crate::persisted::PersistedCaps;
use crate::shell::state_file::StateFile;

/// Gives every GPU the cap that an earlier service found, or the safe one, within the node's limit, and
/// unlocks its clock; returns the number of failures. Nothing is set on GPUs in MIG mode.
///
/// # Errors
/// Where there is no driver.
pub fn reset(config: &super::ServiceConfig) -> Result<u32, GpuError> {
    if config.control == Control::Advise {
        tracing::info!("control = \"advise\" sets nothing: no GPU is reset");
        return Ok(0);
    }
    let mut driver = control::open(config)?;
    let file = StateFile::new(config.state_dir.as_deref());
    let caps = file.read();
    let failed = reset_all(driver.as_mut(), &config.settings(), &caps)?;
    if failed == 0 {
        file.write(&PersistedCaps { restored: true, ..caps });
    }
    Ok(failed)
}

fn reset_all(
    driver: &mut dyn Driver,
    settings: &Settings,
    caps: &PersistedCaps,
) -> Result<u32, GpuError> {
    let mut failed = 0;
    for (gpu, cap) in final_caps(driver, settings, caps)? {
        if is_mig(driver, gpu) {
            tracing::info!(gpu, "GPU is in MIG mode: not set");
            continue;
        }
        match cap.and_then(|cap| reset_gpu(driver, gpu, cap).map(|()| cap)) {
            Ok(cap) => {
                tracing::info!(gpu, cap_mw = cap.map(Power::as_mw), "GPU is in its safe state");
            }
            Err(error) => {
                failed += 1;
                tracing::error!(gpu, %error, "GPU could not be reset");
            }
        }
    }
    Ok(failed)
}

fn is_mig(driver: &dyn Driver, gpu: GpuIndex) -> bool {
    driver.health(gpu).is_ok_and(|health| health.mig_enabled == Some(true))
}

type FinalCaps = Vec<(GpuIndex, Result<Option<Power>, GpuError>)>;

/// The final cap of each GPU within the node's limit: caps that fall first.
fn final_caps(
    driver: &dyn Driver,
    settings: &Settings,
    caps: &PersistedCaps,
) -> Result<FinalCaps, GpuError> {
    let gpus: Vec<_> = (0..driver.count()?).map(|gpu| (gpu, facts(driver, gpu))).collect();
    let highest = |facts: &GpuFacts| facts.cap_range.map(|(_, highest)| highest);
    let unread = gpus.iter().filter_map(|(_, facts)| highest(facts.as_ref().ok()?)).max();
    let in_force = caps.in_force(wattle_runtime::clock::now());
    let request = |(gpu, facts): &(GpuIndex, Result<GpuFacts, GpuError>)| {
        let Ok(facts) = facts else { return CapRequest::Fixed(unread.unwrap_or_default()) };
        if is_mig(driver, *gpu) {
            let cap = driver.cap(*gpu).ok().or(facts.cap_default);
            return CapRequest::Fixed(cap.unwrap_or_default());
        }
        match caps.final_cap(*gpu, facts, settings, &in_force).zip(facts.cap_range) {
            Some((requested, (lowest, _))) => CapRequest::Settable { requested, lowest },
            None => CapRequest::Fixed(facts.cap_default.unwrap_or_default()),
        }
    };
    let requests: Vec<CapRequest> = gpus.iter().map(request).collect();
    let limit = settings.node_limit;
    let level = limit.map(|limit| common_level(&requests, limit).unwrap_or(Power::ZERO));
    let cap = |request: &CapRequest| match request {
        CapRequest::Settable { requested, .. } => {
            Some(level.map_or(*requested, |level| request.at(level)))
        }
        CapRequest::Fixed(_) => None,
    };
    let mut caps: FinalCaps = gpus
        .into_iter()
        .zip(&requests)
        .map(|((gpu, facts), request)| (gpu, facts.map(|_| cap(request))))
        .collect();
    caps.sort_by_key(|(gpu, cap)| {
        let rises = match cap {
            Ok(Some(cap)) => driver.cap(*gpu).is_ok_and(|current| *cap > current),
            Ok(None) | Err(_) => false,
        };
        (rises, *gpu)
    });
    Ok(caps)
}

fn reset_gpu(driver: &mut dyn Driver, gpu: GpuIndex, cap: Option<Power>) -> Result<(), GpuError> {
    let capped = cap.map_or(Ok(()), |cap| driver.set_cap(gpu, cap));
    // The clock is unlocked even if the cap could not be set.
    match driver.set_clock_max(gpu, None) {
        Ok(()) | Err(GpuError::Unsupported { .. }) => capped,
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_common::Frequency;
    use wattle_gpu::fake::{Command, FakeDriver, FaultMode};

    #[test]
    fn reset_makes_every_reachable_gpu_safe() {
        let mut node = FakeDriver::v100s(3);
        for gpu in 0..3 {
            node.set_cap(gpu, Power::from_w(120)).unwrap();
            node.set_clock_max(gpu, Some(Frequency::from_mhz(900))).unwrap();
        }
        node.gpus[1].fault = FaultMode::Lost;
        node.commands.clear();
        let safe = Power::from_w(250);
        let settings = Settings { safe_cap: Some(safe), ..Settings::default() };
        assert_eq!(reset_all(&mut node, &settings, &PersistedCaps::default()), Ok(1));
        assert_eq!(
            node.commands,
            [
                Command::Cap(0, safe),
                Command::ClockMax(0, None),
                Command::Cap(2, safe),
                Command::ClockMax(2, None)
            ]
        );
    }

    #[test]
    fn reset_sets_nothing_in_mig_mode() {
        let mut node = FakeDriver::v100s(2);
        node.set_cap(0, Power::from_w(120)).unwrap();
        node.set_cap(1, Power::from_w(120)).unwrap();
        node.gpus[0].health.mig_enabled = Some(true);
        node.commands.clear();
        let limit = Some(Power::from_w(300));
        let settings = Settings { node_limit: limit, ..Settings::default() };
        assert_eq!(reset_all(&mut node, &settings, &PersistedCaps::default()), Ok(0));
        let rest = Power::from_w(180);
        assert_eq!(node.commands, [Command::Cap(1, rest), Command::ClockMax(1, None)]);
    }

    #[test]
    fn reset_holds_the_limit_of_the_node() {
        let mut node = FakeDriver::v100s(3);
        node.set_cap(0, Power::from_w(120)).unwrap();
        node.gpus[1].fault = FaultMode::Lost;
        node.commands.clear();
        let limit = Some(Power::from_w(600));
        let settings = Settings { node_limit: limit, ..Settings::default() };
        // The lost GPU counts with the highest cap of the others, 300 W.
        assert_eq!(reset_all(&mut node, &settings, &PersistedCaps::default()), Ok(1));
        let cap = Power::from_w(150);
        assert_eq!(
            node.commands,
            [
                Command::Cap(2, cap),
                Command::ClockMax(2, None),
                Command::Cap(0, cap),
                Command::ClockMax(0, None)
            ]
        );
    }
}
