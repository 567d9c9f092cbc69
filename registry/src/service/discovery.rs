//! Discovery of predictors among the services of the bus.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use wattle_common::id::PredictorId;
use wattle_common::subject::{PREDICTOR_NAME_KEY, PREDICTOR_SERVICE};
use wattle_runtime::bus::Bus;

/// Time limit for answers to a discovery, wall time.
const ANSWER_WITHIN: Duration = Duration::from_millis(700);
/// Discovers predictors periodically, until the receiver is dropped.
pub(super) fn discover(
    bus: &Bus,
    every: Duration,
) -> mpsc::Receiver<BTreeMap<PredictorId, String>> {
    let (sender, found) = mpsc::channel(1);
    let bus = bus.clone();
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(every);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = sender.closed() => return,
                _ = interval.tick() => {}
            }
            // During an outage of the bus no predictor counts as gone.
            let Ok(services) = bus.services(PREDICTOR_SERVICE, ANSWER_WITHIN).await else {
                continue;
            };
            if !bus.is_connected() {
                continue;
            }
            let named = services.into_iter().filter_map(|service| {
                let name = service.metadata.get(PREDICTOR_NAME_KEY)?;
                if service.metadata.get("state").is_some_and(|state| state == "standby") {
                    return None;
                }
                Some((PredictorId::new(name).ok()?, service.version))
            });
            if sender.send(named.collect()).await.is_err() {
                return;
            }
        }
    });
    found
}
