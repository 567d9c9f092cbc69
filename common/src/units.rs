//! Physical quantities, one type each.
//!
//! Types are named by quantity and constructed by unit, like `std::time::Duration`. Values are the
//! integers that NVML uses (milliwatts, millijoules, megahertz), so sums do not depend on their order
//! and messages are exact. Models convert to and from `f64`.
//!
//! ```
//! use std::time::Duration;
//! use wattle_common::{Energy, Power};
//! let cap = Power::from_w(250);
//! assert_eq!(cap.to_string(), "250 W");
//! assert_eq!(cap.over(Duration::from_secs(4)), Energy::from_j(1_000));
//! ```

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name($int);

        impl $name {
            /// Zero. A missing reading is `Option::None`, never zero.
            pub const ZERO: Self = Self(0);

            /// The difference to `other`, at least zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// This quantity times a non-negative ratio, rounded to the nearest unit.
            #[must_use]
            #[allow(clippy::cast_lossless)]
            pub fn scale(self, ratio: f64) -> Self {
                Self((self.0 as f64 * ratio.max(0.0)).round() as $int)
            }

            /// This quantity as a share of `total`; 0 if `total` is zero.
            #[must_use]
            #[allow(clippy::cast_lossless)]
            pub fn ratio(self, total: Self) -> f64 {
                if total.0 == 0 { 0.0 } else { self.0 as f64 / total.0 as f64 }
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                debug_assert!(self.0 >= other.0, "{} would fall below zero", stringify!($name));
                self.saturating_sub(other)
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    };
}

quantity!(
    /// Electrical power, in integer milliwatts (NVML's unit).
    Power,
    u64
);
quantity!(
    /// Energy, in integer millijoules (the unit of NVML's energy counter).
    Energy,
    u64
);
quantity!(
    /// A clock frequency, in integer megahertz.
    Frequency,
    u32
);
quantity!(
    /// Carbon intensity of electricity, in integer milligrams of CO2 equivalent per kilowatt-hour.
    CarbonIntensity,
    u64
);
quantity!(
    /// Emitted carbon, in integer micrograms of CO2 equivalent.
    Carbon,
    u64
);

/// `value`, at most the largest `u64`.
fn saturated(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Millijoules in a kilowatt-hour: 3.6 MJ.
const MJ_PER_KWH: u64 = 3_600_000_000;

impl Power {
    /// From milliwatts.
    #[must_use]
    pub const fn from_mw(milliwatts: u64) -> Self {
        Self(milliwatts)
    }
    /// From watts.
    #[must_use]
    pub const fn from_w(watts: u64) -> Self {
        Self(watts.saturating_mul(1_000))
    }
    /// From a model's watts; a negative value or NaN becomes zero.
    #[must_use]
    pub fn from_w_f64(watts: f64) -> Self {
        Self((watts.max(0.0) * 1_000.0).round() as u64)
    }
    /// In milliwatts.
    #[must_use]
    pub const fn as_mw(self) -> u64 {
        self.0
    }
    /// In watts, for models and display.
    #[must_use]
    pub fn as_w(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
    /// The energy of this constant power over `span`, rounded down to millijoules.
    ///
    /// [`EnergyMeter`] sums many spans without rounding errors.
    #[must_use]
    pub fn over(self, span: Duration) -> Energy {
        Energy(saturated(u128::from(self.0).saturating_mul(span.as_micros()) / 1_000_000))
    }
}

impl Energy {
    /// From millijoules.
    #[must_use]
    pub const fn from_mj(millijoules: u64) -> Self {
        Self(millijoules)
    }
    /// From joules.
    #[must_use]
    pub const fn from_j(joules: u64) -> Self {
        Self(joules.saturating_mul(1_000))
    }
    /// In millijoules.
    #[must_use]
    pub const fn as_mj(self) -> u64 {
        self.0
    }
    /// In joules, for models and display.
    #[must_use]
    pub fn as_j(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
    /// In kilowatt-hours, for reports.
    #[must_use]
    pub fn as_kwh(self) -> f64 {
        self.0 as f64 / MJ_PER_KWH as f64
    }
    /// The mean power of this energy over `span`; `None` for an empty span.
    #[must_use]
    pub fn mean_power(self, span: Duration) -> Option<Power> {
        let micros = span.as_micros();
        (micros > 0).then(|| Power(saturated(u128::from(self.0) * 1_000_000 / micros)))
    }
    /// The carbon emitted by this energy at `intensity`.
    ///
    /// mJ x mg/kWh / (3.6e9 mJ/kWh) = mg, times 1,000 = µg.
    #[must_use]
    pub fn carbon(self, intensity: CarbonIntensity) -> Carbon {
        let product = u128::from(self.0) * u128::from(intensity.0);
        Carbon(saturated(product.saturating_mul(1_000) / u128::from(MJ_PER_KWH)))
    }
}

impl Frequency {
    /// From megahertz.
    #[must_use]
    pub const fn from_mhz(megahertz: u32) -> Self {
        Self(megahertz)
    }
    /// In megahertz.
    #[must_use]
    pub const fn as_mhz(self) -> u32 {
        self.0
    }
}

impl CarbonIntensity {
    /// From grams of CO2 equivalent per kilowatt-hour.
    #[must_use]
    pub fn from_g_per_kwh(grams: f64) -> Self {
        Self((grams.max(0.0) * 1_000.0).round() as u64)
    }
    /// In grams of CO2 equivalent per kilowatt-hour.
    #[must_use]
    pub fn as_g_per_kwh(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

impl Carbon {
    /// From micrograms of CO2 equivalent.
    #[must_use]
    pub const fn from_ug(micrograms: u64) -> Self {
        Self(micrograms)
    }
    /// In grams of CO2 equivalent.
    #[must_use]
    pub fn as_g(self) -> f64 {
        self.0 as f64 / 1_000_000.0
    }
    /// In kilograms of CO2 equivalent.
    #[must_use]
    pub fn as_kg(self) -> f64 {
        self.as_g() / 1_000.0
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1_000) {
            write!(f, "{} W", self.0 / 1_000)
        } else {
            write!(f, "{:.1} W", self.as_w())
        }
    }
}
impl fmt::Display for Energy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} J", self.as_j()),
            1_000_000..360_000_000 => write!(f, "{:.1} kJ", self.as_j() / 1_000.0),
            _ => write!(f, "{:.2} kWh", self.as_kwh()),
        }
    }
}
impl fmt::Display for Frequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MHz", self.0)
    }
}
impl fmt::Display for CarbonIntensity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} g/kWh", self.as_g_per_kwh())
    }
}
impl fmt::Display for Carbon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.as_kg() < 1.0 {
            write!(f, "{:.1} g", self.as_g())
        } else {
            write!(f, "{:.2} kg", self.as_kg())
        }
    }
}

/// Integrates power over time without rounding errors.
///
/// It counts nanojoules (a milliwatt for a microsecond), so the sum of small steps is exactly the
/// result of one large step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergyMeter {
    nanojoules: u128,
}

impl EnergyMeter {
    /// A meter that continues from another one's [`EnergyMeter::as_nj`].
    #[must_use]
    pub const fn from_nj(nanojoules: u128) -> Self {
        Self { nanojoules }
    }
    /// The total in nanojoules, without rounding.
    #[must_use]
    pub const fn as_nj(&self) -> u128 {
        self.nanojoules
    }
    /// Adds `power` held constant for `span`.
    pub fn add(&mut self, power: Power, span: Duration) {
        let added = u128::from(power.0).saturating_mul(span.as_micros());
        self.nanojoules = self.nanojoules.saturating_add(added);
    }
    /// The total, rounded down to millijoules.
    #[must_use]
    pub fn total(&self) -> Energy {
        Energy(saturated(self.nanojoules / 1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_display_with_units() {
        assert_eq!(Power::from_mw(250_500).to_string(), "250.5 W");
        assert_eq!(Energy::from_mj(MJ_PER_KWH).to_string(), "1.00 kWh");
        // 2 kWh at 250 g/kWh are 500 g.
        let carbon = Energy::from_mj(2 * MJ_PER_KWH).carbon(CarbonIntensity::from_g_per_kwh(250.0));
        assert_eq!(carbon.to_string(), "500.0 g");
        assert_eq!(
            Energy::from_j(500).mean_power(Duration::from_secs(2)),
            Some(Power::from_w(250))
        );
        assert_eq!(Energy::from_j(500).mean_power(Duration::ZERO), None);
    }

    proptest! {
        /// Constant power over t gives exactly P x t for any division of t.
        #[test]
        fn constant_power_integrates_exactly(mw in 0u64..2_000_000, cuts in prop::collection::vec(1u64..5_000_000, 1..200)) {
            let mut meter = EnergyMeter::default();
            for cut in &cuts {
                meter.add(Power::from_mw(mw), Duration::from_micros(*cut));
            }
            let total = Duration::from_micros(cuts.iter().sum());
            prop_assert_eq!(meter.total(), Power::from_mw(mw).over(total));
        }

        /// Energy is additive: the sum of two energies and the energy of the sum agree to a millijoule.
        #[test]
        fn energy_is_additive(a in 0u64..1_000_000, b in 0u64..1_000_000, us in 0u64..10_000_000_000) {
            let span = Duration::from_micros(us);
            let both = (Power::from_mw(a) + Power::from_mw(b)).over(span);
            let apart = Power::from_mw(a).over(span) + Power::from_mw(b).over(span);
            prop_assert!(both.as_mj().abs_diff(apart.as_mj()) <= 1);
        }

        /// Scaling by a ratio and taking the ratio differ only by rounding.
        #[test]
        fn ratio_inverts_scale(mw in 1_000u64..1_000_000, percent in 1u32..=100) {
            let ratio = f64::from(percent) / 100.0;
            let scaled = Power::from_mw(mw).scale(ratio);
            prop_assert!((scaled.ratio(Power::from_mw(mw)) - ratio).abs() < 1e-3);
        }

        /// A quantity is serialised as its integer.
        #[test]
        fn serialised_form_is_the_integer(mw in any::<u64>()) {
            let json = serde_json::to_string(&Power::from_mw(mw)).unwrap();
            prop_assert_eq!(&json, &mw.to_string());
            prop_assert_eq!(serde_json::from_str::<Power>(&json).unwrap(), Power::from_mw(mw));
        }
    }
}
