//! The driver that the configuration selects: NVML alone, NVML with settings through zeusd, or NVML without
//! settings.

use wattle_gpu::nvml::NvmlDriver;
use wattle_gpu::zeusd::{Endpoint, SOCKET, TIMEOUT, Zeusd, ZeusdDriver};
use wattle_gpu::{Driver, GpuError, ReadOnlyDriver};

use super::ServiceConfig;
use crate::config::Control;

/// Opens the driver.
///
/// # Errors
/// If NVML cannot be used; zeusd is contacted at the first setting.
pub(super) fn open(config: &ServiceConfig) -> Result<Box<dyn Driver>, GpuError> {
    let nvml = Box::new(NvmlDriver::open(config.nvml_library.as_deref())?);
    Ok(match config.control {
        Control::Nvml => nvml,
        Control::Zeusd => Box::new(ZeusdDriver::new(nvml, zeusd(config))),
        Control::Advise => Box::new(ReadOnlyDriver::new(nvml, "control = \"advise\" sets nothing")),
    })
}

fn zeusd(config: &ServiceConfig) -> Zeusd {
    let endpoint = match config.zeusd_address {
        Some(address) => Endpoint::Tcp(address),
        None => {
            let socket = config.zeusd_socket.clone();
            Endpoint::Socket(socket.unwrap_or_else(|| SOCKET.into()))
        }
    };
    Zeusd { endpoint, token_file: config.zeusd_token_file.clone(), timeout: TIMEOUT }
}
