//! The thread that talks to the cards, for driver calls block: for microseconds, or for seconds
//! where a card is ill.
//!
//! It does as it is told, in order, and answers each order with one event. The driver is loaded
//! when the cards are first read, and again after it has gone away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc as blocking;

use tokio::sync::mpsc;
use wattle_common::{Frequency, GpuIndex, Power};
use wattle_gpu::nvml::NvmlDriver;
use wattle_gpu::{Driver, GpuError};

use crate::card::{CardFacts, CardRead, Refusal};
use crate::config::Settings;
use crate::machine::Event;

/// Orders that wait. The machine has at most one reading and, for each card, one cap and one clock
/// on their way: 64 cards at most are in a node.
const ORDERS_MAX: usize = 1 + 2 * wattle_common::topology::GPUS_PER_NODE_MAX as usize;

#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Read,
    Cap(GpuIndex, Power),
    Clock(GpuIndex, Option<Frequency>),
}

type Reads = Vec<(GpuIndex, Result<CardRead, String>)>;

/// The way to the thread.
pub(super) struct Cards(blocking::SyncSender<Order>);

impl Cards {
    pub(super) fn order(&self, order: Order) {
        if let Err(error) = self.0.try_send(order) {
            // The machine asks again when the heartbeat finds no answer.
            tracing::error!(?order, %error, "an order did not reach the cards");
        }
    }
}

pub(super) fn start(
    library: Option<PathBuf>,
    events: mpsc::Sender<Event>,
) -> std::io::Result<Cards> {
    let (sender, orders) = blocking::sync_channel(ORDERS_MAX);
    let mut hand = Hand { library, driver: None, facts: BTreeMap::new() };
    std::thread::Builder::new().name("cards".to_owned()).spawn(move || {
        for order in orders {
            if events.blocking_send(hand.carry_out(order)).is_err() {
                return; // the service has ended
            }
        }
    })?;
    Ok(Cards(sender))
}

struct Hand {
    library: Option<PathBuf>,
    driver: Option<Box<dyn Driver>>,
    /// What cards are; it does not change, and reading it takes longer than the rest.
    facts: BTreeMap<GpuIndex, CardFacts>,
}

impl Hand {
    fn carry_out(&mut self, order: Order) -> Event {
        match order {
            Order::Read => match self.read() {
                Ok(reads) => Event::CardsRead(reads),
                Err(error) => {
                    self.driver = None;
                    self.facts.clear();
                    Event::CardsUnreadable(error.to_string())
                }
            },
            Order::Cap(gpu, cap) => {
                let answer = self.set(|driver| driver.set_cap(gpu, cap));
                if answer.is_ok() {
                    tracing::info!(gpu, cap_mw = cap.as_mw(), "cap set");
                }
                Event::CapAnswered { gpu, cap, answer }
            }
            Order::Clock(gpu, clock) => {
                let answer = self.set(|driver| driver.set_clock_max(gpu, clock));
                if answer.is_ok() {
                    let clock_mhz_max = clock.map(Frequency::as_mhz);
                    tracing::debug!(gpu, clock_mhz_max, "clock set");
                }
                Event::ClockAnswered { gpu, clock, answer }
            }
        }
    }

    fn set(
        &mut self,
        order: impl FnOnce(&mut dyn Driver) -> Result<(), GpuError>,
    ) -> Result<(), Refusal> {
        let Some(driver) = self.driver.as_mut() else {
            let error = "the driver is not loaded".to_owned();
            return Err(Refusal { unsupported: false, error });
        };
        order(driver.as_mut()).map_err(|error| Refusal {
            unsupported: matches!(error, GpuError::Unsupported { .. }),
            error: error.to_string(),
        })
    }

    fn read(&mut self) -> Result<Reads, GpuError> {
        let driver = match &mut self.driver {
            Some(driver) => driver,
            none => none.insert(Box::new(NvmlDriver::open(self.library.as_deref())?)),
        };
        let mut reads = Vec::new();
        for gpu in 0..driver.count()? {
            let read = read_card(driver.as_mut(), gpu, &mut self.facts);
            if let Err(GpuError::DriverAbsent { .. }) = read {
                return Err(read.expect_err("matched as an error"));
            }
            reads.push((gpu, read.map_err(|error| error.to_string())));
        }
        Ok(reads)
    }
}

fn read_card(
    driver: &mut dyn Driver,
    gpu: GpuIndex,
    known: &mut BTreeMap<GpuIndex, CardFacts>,
) -> Result<CardRead, GpuError> {
    let facts = match known.get(&gpu) {
        Some(facts) => facts.clone(),
        None => facts(driver, gpu)?,
    };
    let reading = driver.read(gpu)?;
    known.insert(gpu, facts.clone());
    Ok(CardRead { facts, cap: reading.cap, clock: reading.clock })
}

fn facts(driver: &dyn Driver, gpu: GpuIndex) -> Result<CardFacts, GpuError> {
    let info = driver.info(gpu)?;
    Ok(CardFacts {
        uuid: info.uuid,
        kind: info.gpu_type,
        memory_mib: info.memory_mib,
        cap_default: info.cap_default,
        cap_range: info.cap_min.zip(info.cap_max),
        clock_range: info.clocks.first().copied().zip(info.clocks.last().copied()),
    })
}

/// Puts every card into its safe state, and says how many could not be.
///
/// # Errors
/// Where there is no driver.
pub fn reset(library: Option<&Path>, settings: &Settings) -> Result<u32, GpuError> {
    let mut driver = NvmlDriver::open(library)?;
    reset_all(&mut driver, settings)
}

fn reset_all(driver: &mut dyn Driver, settings: &Settings) -> Result<u32, GpuError> {
    let mut failed = 0;
    for gpu in 0..driver.count()? {
        match reset_card(driver, gpu, settings) {
            Ok(cap) => tracing::info!(gpu, cap_mw = cap.map(Power::as_mw), "card is safe"),
            Err(error) => {
                failed += 1;
                tracing::error!(gpu, %error, "card could not be reset");
            }
        }
    }
    Ok(failed)
}

fn reset_card(
    driver: &mut dyn Driver,
    gpu: GpuIndex,
    settings: &Settings,
) -> Result<Option<Power>, GpuError> {
    let cap = facts(driver, gpu)?.safe_cap(settings.safe_cap);
    let capped = cap.map_or(Ok(()), |cap| driver.set_cap(gpu, cap));
    // The clock is freed even where the cap was refused, and the other way round.
    match driver.set_clock_max(gpu, None) {
        Ok(()) | Err(GpuError::Unsupported { .. }) => capped.map(|()| cap),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattle_gpu::fake::{Command, FakeDriver, FaultMode};

    #[test]
    fn reset_brings_every_card_it_can_to_safety() {
        let mut node = FakeDriver::v100s(3);
        for gpu in 0..3 {
            node.set_cap(gpu, Power::from_w(120)).unwrap();
            node.set_clock_max(gpu, Some(Frequency::from_mhz(900))).unwrap();
        }
        node.gpus[1].fault = FaultMode::Lost;
        node.commands.clear();
        let safe = Power::from_w(250);
        let settings = Settings { safe_cap: Some(safe), ..Settings::default() };
        assert_eq!(reset_all(&mut node, &settings), Ok(1));
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
    fn each_order_is_answered_once_and_truly() {
        let mut node = FakeDriver::v100s(2);
        node.gpus[1].fault = FaultMode::Lost;
        let mut hand = Hand { library: None, driver: Some(Box::new(node)), facts: BTreeMap::new() };
        let Event::CardsRead(reads) = hand.carry_out(Order::Read) else { panic!("not read") };
        let read = reads[0].1.as_ref().unwrap();
        assert_eq!(read.facts.cap_range, Some((Power::from_w(100), Power::from_w(300))));
        assert_eq!(read.facts.clock_range.unwrap().1, Frequency::from_mhz(1_530));
        assert!(reads[1].1.as_ref().unwrap_err().contains("gone"));
        let cap = Power::from_w(99);
        let Event::CapAnswered { answer, .. } = hand.carry_out(Order::Cap(0, cap)) else {
            panic!("not answered")
        };
        assert!(!answer.unwrap_err().unsupported);
    }
}
