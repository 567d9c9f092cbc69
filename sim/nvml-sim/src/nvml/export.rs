//! The macro that exports NVML's functions, and the only code that writes through C pointers.
//!
//! An exported function states its kind, C name, input arguments and body. The body is safe code
//! that returns `Result<_, Code>`; the macro adds the output arguments and the conversion to a
//! return code. Kinds and their output arguments:
//!
//! | kind | output arguments | body returns |
//! |---|---|---|
//! | `action` | none | `()` |
//! | `value` | `out: *mut T` | `T` |
//! | `text` | `text: *mut c_char, length: c_uint` | `String` |
//! | `list` | `count: *mut c_uint, items: *mut T` | `Vec<T>` |

use std::ffi::{c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::code::Code;

macro_rules! nvml {
    () => {};
    ($(#[$doc:meta])* action $name:ident($($arg:ident: $type:ty),*) $body:block $($rest:tt)*) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> c_uint {
            $crate::nvml::export::call(|| $body)
        }
        nvml! { $($rest)* }
    };
    ($(#[$doc:meta])* value $name:ident($($arg:ident: $type:ty),*) -> $out:ty $body:block $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// `out` is null or valid for a write.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type,)* out: *mut $out) -> c_uint {
            let run = || $body;
            // SAFETY: the caller guarantees that `out` is null or valid for a write.
            unsafe { $crate::nvml::export::return_value(out, run) }
        }
        nvml! { $($rest)* }
    };
    ($(#[$doc:meta])* text $name:ident($($arg:ident: $type:ty),*) $body:block $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// `text` is null or valid for writes of `length` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($arg: $type,)* text: *mut c_char, length: c_uint,
        ) -> c_uint {
            let run = || $body;
            // SAFETY: the caller guarantees that `text` is null or valid for `length` bytes.
            unsafe { $crate::nvml::export::return_text(text, length, run) }
        }
        nvml! { $($rest)* }
    };
    ($(#[$doc:meta])* list $name:ident($($arg:ident: $type:ty),*) -> $item:ty $body:block $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// `count` is null or valid for a read and a write; `items` is null or valid for writes of
        /// `*count` items.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($arg: $type,)* count: *mut c_uint, items: *mut $item,
        ) -> c_uint {
            let run = || $body;
            // SAFETY: the caller guarantees that `count` is null or valid, and that `items` is
            // null or valid for `*count` items.
            unsafe { $crate::nvml::export::return_list(count, items, run) }
        }
        nvml! { $($rest)* }
    };
}
pub(super) use nvml;

/// Runs the body of a C function. A panic returns `UNKNOWN` and does not unwind into C.
pub(super) fn call(run: impl FnOnce() -> Result<(), Code>) -> c_uint {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Runs the body of a C function and writes its value to `out`.
///
/// # Safety
/// `out` is null or valid for a write.
pub(super) unsafe fn return_value<T>(out: *mut T, run: impl FnOnce() -> Result<T, Code>) -> c_uint {
    call(|| {
        let value = run()?;
        if out.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: `out` is not null, so the caller guarantees that it is valid for a write.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// Runs the body of a C function and writes its text with a terminating NUL, if it fits.
///
/// # Safety
/// `text` is null or valid for writes of `length` bytes.
pub(super) unsafe fn return_text(
    text: *mut c_char,
    length: c_uint,
    run: impl FnOnce() -> Result<String, Code>,
) -> c_uint {
    call(|| {
        let value = run()?;
        if text.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if value.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        // SAFETY: `text` is not null and the value with its NUL is at most `length` bytes, for
        // which the caller guarantees that `text` is valid.
        unsafe {
            std::ptr::copy_nonoverlapping(value.as_ptr().cast(), text, value.len());
            text.add(value.len()).write(0);
        }
        Ok(())
    })
}

/// Runs the body of a C function and writes its list by NVML's convention: `count` is the capacity
/// on input and the number of items on output, also if the capacity is insufficient.
///
/// # Safety
/// `count` is null or valid for a read and a write; `items` is null or valid for writes of `*count`
/// items.
pub(super) unsafe fn return_list<T>(
    count: *mut c_uint,
    items: *mut T,
    run: impl FnOnce() -> Result<Vec<T>, Code>,
) -> c_uint {
    call(|| {
        let list = run()?;
        if count.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: `count` is not null, so the caller guarantees that it is valid.
        let capacity = unsafe { count.replace(list.len() as c_uint) } as usize;
        if list.is_empty() {
            return Ok(());
        }
        if capacity < list.len() || items.is_null() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (index, item) in list.into_iter().enumerate() {
            // SAFETY: `items` is not null and `index` is below the capacity, for which the caller
            // guarantees that `items` is valid.
            unsafe { items.add(index).write(item) };
        }
        Ok(())
    })
}
