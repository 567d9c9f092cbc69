//! Numbers, units and durations as readable text.

/// A number with three significant digits and commas between thousands: `0.0123`, `1.25`, `1,234`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        _ if size == 0.0 || size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ => (2.0 - size.log10().floor()).clamp(0.0, 9.0) as usize,
    };
    grouped(&format!("{value:.digits$}"))
}

/// A decimal number with commas between thousands.
pub fn grouped(decimal: &str) -> String {
    let (whole, rest) = decimal.split_once('.').map_or((decimal, None), |(w, r)| (w, Some(r)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut text = sign.to_owned();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(rest) = rest {
        text.push('.');
        text.push_str(rest);
    }
    text
}

/// A unit chosen by the size of the numbers shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Its symbol.
    pub name: &'static str,
    /// Its size in the base unit.
    pub size: f64,
}

/// Between a number and its unit.
pub const NO_BREAK: char = '\u{a0}';

impl Unit {
    /// The largest of `units` in which `value` is at least `at_least`; the first where none is.
    fn of(value: f64, at_least: f64, units: &[(&'static str, f64)]) -> Self {
        let fits = |unit: &&(&'static str, f64)| value >= at_least * unit.1;
        let (name, size) = *units.iter().rev().find(fits).unwrap_or(&units[0]);
        Self { name, size }
    }

    /// For kilowatt-hours.
    pub fn energy(kwh: f64) -> Self {
        Self::of(kwh, 2.0, &[("kWh", 1.0), ("MWh", 1e3), ("GWh", 1e6)])
    }

    /// For kilograms of CO2 equivalent.
    pub fn carbon(kg: f64) -> Self {
        Self::of(kg, 2.0, &[("kg CO2e", 1.0), ("t CO2e", 1e3), ("kt CO2e", 1e6)])
    }

    /// For watts.
    pub fn power(w: f64) -> Self {
        Self::of(w, 1.0, &[("W", 1.0), ("kW", 1e3), ("MW", 1e6)])
    }

    /// For seconds.
    pub fn time(s: f64) -> Self {
        Self::of(s, 3.0, &[("s", 1.0), ("min", 60.0), ("h", 3_600.0), ("d", 86_400.0)])
    }

    /// For seconds, up to hours: completion times of jobs.
    pub fn hours(s: f64) -> Self {
        Self::of(s, 2.0, &[("s", 1.0), ("min", 60.0), ("h", 3_600.0)])
    }

    /// `value`, given in the base unit, with this unit's symbol.
    pub fn format(self, value: f64) -> String {
        format!("{}{NO_BREAK}{}", number(value / self.size), self.name)
    }

    /// Its name on an axis: written out for durations.
    pub fn axis(self) -> &'static str {
        match self.name {
            "s" => "seconds",
            "min" => "minutes",
            "h" => "hours",
            "d" => "days",
            short => short,
        }
    }
}

/// A duration in seconds, with a unit of its size.
pub fn duration(s: f64) -> String {
    Unit::time(s).format(s)
}

/// A fraction as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.0}{NO_BREAK}%", 100.0 * share)
}

/// A relative change: `+3.2 %`.
pub fn change(new: f64, old: f64) -> Option<String> {
    // Zero after rounding has no sign.
    let show = |percent: f64| match format!("{percent:+.1}").as_str() {
        "+0.0" | "-0.0" => format!("0.0{NO_BREAK}%"),
        signed => format!("{signed}{NO_BREAK}%"),
    };
    (old > 0.0).then(|| show(100.0 * (new / old - 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let texts: Vec<String> =
            [0.0, 0.01234, 0.5, 9.996, 12.34, 99.96, 1_234.4, -1_234_567.0].map(number).to_vec();
        assert_eq!(texts, ["0", "0.0123", "0.500", "10.0", "12.3", "100", "1,234", "-1,234,567"]);
    }

    #[test]
    fn units_follow_the_size() {
        let texts: Vec<String> = [1.0, 150.0, 7_200.0, 200_000.0, 300_000.0].map(duration).to_vec();
        assert_eq!(texts.join("/").replace(NO_BREAK, " "), "1.00 s/150 s/120 min/55.6 h/3.47 d");
        assert_eq!(Unit::energy(5_100.0).format(5_100.0), "5.10\u{a0}MWh");
        assert_eq!(change(1.1, 1.0).as_deref(), Some("+10.0\u{a0}%"));
        assert_eq!(change(0.9999, 1.0).as_deref(), Some("0.0\u{a0}%"));
    }
}
