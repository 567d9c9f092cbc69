//! The power of the site and its feeders in one minute: the record from which the delivery of grid events is proved.
//!
//! * **Publisher:** the active placer, from the energy ledger.
//! * **Listeners:** `wattle event report`, web page, OpenADR service (`USAGE` reports); the next placer.
//! * **How often:** once for each minute in which a node was metered, after the entries of all nodes have arrived, at most
//!   [`LATE`] later.
//! * **Delivery:** JetStream stream `site`, acknowledged, with the minute as message id.
//! * **Lost or doubled:** stored again by the next placer, which sums the ledger again from [`SiteMinute::ledger_from`] on;
//!   a minute counts once.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::aim::Baseline;
use crate::bounds::{DATE_TOLERANCE, GPU_POWER_W_MAX, HOST_POWER_W_MAX, OutOfBounds, invalid};
use crate::codec;
use crate::feeders::FEEDERS_MAX;
use crate::id::FeederId;
use crate::time::Timestamp;
use crate::topology::GPUS_PER_NODE_MAX;
use crate::units::{CarbonIntensity, Energy, Power};

/// Length of a minute.
pub const MINUTE: Duration = Duration::from_secs(60);
/// How long after a minute its record waits for the ledger's entries.
pub const LATE: Duration = Duration::from_secs(300);
/// Feeders that are recorded in every minute, those nearest to the supply first; others while an event names them.
pub const FEEDERS_RECORDED: usize = 16;
/// Most nodes of a site.
const NODES_MAX: u32 = 65_536;
/// Most power of a feeder: a gigawatt.
const FEEDER_POWER_MAX: Power = Power::from_w(1_000_000_000);

/// The power of the site in one minute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteMinute {
    /// Start of the minute, a multiple of 60 s.
    pub minute_us: Timestamp,
    /// Energy of the minute by the ledger: entire nodes, GPUs and hosts.
    pub energy_mj: Energy,
    /// Number of nodes of the site: those present, and those metered in the 15 minutes before its end.
    pub nodes: u32,
    /// Number of nodes that were metered throughout the minute.
    pub metered: u32,
    /// Number of nodes that slept; they are not metered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asleep: u32,
    /// Power of the nodes that slept, by the configuration.
    #[serde(default, skip_serializing_if = "is_none")]
    pub asleep_mw: Power,
    /// The lowest power limit of the budget in the minute; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_mw: Option<Power>,
    /// The lowest limit of grid events in the minute, of ramps and of the return too; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_mw: Option<Power>,
    /// What the site would draw under its former scheduler, by the twin; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<TwinPower>,
    /// Electricity price; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// Carbon intensity; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intensity_mg_per_kwh: Option<CarbonIntensity>,
    /// The power of feeders: of the [`FEEDERS_RECORDED`] nearest to the supply, and of those that events name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub feeders: BTreeMap<FeederId, FeederMinute>,
    /// Sequence number of the first entry of the ledger that a later minute needs.
    pub ledger_from: u64,
}

/// The power of a feeder in one minute. A node counts with the part of its power that the feeder carries with every feeder
/// in operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeederMinute {
    /// Energy of the minute by the ledger, with that of the configured static loads.
    pub energy_mj: Energy,
    /// Number of nodes on it.
    pub nodes: u32,
    /// Number of nodes that were metered throughout the minute.
    pub metered: u32,
    /// Number of nodes that slept; they are not metered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asleep: u32,
    /// Its part of the power of the nodes that slept, by the configuration.
    #[serde(default, skip_serializing_if = "is_none")]
    pub asleep_mw: Power,
    /// The lowest limit of its grid events in the minute; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_mw: Option<Power>,
}

/// The power of the twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinPower {
    /// Its power, all nodes awake, at default caps and clocks.
    pub power_mw: Power,
    /// Its policy.
    pub policy: Baseline,
}

/// An electricity price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// Millionths of the currency for a kWh.
    pub micros_per_kwh: i64,
    /// The currency.
    pub currency: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(power: &Power) -> bool {
    *power == Power::ZERO
}

/// The start of the minute of an instant.
#[must_use]
pub const fn minute_of(at: Timestamp) -> Timestamp {
    let us = at.as_us();
    Timestamp::from_us(us - us % 60_000_000)
}

/// Checks numbers of nodes.
fn check_nodes(nodes: u32, metered: u32, asleep: u32) -> Result<(), OutOfBounds> {
    let known = metered.checked_add(asleep);
    if nodes > NODES_MAX || known.is_none_or(|known| known > nodes) {
        let expected = format!("at least those metered or asleep, at most {NODES_MAX}");
        return Err(invalid("nodes", nodes, expected));
    }
    Ok(())
}

impl SiteMinute {
    /// The record in a stored message; `None` if it cannot be decoded or has a number outside its limits.
    #[must_use]
    pub fn plausible(payload: &[u8], now: Timestamp) -> Option<Self> {
        let minute: Self = codec::decode_json(payload).ok()?;
        minute.check(now).is_ok().then_some(minute)
    }

    /// Checks its numbers.
    ///
    /// # Errors
    /// The first field outside its limits.
    pub fn check(&self, now: Timestamp) -> Result<(), OutOfBounds> {
        if minute_of(self.minute_us) != self.minute_us || self.minute_us > now + DATE_TOLERANCE {
            let expected = "a multiple of 60 s, at most a day ahead";
            return Err(invalid("minute_us", self.minute_us, expected));
        }
        check_nodes(self.nodes, self.metered, self.asleep)?;
        if self.feeders.len() > FEEDERS_MAX {
            let expected = format!("at most {FEEDERS_MAX}");
            return Err(invalid("number of feeders", self.feeders.len(), expected));
        }
        for feeder in self.feeders.values() {
            check_nodes(feeder.nodes, feeder.metered, feeder.asleep)?;
            let power = feeder.energy_mj.mean_power(MINUTE).unwrap_or_default();
            if power.max(feeder.asleep_mw) > FEEDER_POWER_MAX {
                return Err(invalid("power", power, format_args!("at most {FEEDER_POWER_MAX}")));
            }
        }
        let of_node = HOST_POWER_W_MAX + u64::from(GPUS_PER_NODE_MAX) * GPU_POWER_W_MAX;
        let most = Power::from_w(of_node * u64::from(self.nodes.max(1)));
        let powers = [Some(self.asleep_mw), self.twin.map(|twin| twin.power_mw)];
        let energy = self.energy_mj.mean_power(MINUTE);
        for power in powers.into_iter().chain([energy]).flatten() {
            if power > most {
                let expected = format!("at most {most} of {} nodes", self.nodes);
                return Err(invalid("power", power, expected));
            }
        }
        Ok(())
    }

    /// The same minute of a feeder alone; `None`: the feeder was not recorded. The twin's power is not known by feeder. The
    /// lowest limit is that of events of the feeder and of the site.
    #[must_use]
    pub fn of_feeder(&self, feeder: &FeederId) -> Option<Self> {
        let own = self.feeders.get(feeder)?;
        Some(Self {
            minute_us: self.minute_us,
            energy_mj: own.energy_mj,
            nodes: own.nodes,
            metered: own.metered,
            asleep: own.asleep,
            asleep_mw: own.asleep_mw,
            limit_mw: None,
            target_mw: own.target_mw.into_iter().chain(self.target_mw).min(),
            twin: None,
            price: self.price.clone(),
            intensity_mg_per_kwh: self.intensity_mg_per_kwh,
            feeders: BTreeMap::new(),
            ledger_from: self.ledger_from,
        })
    }

    /// Whether an event of the site or of a feeder had a target in the minute.
    #[must_use]
    pub fn has_event(&self) -> bool {
        self.target_mw.is_some() || self.feeders.values().any(|feeder| feeder.target_mw.is_some())
    }

    /// End of the minute.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.minute_us + MINUTE
    }

    /// Whether each node was metered or slept.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.metered + self.asleep == self.nodes
    }

    /// The mean power of the site; absent: some node was not metered.
    #[must_use]
    pub fn power(&self) -> Option<Power> {
        let metered = self.energy_mj.mean_power(MINUTE)?;
        self.is_complete().then(|| metered + self.asleep_mw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_with_an_unmetered_node_has_no_power() {
        let minute = SiteMinute {
            minute_us: Timestamp::from_s(600),
            energy_mj: Energy::from_j(60_000),
            nodes: 3,
            metered: 2,
            asleep: 1,
            asleep_mw: Power::from_w(20),
            limit_mw: None,
            target_mw: None,
            twin: None,
            price: None,
            intensity_mg_per_kwh: None,
            feeders: BTreeMap::new(),
            ledger_from: 1,
        };
        let now = Timestamp::from_s(700);
        assert_eq!(minute.power(), Some(Power::from_w(1_020)));
        let checked = |changed: SiteMinute| changed.check(now).map_err(|error| error.field);
        let partly = SiteMinute { metered: 1, ..minute.clone() };
        assert_eq!((partly.power(), checked(partly)), (None, Ok(())));
        for (changed, field) in [
            (SiteMinute { minute_us: Timestamp::from_s(630), ..minute.clone() }, "minute_us"),
            (SiteMinute { minute_us: Timestamp::from_s(600_000), ..minute.clone() }, "minute_us"),
            (SiteMinute { metered: 3, ..minute.clone() }, "nodes"),
            (SiteMinute { metered: u32::MAX, ..minute.clone() }, "nodes"),
            (SiteMinute { energy_mj: Energy::from_mj(1 << 52), ..minute }, "power"),
        ] {
            assert_eq!(checked(changed), Err(field));
        }
    }
}
