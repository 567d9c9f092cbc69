//! Text that becomes part of a page: escaped, and figures as people read them.
//!
//! Every string that is not the report's own passes through [`escaped`]; names of traces, jobs and
//! workloads come from files of other people.

use std::fmt;

/// Text as it may stand in an element or in a quoted attribute. Characters that no page may hold
/// become the replacement character.
pub(super) fn escaped(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// A figure with three significant digits, and commas between thousands: `0.0123`, `1.25`, `1,234`.
pub(super) fn figure(value: f64) -> String {
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
pub(super) fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_once('.').map_or((number, None), |(w, r)| (w, Some(r)));
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

/// A unit in which numbers of some size read well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit {
    /// As it stands on an axis.
    pub(super) name: &'static str,
    /// How many of the base unit it is.
    pub(super) size: f64,
}

/// Keeps a number and its unit on one line.
const NO_BREAK: char = '\u{a0}';

impl Unit {
    /// The largest of `units` of which `value` has at least so many; the first where none is.
    fn of(value: f64, at_least: f64, units: &[(&'static str, f64)]) -> Self {
        let fits = |unit: &&(&'static str, f64)| value >= at_least * unit.1;
        let (name, size) = *units.iter().rev().find(fits).unwrap_or(&units[0]);
        Self { name, size }
    }

    /// For kilowatt-hours.
    pub(super) fn energy(kwh: f64) -> Self {
        Self::of(kwh, 2.0, &[("kWh", 1.0), ("MWh", 1e3), ("GWh", 1e6)])
    }

    /// For kilograms of CO2 equivalent.
    pub(super) fn carbon(kg: f64) -> Self {
        Self::of(kg, 2.0, &[("kg CO2e", 1.0), ("t CO2e", 1e3), ("kt CO2e", 1e6)])
    }

    /// For watts.
    pub(super) fn power(w: f64) -> Self {
        Self::of(w, 1.0, &[("W", 1.0), ("kW", 1e3), ("MW", 1e6)])
    }

    /// For seconds.
    pub(super) fn time(s: f64) -> Self {
        Self::of(s, 3.0, &[("s", 1.0), ("min", 60.0), ("h", 3_600.0), ("d", 86_400.0)])
    }

    /// For seconds, not beyond hours: completion times of jobs.
    pub(super) fn hours(s: f64) -> Self {
        Self::of(s, 2.0, &[("s", 1.0), ("min", 60.0), ("h", 3_600.0)])
    }

    /// `value`, of the base unit, with this unit's name.
    pub(super) fn said(self, value: f64) -> String {
        format!("{}{NO_BREAK}{}", figure(value / self.size), self.name)
    }

    /// As it is called on an axis, where there is room.
    pub(super) fn axis(self) -> &'static str {
        match self.name {
            "s" => "seconds",
            "min" => "minutes",
            "h" => "hours",
            "d" => "days",
            short => short,
        }
    }
}

/// Seconds as a person says them.
pub(super) fn time(s: f64) -> String {
    Unit::time(s).said(s)
}

/// A share of one as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}{NO_BREAK}%", 100.0 * share)
}

/// A relative change: `+3.2 %`.
pub(super) fn change(new: f64, old: f64) -> Option<String> {
    // No sign on what rounds to nothing.
    let said = |percent: f64| match format!("{percent:+.1}").as_str() {
        "+0.0" | "-0.0" => format!("0.0{NO_BREAK}%"),
        signed => format!("{signed}{NO_BREAK}%"),
    };
    (old > 0.0).then(|| said(100.0 * (new / old - 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_markup_is_text() {
        let evil = "<script>alert('1')</script>&\"\u{1}";
        assert_eq!(
            escaped(evil),
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;\u{fffd}"
        );
    }

    #[test]
    fn figures_have_three_digits() {
        let said: Vec<String> =
            [0.0, 0.01234, 0.5, 9.996, 12.34, 99.96, 1_234.4, -1_234_567.0].map(figure).to_vec();
        assert_eq!(said, ["0", "0.0123", "0.500", "10.0", "12.3", "100", "1,234", "-1,234,567"]);
    }

    #[test]
    fn units_follow_the_size() {
        let said: Vec<String> = [1.0, 150.0, 7_200.0, 200_000.0, 300_000.0].map(time).to_vec();
        assert_eq!(said.join("/").replace(NO_BREAK, " "), "1.00 s/150 s/120 min/55.6 h/3.47 d");
        assert_eq!(Unit::energy(5_100.0).said(5_100.0), "5.10\u{a0}MWh");
        assert_eq!(change(1.1, 1.0).as_deref(), Some("+10.0\u{a0}%"));
        assert_eq!(change(0.9999, 1.0).as_deref(), Some("0.0\u{a0}%"));
    }
}
