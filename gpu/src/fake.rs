//! In-memory GPUs for unit tests of users of [`Driver`].
//!
//! They store settings and record commands but model no behaviour: power does not follow a cap and
//! energy grows only if the test changes it. For modelled behaviour load the simulated NVML library.

use std::sync::{Arc, Mutex, PoisonError};

use wattle_common::{Frequency, GpuIndex, Power};

use crate::{Driver, GpuError, GpuHealth, GpuInfo, GpuReading};

/// A command that was applied to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// [`Driver::set_cap`]
    Cap(GpuIndex, Power),
    /// [`Driver::set_clock_max`]
    ClockMax(GpuIndex, Option<Frequency>),
}

/// How a GPU fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultMode {
    /// No fault.
    #[default]
    None,
    /// Every call fails: the GPU fell off the bus.
    Lost,
    /// Commands fail for lack of permission; readings succeed.
    ReadOnly,
    /// Every call fails with a transient error.
    Transient,
}

/// One in-memory GPU.
#[derive(Clone, Debug)]
pub struct FakeGpu {
    /// Its properties.
    pub info: GpuInfo,
    /// Its readings. `cap` follows [`Driver::set_cap`].
    pub reading: GpuReading,
    /// Its modes and faults; unknown unless a test sets them.
    pub health: GpuHealth,
    /// The clock limit in force.
    pub clock_max: Option<Frequency>,
    /// How it fails.
    pub fault: FaultMode,
}

/// A node of in-memory GPUs.
#[derive(Clone, Debug)]
pub struct FakeDriver {
    /// The GPUs; tests may change them.
    pub gpus: Vec<FakeGpu>,
    /// Every applied command, oldest first.
    pub commands: Vec<Command>,
}

impl FakeDriver {
    /// A node of `count` V100s with the limits of the 16 GB SXM2 board (100 to 300 W, 135 to
    /// 1530 MHz), idle and at default settings.
    #[must_use]
    pub fn v100s(count: u32) -> Self {
        let gpus = (0..count)
            .map(|index| FakeGpu {
                info: GpuInfo {
                    uuid: format!("GPU-fake-{index}"),
                    name: "Tesla V100-SXM2-16GB".to_owned(),
                    gpu_type: "v100".to_owned(),
                    memory_mib: Some(16_384),
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
                health: GpuHealth::default(),
                clock_max: None,
                fault: FaultMode::None,
            })
            .collect();
        Self { gpus, commands: Vec::new() }
    }

    fn readable(&self, gpu: GpuIndex, operation: &'static str) -> Result<&FakeGpu, GpuError> {
        let device = self.gpus.get(gpu as usize).ok_or_else(|| GpuError::Refused {
            gpu,
            operation,
            remedy: format!("this node has {} GPUs", self.gpus.len()),
        })?;
        match device.fault {
            FaultMode::None | FaultMode::ReadOnly => Ok(device),
            FaultMode::Lost => Err(GpuError::Lost { gpu, operation }),
            FaultMode::Transient => {
                Err(GpuError::Retry { gpu, operation, detail: "injected fault".to_owned() })
            }
        }
    }

    fn writable(
        &mut self,
        gpu: GpuIndex,
        operation: &'static str,
    ) -> Result<&mut FakeGpu, GpuError> {
        if self.readable(gpu, operation)?.fault == FaultMode::ReadOnly {
            return Err(GpuError::Refused { gpu, operation, remedy: "run as root".to_owned() });
        }
        Ok(&mut self.gpus[gpu as usize])
    }
}

impl Driver for FakeDriver {
    fn count(&self) -> Result<u32, GpuError> {
        Ok(self.gpus.len() as u32)
    }

    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError> {
        Ok(self.readable(gpu, "read the device properties")?.info.clone())
    }

    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError> {
        Ok(self.readable(gpu, "read the sensors")?.reading.clone())
    }

    fn health(&self, gpu: GpuIndex) -> Result<GpuHealth, GpuError> {
        Ok(self.readable(gpu, "read the health")?.health)
    }

    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError> {
        let operation = "read the power cap";
        let cap = self.readable(gpu, operation)?.reading.cap;
        cap.ok_or(GpuError::Unsupported { gpu, operation })
    }

    fn set_cap(&mut self, gpu: GpuIndex, cap: Power) -> Result<(), GpuError> {
        let operation = "set the power cap";
        let device = self.writable(gpu, operation)?;
        let (Some(min), Some(max)) = (device.info.cap_min, device.info.cap_max) else {
            return Err(GpuError::Unsupported { gpu, operation });
        };
        if cap < min || cap > max {
            let remedy = format!("{cap} is outside {min} to {max}");
            return Err(GpuError::Refused { gpu, operation, remedy });
        }
        device.reading.cap = Some(cap);
        self.commands.push(Command::Cap(gpu, cap));
        Ok(())
    }

    fn set_clock_max(&mut self, gpu: GpuIndex, clock: Option<Frequency>) -> Result<(), GpuError> {
        let operation = "lock the clock";
        let device = self.writable(gpu, operation)?;
        if let Some(requested) = clock
            && !device.info.clocks.contains(&requested)
        {
            let remedy = format!("{requested} is not a supported clock");
            return Err(GpuError::Refused { gpu, operation, remedy });
        }
        device.clock_max = clock;
        self.commands.push(Command::ClockMax(gpu, clock));
        Ok(())
    }
}

/// A driver of GPUs that may only be read: a setting panics and so fails the test.
#[derive(Clone, Debug)]
pub struct UnsettableDriver(pub Arc<Mutex<FakeDriver>>);

impl UnsettableDriver {
    fn gpus(&self) -> std::sync::MutexGuard<'_, FakeDriver> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for UnsettableDriver {
    fn count(&self) -> Result<u32, GpuError> {
        self.gpus().count()
    }

    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError> {
        self.gpus().info(gpu)
    }

    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError> {
        self.gpus().read(gpu)
    }

    fn health(&self, gpu: GpuIndex) -> Result<GpuHealth, GpuError> {
        self.gpus().health(gpu)
    }

    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError> {
        self.gpus().cap(gpu)
    }

    fn set_cap(&mut self, gpu: GpuIndex, cap: Power) -> Result<(), GpuError> {
        panic!("GPU {gpu} may not be set: cap of {cap}")
    }

    fn set_clock_max(&mut self, gpu: GpuIndex, clock: Option<Frequency>) -> Result<(), GpuError> {
        panic!("GPU {gpu} may not be set: clock of {clock:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_applied_and_recorded() {
        let mut node = FakeDriver::v100s(2);
        let (cap, clock) = (Power::from_w(200), Frequency::from_mhz(1_200));
        node.set_cap(1, cap).unwrap();
        node.set_clock_max(0, Some(clock)).unwrap();
        assert_eq!(node.cap(1), Ok(cap));
        assert_eq!(node.cap(0), Ok(Power::from_w(300)));
        assert_eq!(node.read(1).unwrap().cap, Some(cap));
        assert_eq!(node.commands, [Command::Cap(1, cap), Command::ClockMax(0, Some(clock))]);
    }

    #[test]
    fn faults_return_errors_and_apply_no_command() {
        let mut node = FakeDriver::v100s(1);
        let cap = Power::from_w(200);
        assert!(matches!(node.set_cap(0, Power::from_w(99)), Err(GpuError::Refused { .. })));
        assert!(matches!(node.set_cap(1, cap), Err(GpuError::Refused { .. })));
        let unsupported = Some(Frequency::from_mhz(1_201));
        assert!(matches!(node.set_clock_max(0, unsupported), Err(GpuError::Refused { .. })));
        node.gpus[0].fault = FaultMode::ReadOnly;
        assert!(matches!(node.set_cap(0, cap), Err(GpuError::Refused { .. })));
        assert!(node.read(0).is_ok());
        node.gpus[0].fault = FaultMode::Lost;
        assert!(matches!(node.read(0), Err(GpuError::Lost { gpu: 0, .. })));
        node.gpus[0].fault = FaultMode::Transient;
        assert!(matches!(node.set_cap(0, cap), Err(GpuError::Retry { .. })));
        assert_eq!(node.commands, []);
    }
}
