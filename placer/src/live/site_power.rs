//! The power of the site by minute, live: the energy ledger with what was in force and known in the minute.
//!
//! A minute is closed once ([`crate::power::site_minutes`]), at a tick. The power of the twin, price and carbon intensity
//! are read at the first tick of their minute; after a takeover in that minute they are absent. The next placer continues
//! after the last stored minute, from the entries of the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use wattle_common::feeders::FeederLimit;
use wattle_common::messages::LedgerEntry;
use wattle_common::messages::site_minute::{
    FeederMinute, MINUTE, Price, SiteMinute, TwinPower, minute_of,
};
use wattle_common::{CarbonIntensity, NodeId, Power, Timestamp};

use crate::live::budget::Spending;
use crate::live::events::GridEvents;
use crate::live::grid::GridSignals;
use crate::live::nodes::Nodes;
use crate::live::{Action, Turn};
use crate::power::model::baseline_by_node_w;
use crate::power::site_minutes::{ClosedMinute, Presence, SITE_WITHIN, SiteMinutes};

/// Power of the twin, price and carbon intensity at an instant of a minute.
#[derive(Clone, Debug, Default)]
struct Sample {
    twin: Option<TwinPower>,
    price: Option<Price>,
    intensity: Option<CarbonIntensity>,
}

/// The power of the site by minute.
pub(super) struct SitePower {
    minutes: SiteMinutes,
    samples: BTreeMap<Timestamp, Sample>,
    to_store: Vec<SiteMinute>,
}

impl SitePower {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self { minutes: SiteMinutes::new(now), samples: BTreeMap::new(), to_store: Vec::new() }
    }

    /// Continues after the last stored minute.
    pub(super) fn restore(&mut self, last: Option<&SiteMinute>) {
        if let Some(last) = last {
            self.minutes.continue_from(last.until());
        }
    }

    pub(super) fn metered(&mut self, entry: &LedgerEntry) {
        self.minutes.metered(entry);
    }

    pub(super) const fn bus_returned(&mut self, now: Timestamp) {
        self.minutes.bus_returned(now);
    }

    /// Reads them now, once in each minute.
    pub(super) fn sample(&mut self, turn: &Turn<'_>, grid: &GridSignals) {
        let minute = minute_of(turn.now);
        if self.samples.contains_key(&minute) {
            return;
        }
        let twin = turn.controller.twin().and_then(|twin| {
            let power_mw = Power::from_w_f64(twin.power_w()?);
            Some(TwinPower { power_mw, policy: twin.baseline() })
        });
        let price = grid.price(turn.now);
        let grid = turn.controller.limits().grid.as_ref();
        let intensity = grid.map(|grid| CarbonIntensity::from_g_per_kwh(grid.now));
        self.samples.insert(minute, Sample { twin, price, intensity });
        self.samples = self.samples.split_off(&(minute - SITE_WITHIN));
    }

    /// Closes the minutes that are complete or late.
    pub(super) fn close(
        &mut self,
        turn: &Turn<'_>,
        nodes: &Nodes,
        spending: &Spending,
        events: &GridEvents,
    ) {
        if !self.minutes.is_due(turn.now) {
            return;
        }
        let presence = presence(turn, nodes);
        let recorded = turn.controller.limits().carried.recorded(&events.feeders(turn.now));
        while let Some(closed) = self.minutes.close(turn.now, &presence, &recorded) {
            let (from, until) = (closed.site.from, closed.site.from + MINUTE);
            let of_feeder = |(limit, sum): (&Arc<FeederLimit>, &ClosedMinute)| {
                let target_mw = events.lowest(from, until, Some(&limit.feeder));
                let minute = FeederMinute {
                    energy_mj: sum.energy + limit.static_load.over(MINUTE),
                    nodes: sum.nodes,
                    metered: sum.metered,
                    asleep: sum.asleep.0,
                    asleep_mw: sum.asleep.1,
                    target_mw,
                };
                (limit.feeder.clone(), minute)
            };
            let feeders = recorded.iter().zip(&closed.feeders).map(of_feeder).collect();
            let closed = closed.site;
            let sample = self.samples.get(&from).cloned().unwrap_or_default();
            let budget = spending.record().map(|record| &record.budget);
            self.to_store.push(SiteMinute {
                minute_us: from,
                energy_mj: closed.energy,
                nodes: closed.nodes,
                metered: closed.metered,
                asleep: closed.asleep.0,
                asleep_mw: closed.asleep.1,
                limit_mw: budget.and_then(|budget| budget.least_power(from, until)),
                target_mw: events.lowest(from, until, None),
                twin: sample.twin,
                price: sample.price,
                intensity_mg_per_kwh: sample.intensity,
                feeders,
                // The service knows the numbers of the ledger's entries.
                ledger_from: 0,
            });
        }
    }

    /// Stores the closed minutes.
    pub(super) fn store(&mut self, out: &mut Vec<Action>) {
        out.extend(self.to_store.drain(..).map(|minute| Action::StoreSiteMinute(Box::new(minute))));
    }
}

/// The nodes of the cluster, and which of them can be metered.
fn presence(turn: &Turn<'_>, nodes: &Nodes) -> BTreeMap<NodeId, Presence> {
    let known = turn.controller.state().nodes().iter();
    let asleep_w = baseline_by_node_w(turn.controller.input());
    let presence = known.zip(asleep_w).map(|(node, asleep_w)| {
        let id = node.facts.id.clone();
        let presence = match node.is_awake() {
            false => Presence::Asleep(Power::from_w_f64(asleep_w)),
            true if nodes.is_lost(turn.now, &id) => Presence::Lost,
            true => Presence::Awake,
        };
        (id, presence)
    });
    presence.collect()
}
