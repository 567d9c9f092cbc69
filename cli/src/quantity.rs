//! Quantities in tables: one unit for each column, stated in its heading.

use std::time::Duration;

use wattle_common::{Energy, Power};

/// Width that every table fits unless a wider terminal or `--wide` allows more, columns.
pub(crate) const WIDTH: usize = 80;

/// Unit and precision of a column of energies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnergyUnit {
    kwh: bool,
    decimals: usize,
}

impl EnergyUnit {
    /// The unit for energies of which `largest` is the largest: kWh from 1 kWh on, else Wh, with about
    /// four significant digits of the largest.
    pub(crate) fn of(largest: Energy) -> Self {
        let kwh = largest.as_kwh() >= 1.0;
        let largest = if kwh { largest.as_kwh() } else { largest.as_kwh() * 1e3 };
        let decimals = match largest {
            l if l < 10.0 => 3,
            l if l < 100.0 => 2,
            _ => 1,
        };
        Self { kwh, decimals }
    }

    /// `kWh` or `Wh`.
    pub(crate) const fn name(self) -> &'static str {
        if self.kwh { "kWh" } else { "Wh" }
    }

    /// The number without its unit.
    pub(crate) fn number(self, energy: Energy) -> String {
        let value = if self.kwh { energy.as_kwh() } else { energy.as_kwh() * 1e3 };
        format!("{value:.*}", self.decimals)
    }
}

/// An energy in a sentence: `3.41 kWh`, `12.5 Wh`.
pub(crate) fn energy(energy: Energy) -> String {
    let unit = EnergyUnit::of(energy);
    let value = if unit.kwh { energy.as_kwh() } else { energy.as_kwh() * 1e3 };
    let decimals = unit.decimals.saturating_sub(1);
    format!("{value:.decimals$} {}", unit.name())
}

/// A power in a column of watts.
pub(crate) fn watts(power: Power) -> String {
    format!("{:.0}", power.as_w())
}

/// A power in a sentence: `840 W`, `12.4 kW`.
pub(crate) fn power(power: Power) -> String {
    let watts = power.as_w();
    if watts < 10_000.0 { format!("{watts:.0} W") } else { format!("{:.1} kW", watts / 1e3) }
}

/// A share in a sentence: `38 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A duration as `0:45`, `12:03`, `2:13:45` or `1-02:13:45`: [days-][hours:]minutes:seconds, as Slurm's
/// `squeue` prints it.
pub(crate) fn clock(span: Duration) -> String {
    let s = span.as_secs();
    let (days, hours, minutes, seconds) = (s / 86_400, s / 3_600 % 24, s / 60 % 60, s % 60);
    if days > 0 {
        format!("{days}-{hours:02}:{minutes:02}:{seconds:02}")
    } else if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// Parses a number whose unit is in the name of its option, for `value_parser`.
///
/// # Errors
/// For a text that is not a number; one with a unit is named as such.
pub(crate) fn number<T: std::str::FromStr>(text: &str, unit: &str) -> Result<T, String> {
    text.parse().map_err(|_| {
        let digits = text.trim_end_matches(|c: char| c.is_alphabetic() || c.is_whitespace());
        let has_unit = digits.len() < text.len() && digits.parse::<f64>().is_ok();
        let example = if has_unit { digits } else { "120" };
        format!("expected a number of {unit} without a unit, as in {example}")
    })
}

/// The first `width` characters of a text; a cut is marked by `…`.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_follows_the_largest_energy() {
        let kwh = |kwh: f64| Energy::from_j((kwh * 3.6e6).round() as u64);
        let unit = EnergyUnit::of(kwh(12.3));
        assert_eq!((unit.name(), unit.number(kwh(0.25)).as_str()), ("kWh", "0.25"));
        let unit = EnergyUnit::of(kwh(0.4));
        assert_eq!((unit.name(), unit.number(kwh(0.0123)).as_str()), ("Wh", "12.3"));
        assert_eq!(energy(kwh(3.4149)), "3.41 kWh");
        assert_eq!(energy(kwh(0.0125)), "12.5 Wh");
        assert_eq!(energy(Energy::ZERO), "0.00 Wh");
    }

    #[test]
    fn durations_are_as_squeue_prints_them() {
        let of = |s| clock(Duration::from_secs(s));
        assert_eq!([of(45), of(723), of(8_025)], ["0:45", "12:03", "2:13:45"]);
        assert_eq!(of(94_425), "1-02:13:45");
    }

    #[test]
    fn long_text_is_shortened_with_a_mark() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdefg", 6), "abcde…");
    }
}
