//! Day-ahead prices in the format of the ENTSO-E Transparency Platform: `Publication_MarketDocument`, type A44.
//!
//! A document has time series with periods. A period has a start, an end and a resolution (`PT15M`, `PT30M`,
//! `PT60M`), and points with positions from 1. With curve type A03 an omitted position has the price of the one
//! before it; with A01 it has none. Prices are per MWh in the currency of the series.
//!
//! Times are UTC, so the day of a time change has 23 or 25 hours of positions. Of series that overlap, the first
//! auction (`classificationSequence`) counts, then the finer resolution.
//! Source: ENTSO-E, Transparency Platform data extraction process implementation guide, and IEC 62325-451-3.

use std::time::Duration;

use roxmltree::{Document, Node};
use wattle_common::messages::Origin;

use crate::instant;
use crate::parse_error::ParseError;
use crate::series::{INTERVALS_MAX, Interval, Signal, SignalSeries, overlaid};

/// Kilowatt-hours in a megawatt-hour.
const KWH_PER_MWH: f64 = 1_000.0;
/// Most XML nodes that are read: a year of quarter hours has fewer.
const NODES_MAX: u32 = 500_000;

fn wrong(cause: impl Into<String>) -> ParseError {
    ParseError::Format { expected: "a day-ahead price document (A44)", cause: cause.into() }
}

fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The child element of this name.
fn child<'a>(node: Node<'a, 'a>, name: &str) -> Option<Node<'a, 'a>> {
    node.children().find(|child| child.is_element() && child.tag_name().name() == name)
}

fn children<'a>(node: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    node.children().filter(move |child| child.is_element() && child.tag_name().name() == name)
}

/// The text of a child element.
fn text<'a>(node: Node<'a, 'a>, name: &str) -> Option<&'a str> {
    child(node, name)?.text().map(str::trim)
}

fn required<'a>(node: Node<'a, 'a>, name: &str) -> Result<&'a str, ParseError> {
    let parent = node.tag_name().name();
    text(node, name).ok_or_else(|| wrong(format!("`{name}` is missing in `{parent}`")))
}

fn resolution(text: &str) -> Result<Duration, ParseError> {
    let minutes = match text {
        "PT15M" => 15,
        "PT30M" => 30,
        "PT60M" | "PT1H" => 60,
        "P1D" => 1_440,
        _ => return Err(wrong(format!("resolution `{}`", short(text)))),
    };
    Ok(Duration::from_secs(minutes * 60))
}

/// The prices of a period: each from its position until the next, or of one position with curve type A01.
fn period(node: Node<'_, '_>, repeats: bool, step: Duration) -> Result<Vec<Interval>, ParseError> {
    let interval = child(node, "timeInterval").ok_or_else(|| wrong("a period without interval"))?;
    let start = instant::parse(required(interval, "start")?)?;
    let end = instant::parse(required(interval, "end")?)?;
    let length = end.since(start).as_secs();
    if end <= start || !length.is_multiple_of(step.as_secs()) {
        return Err(wrong("a period is not a multiple of its resolution"));
    }
    let count = length / step.as_secs();
    if count > INTERVALS_MAX as u64 {
        return Err(ParseError::TooMany(INTERVALS_MAX));
    }
    let mut points = Vec::new();
    for point in children(node, "Point") {
        let position = required(point, "position")?;
        let number: u64 = position.parse().unwrap_or(0);
        if !(1..=count).contains(&number) {
            let cause = format!("position `{}` of {count} positions", short(position));
            return Err(wrong(cause));
        }
        let amount = required(point, "price.amount")?;
        let price: f64 = amount.parse().map_err(|_| wrong(format!("price `{}`", short(amount))))?;
        points.push((number - 1, price / KWH_PER_MWH));
    }
    points.sort_by_key(|(position, _)| *position);
    let at = |position: u64| start + Duration::from_secs(position * step.as_secs());
    let next = |i: usize| points.get(i + 1).map_or(count, |(position, _)| *position);
    let intervals = points.iter().enumerate().map(|(i, (position, value))| {
        let until = if repeats { next(i) } else { position + 1 };
        Interval { from: at(*position), until: at(until), value: *value, origin: Origin::Measured }
    });
    Ok(intervals.collect())
}

/// Parses a document.
///
/// # Errors
/// [`ParseError`] names what is wrong: another document, unit, curve type or resolution, positions outside the
/// period, two currencies, zones or markets.
pub fn parse(bytes: &[u8]) -> Result<SignalSeries, ParseError> {
    let text_of = std::str::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    let options = roxmltree::ParsingOptions { nodes_limit: NODES_MAX, ..Default::default() };
    let document = Document::parse_with_options(text_of.trim_start_matches('\u{feff}'), options)
        .map_err(|error| wrong(error.to_string()))?;
    let root = document.root_element();
    match root.tag_name().name() {
        "Publication_MarketDocument" => {}
        "Acknowledgement_MarketDocument" => {
            let reason = child(root, "Reason").and_then(|reason| text(reason, "text"));
            return Err(wrong(format!("the platform answered: {}", short(reason.unwrap_or("")))));
        }
        other => return Err(wrong(format!("the root element is `{}`", short(other)))),
    }
    let kind = required(root, "type")?;
    if kind != "A44" {
        return Err(wrong(format!("document type `{}`", short(kind))));
    }
    let mut currency: Option<&str> = None;
    let mut zone: Option<&str> = None;
    let mut all = Vec::new();
    for series in children(root, "TimeSeries") {
        let unit = required(series, "price_Measure_Unit.name")?;
        if unit != "MWH" {
            return Err(ParseError::Unit { given: short(unit), expected: "MWH" });
        }
        let own = required(series, "currency_Unit.name")?;
        if *currency.get_or_insert(own) != own {
            return Err(wrong("prices in two currencies"));
        }
        if let Some(own) = text(series, "in_Domain.mRID") {
            let zone = zone.get_or_insert(own);
            if *zone != own {
                return Err(ParseError::TwoSeries(short(zone), short(own)));
            }
        }
        // A01 is the day-ahead market.
        let market = text(series, "contract_MarketAgreement.type");
        if let Some(other) = market.filter(|market| *market != "A01") {
            return Err(wrong(format!("prices of the contract type `{}`", short(other))));
        }
        let repeats = match text(series, "curveType") {
            Some("A03") => true,
            Some("A01") | None => false,
            Some(other) => return Err(wrong(format!("curve type `{}`", short(other)))),
        };
        let sequence = text(series, "classificationSequence_AttributeInstanceComponent.position");
        let sequence: u32 = sequence.and_then(|text| text.parse().ok()).unwrap_or(1);
        for node in children(series, "Period") {
            let step = resolution(required(node, "resolution")?)?;
            all.push((sequence, step, period(node, repeats, step)?));
        }
    }
    // Later ones replace earlier ones.
    all.sort_by_key(|(sequence, step, _)| std::cmp::Reverse((*sequence, *step)));
    let mut intervals: Vec<Interval> = Vec::new();
    for (.., period) in all {
        // The order and the length of this period are checked before they count.
        let checked = SignalSeries::new(Signal::Price, period)?;
        intervals = overlaid(&intervals, &checked.intervals);
        if intervals.len() > INTERVALS_MAX {
            return Err(ParseError::TooMany(INTERVALS_MAX));
        }
    }
    let mut values = SignalSeries::new(Signal::Price, intervals)?;
    values.currency = currency.map(str::to_owned);
    Ok(values)
}

#[cfg(test)]
#[path = "entsoe_tests.rs"]
mod tests;
