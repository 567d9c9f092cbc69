//! NVML return codes and the mapping from errors to codes.

use std::ffi::{CStr, c_char, c_uint};
use std::io;

use crate::node::NodeError;
use crate::state::StateError;

/// `nvmlReturn_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) c_uint);

impl Code {
    pub(super) const SUCCESS: Self = Self(0);
    pub(super) const UNINITIALIZED: Self = Self(1);
    pub(super) const INVALID_ARGUMENT: Self = Self(2);
    pub(super) const NOT_SUPPORTED: Self = Self(3);
    pub(super) const NO_PERMISSION: Self = Self(4);
    pub(super) const NOT_FOUND: Self = Self(6);
    pub(super) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(super) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(super) const GPU_IS_LOST: Self = Self(15);
    pub(super) const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    pub(super) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub(super) const UNKNOWN: Self = Self(999);
}

impl From<StateError> for Code {
    fn from(error: StateError) -> Self {
        match error {
            StateError::NoGpu(_) | StateError::OutOfRange { .. } => Self::INVALID_ARGUMENT,
            StateError::NoDriver => Self::UNINITIALIZED,
            StateError::Lost(_) => Self::GPU_IS_LOST,
            StateError::NoPermission(_) => Self::NO_PERMISSION,
            StateError::Unsupported(_) => Self::NOT_SUPPORTED,
            StateError::NoWorkload(_)
            | StateError::OutOfMemory { .. }
            | StateError::Full
            | StateError::NoClaim => Self::UNKNOWN,
        }
    }
}

impl From<NodeError> for Code {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Missing { .. } => Self::DRIVER_NOT_LOADED,
            NodeError::Unusable { other_version: true, .. } => Self::LIB_RM_VERSION_MISMATCH,
            NodeError::ReadOnly { .. } => Self::NO_PERMISSION,
            NodeError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Self::NO_PERMISSION
            }
            NodeError::Refused(refused) => refused.into(),
            NodeError::Unusable { .. }
            | NodeError::Io { .. }
            | NodeError::Exists { .. }
            | NodeError::UnknownGpuType { .. }
            | NodeError::Count(_) => Self::UNKNOWN,
        }
    }
}

/// Text of a return code.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: c_uint) -> *const c_char {
    let text: &'static CStr = match Code(result) {
        Code::SUCCESS => c"Success",
        Code::UNINITIALIZED => c"Uninitialized",
        Code::INVALID_ARGUMENT => c"Invalid Argument",
        Code::NOT_SUPPORTED => c"Not Supported",
        Code::NO_PERMISSION => c"Insufficient Permissions",
        Code::NOT_FOUND => c"Not Found",
        Code::INSUFFICIENT_SIZE => c"Insufficient Size",
        Code::DRIVER_NOT_LOADED => c"Driver Not Loaded",
        Code::GPU_IS_LOST => c"GPU is lost",
        Code::LIB_RM_VERSION_MISMATCH => c"Driver/library version mismatch",
        Code::ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
