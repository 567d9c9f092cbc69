//! A driver that reads GPUs and sets nothing.

use wattle_common::{Frequency, GpuIndex, Power};

use crate::{Driver, GpuError, GpuHealth, GpuInfo, GpuReading};

/// Refuses every setting without a call of the driver that it reads with.
pub struct ReadOnlyDriver {
    driver: Box<dyn Driver>,
    remedy: &'static str,
}

impl ReadOnlyDriver {
    /// Reads with `driver`; `remedy` states how settings can be permitted.
    #[must_use]
    pub fn new(driver: Box<dyn Driver>, remedy: &'static str) -> Self {
        Self { driver, remedy }
    }

    fn refused(&self, gpu: GpuIndex, operation: &'static str) -> GpuError {
        GpuError::Refused { gpu, operation, remedy: self.remedy.to_owned() }
    }
}

impl Driver for ReadOnlyDriver {
    fn count(&self) -> Result<u32, GpuError> {
        self.driver.count()
    }

    fn info(&self, gpu: GpuIndex) -> Result<GpuInfo, GpuError> {
        self.driver.info(gpu)
    }

    fn read(&mut self, gpu: GpuIndex) -> Result<GpuReading, GpuError> {
        self.driver.read(gpu)
    }

    fn health(&self, gpu: GpuIndex) -> Result<GpuHealth, GpuError> {
        self.driver.health(gpu)
    }

    fn cap(&self, gpu: GpuIndex) -> Result<Power, GpuError> {
        self.driver.cap(gpu)
    }

    fn set_cap(&mut self, gpu: GpuIndex, _: Power) -> Result<(), GpuError> {
        Err(self.refused(gpu, "set the power cap"))
    }

    fn set_clock_max(&mut self, gpu: GpuIndex, _: Option<Frequency>) -> Result<(), GpuError> {
        Err(self.refused(gpu, "lock the clock"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::fake::{FakeDriver, UnsettableDriver};

    #[test]
    fn readings_pass_and_settings_never_reach_the_driver() {
        let gpus = Arc::new(Mutex::new(FakeDriver::v100s(1)));
        let mut driver = ReadOnlyDriver::new(Box::new(UnsettableDriver(gpus)), "advised only");
        assert_eq!((driver.count(), driver.cap(0)), (Ok(1), Ok(Power::from_w(300))));
        assert_eq!(driver.read(0).unwrap().cap, Some(Power::from_w(300)));
        assert_eq!(driver.info(0).unwrap().gpu_type, "v100");
        let cap = driver.set_cap(0, Power::from_w(200)).unwrap_err().to_string();
        assert_eq!(cap, "GPU 0: cannot set the power cap: advised only");
        assert!(driver.set_clock_max(0, None).is_err());
    }
}
