//! JSON of every message: decoded, checked, encoded and decoded again.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wattle_common::Timestamp;
use wattle_common::bounds;
use wattle_common::codec::{decode_json, encode_json};
use wattle_common::event::EventBook;
use wattle_common::messages::{
    AimStatus, BudgetRecord, BudgetReply, BudgetStatus, CancelJob, Champion, EventReply,
    EventRequest, JobProgressed, JobRecord, JobWindow, JobsReply, LaunchReport, LedgerEntry,
    NodeDesired, NodeSummary, OrderRecord, OutputReply, PowerReport, PredictorStatus,
    PromotePredictor, PromoteReply, ReadJobs, ReadOutput, Reply, SetBudget, SiteMinute,
    StoreRestored, SubmitJob, Surface,
};
use wattle_common::observation::Observation;

const NOW: Timestamp = super::machines::NOW;

fn read<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    let message = decode_json::<T>(bytes).ok()?;
    let written = encode_json(&message);
    let again = decode_json::<T>(&written).expect("a written message is read");
    assert_eq!(encode_json(&again), written, "a message changes when it is written");
    Some(message)
}

pub(super) fn run(bytes: &[u8]) {
    read::<SubmitJob>(bytes).map(|m| bounds::check_job(&m.spec));
    read::<JobRecord>(bytes).map(|m| bounds::check_record(&m, NOW));
    read::<JobProgressed>(bytes).map(|m| bounds::check_progress(&m, NOW));
    let _ = SiteMinute::plausible(bytes, NOW);
    read::<LedgerEntry>(bytes).map(|m| bounds::check_ledger_entry(&m, NOW));
    read::<PowerReport>(bytes).map(|m| bounds::check_power_report(&m, NOW));
    read::<LaunchReport>(bytes).map(|m| bounds::check_launch_report(&m, NOW));
    read::<Surface>(bytes).map(|m| bounds::check_surface(&m, NOW));
    read::<Champion>(bytes).map(|m| bounds::check_champion(&m, NOW));
    read::<BudgetRecord>(bytes).map(|m| bounds::check_budget(&m, None, NOW));
    if let Some(order) = read::<NodeDesired>(bytes) {
        let _ = bounds::check_order(&order, None, NOW, bounds::LEASE_MAX_DEFAULT);
        let end = bounds::lease_end(&order, NOW, bounds::LEASE_MAX_DEFAULT);
        assert!(end <= NOW + bounds::LEASE_MAX_DEFAULT);
    }
    if let Some(window) = read::<JobWindow>(bytes) {
        let _ = bounds::check_window(&window, NOW);
        if let Ok(observed) = Observation::of(&window, |_| None) {
            assert!(observed.is_sane(), "{observed:?}");
        }
    }
    read::<EventBook>(bytes).map(|m| m.check().map(|()| m.targets(NOW)));
    let _ = (read::<EventRequest>(bytes), read::<EventReply>(bytes));
    let _ = (read::<BudgetStatus>(bytes), read::<AimStatus>(bytes), read::<SetBudget>(bytes));
    let _ = (read::<CancelJob>(bytes), read::<PromotePredictor>(bytes), read::<Reply>(bytes));
    let _ = (read::<BudgetReply>(bytes), read::<PromoteReply>(bytes), read::<JobsReply>(bytes));
    let _ = (read::<ReadJobs>(bytes), read::<ReadOutput>(bytes), read::<OutputReply>(bytes));
    let _ = (read::<NodeSummary>(bytes), read::<OrderRecord>(bytes));
    let _ = (read::<PredictorStatus>(bytes), read::<StoreRestored>(bytes));
}
