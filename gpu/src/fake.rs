//! Cards in memory, for the unit tests of those who use a [`Driver`].
//!
//! They do what they are told and remember what they were asked; they model nothing. Power does not
//! follow a cap and energy does not grow unless the test says so. For cards that behave, load the
//! simulated NVML library instead.

use wattle_common::{Frequency, GpuIndex, Power};

use crate::{Driver, GpuError, GpuInfo, GpuReading};

/// An order that reached a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// [`Driver::set_cap`]
    Cap(GpuIndex, Power),
    /// [`Driver::set_clock_max`]
    ClockMax(GpuIndex, Option<Frequency>),
}

/// How a card answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// It does as asked.
    #[default]
    Well,
    /// It fell off the bus.
    Lost,
    /// It reads, and takes no orders: the caller lacks the right to.
    ReadOnly,
    /// It fails, and may not the next time.
    Flaky,
}

/// One card in memory.
#[derive(Clone, Debug)]
pub struct FakeGpu {
    /// What it is.
    pub info: GpuInfo,
    /// What it reads. Its `cap` follows the orders.
    pub reading: GpuReading,
    /// The locked clock that stands.
    pub clock_max: Option<Frequency>,
    /// How it answers.
    pub mood: Mood,
}

/// A node of cards in memory.
#[derive(Clone, Debug)]
pub struct FakeDriver {
    /// The cards; tests change them as they like.
    pub gpus: Vec<FakeGpu>,
    /// Every order that was carried out, oldest first.
    pub orders: Vec<Order>,
}

impl FakeDriver {
    /// A node of `count` V100s with the limits of the 16 GB SXM2 board (100 to 300 W, clocks of 135
    /// to 1530 MHz), idle and at their defaults.
    #[must_use]
    pub fn v100s(count: u32) -> Self {
        let gpus = (0..count)
            .map(|index| FakeGpu {
                info: GpuInfo {
                    uuid: format!("GPU-fake-{index}"),
                    name: "Tesla V100-SXM2-16GB".to_owned(),
                    kind: "v100".to_owned(),
                    memory_mib: 16_384,
                    cap_default: Some(Power::from_w(300)),
                    cap_min: Some(Power::from_w(100)),
                    cap_max: Some(Power::from_w(300)),
                    clocks: (0..94).map(|i| Frequency::from_mhz(135 + 15 * i)).collect(),
                },
                reading: GpuReading {
                    power: Some(Power::from_w(40)),
                    cap: Some(Power::from_w(300)),
                    utilization_gpu_percent: Some(0),
                    processes: Some(Vec::new()),
                    ..GpuReading::default()
                },
                clock_max: None,
                mood: Mood::Well,
            })
            .collect();
        Self { gpus, orders: Vec::new() }
    }

    fn at(&self, gpu: GpuIndex, what: &'static str) -> Result<&FakeGpu, GpuError> {
        let card = self.gpus.get(gpu as usize).ok_or_else(|| GpuError::Refused {
            gpu,
            what,
            remedy: format!("this node has {} GPUs", self.gpus.len()),
        })?;
        match card.mood {
            Mood::Well | Mood::ReadOnly => Ok(card),
            Mood::Lost => Err(GpuError::Gone { gpu, what }),
            Mood::Flaky => Err(GpuError::Retry { gpu, what, detail: "it is flaky".to_owned() }),
        }
    }

    fn order(&mut self, gpu: GpuIndex, what: &'static str) -> Result<&mut FakeGpu, GpuError> {
        if self.at(gpu, what)?.mood == Mood::ReadOnly {
            return Err(GpuError::Refused { gpu, what, remedy: "it takes root".to_owned() });
        }
        Ok(&mut self.gpus[gpu as usize])
    }
}

impl Driver for FakeDriver {
    fn count(&self) -> Result<u32, GpuError> {
        Ok(self.gpus.len() as u32)
    }

    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError> {
        Ok(self.at(gpu, "describe itself")?.info.clone())
    }

    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError> {
        Ok(self.at(gpu, "be read")?.reading.clone())
    }

    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError> {
        let what = "tell its power cap";
        self.at(gpu, what)?.reading.cap.ok_or(GpuError::Unsupported { gpu, what })
    }

    fn set_cap(&mut self, gpu: GpuIndex, cap: Power) -> Result<(), GpuError> {
        let what = "set its power cap";
        let card = self.order(gpu, what)?;
        let (Some(min), Some(max)) = (card.info.cap_min, card.info.cap_max) else {
            return Err(GpuError::Unsupported { gpu, what });
        };
        if cap < min || cap > max {
            let remedy = format!("{cap} is outside {min} to {max}");
            return Err(GpuError::Refused { gpu, what, remedy });
        }
        card.reading.cap = Some(cap);
        self.orders.push(Order::Cap(gpu, cap));
        Ok(())
    }

    fn set_clock_max(&mut self, gpu: GpuIndex, clock: Option<Frequency>) -> Result<(), GpuError> {
        let what = "lock its clock";
        let card = self.order(gpu, what)?;
        if let Some(asked) = clock
            && !card.info.clocks.contains(&asked)
        {
            let remedy = format!("it has no clock of {asked}");
            return Err(GpuError::Refused { gpu, what, remedy });
        }
        card.clock_max = clock;
        self.orders.push(Order::ClockMax(gpu, clock));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_as_told_and_remembers() {
        let mut node = FakeDriver::v100s(2);
        let (cap, clock) = (Power::from_w(200), Frequency::from_mhz(1_200));
        node.set_cap(1, cap).unwrap();
        node.set_clock_max(0, Some(clock)).unwrap();
        assert_eq!(node.cap(1), Ok(cap));
        assert_eq!(node.cap(0), Ok(Power::from_w(300)));
        assert_eq!(node.read(1).unwrap().cap, Some(cap));
        assert_eq!(node.orders, [Order::Cap(1, cap), Order::ClockMax(0, Some(clock))]);
    }

    #[test]
    fn each_mood_is_its_error_and_no_order() {
        let mut node = FakeDriver::v100s(1);
        let cap = Power::from_w(200);
        assert!(matches!(node.set_cap(0, Power::from_w(99)), Err(GpuError::Refused { .. })));
        assert!(matches!(node.set_cap(1, cap), Err(GpuError::Refused { .. })));
        let odd = Some(Frequency::from_mhz(1_201));
        assert!(matches!(node.set_clock_max(0, odd), Err(GpuError::Refused { .. })));
        node.gpus[0].mood = Mood::ReadOnly;
        assert!(matches!(node.set_cap(0, cap), Err(GpuError::Refused { .. })));
        assert!(node.read(0).is_ok());
        node.gpus[0].mood = Mood::Lost;
        assert!(matches!(node.read(0), Err(GpuError::Gone { gpu: 0, .. })));
        node.gpus[0].mood = Mood::Flaky;
        assert!(matches!(node.set_cap(0, cap), Err(GpuError::Retry { .. })));
        assert_eq!(node.orders, []);
    }
}
