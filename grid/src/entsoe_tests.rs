//! Tests of day-ahead price documents, modelled after the format's guide; none was downloaded.
#![allow(
    clippy::float_cmp,
    clippy::unwrap_used,
    reason = "exact figures are meant; a test fails by panicking"
)]

use proptest::prelude::*;

use super::*;

/// A series with one period.
fn series(
    curve: &str,
    sequence: u32,
    start: &str,
    end: &str,
    step: &str,
    points: &[(u32, f64)],
) -> String {
    let points: String = points
        .iter()
        .map(|(position, price)| {
            format!(
                "<Point><position>{position}</position><price.amount>{price}</price.amount></Point>"
            )
        })
        .collect();
    format!(
        "<TimeSeries><mRID>1</mRID><auction.type>A01</auction.type><businessType>A62</businessType>\
         <in_Domain.mRID codingScheme=\"A01\">10Y1001A1001A82H</in_Domain.mRID>\
         <currency_Unit.name>EUR</currency_Unit.name><price_Measure_Unit.name>MWH</price_Measure_Unit.name>\
         <classificationSequence_AttributeInstanceComponent.position>{sequence}\
         </classificationSequence_AttributeInstanceComponent.position><curveType>{curve}</curveType>\
         <Period><timeInterval><start>{start}</start><end>{end}</end></timeInterval>\
         <resolution>{step}</resolution>{points}</Period></TimeSeries>"
    )
}

fn document(series: &[String]) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<Publication_MarketDocument \
         xmlns=\"urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3\"><mRID>a</mRID>\
         <revisionNumber>1</revisionNumber><type>A44</type>{}</Publication_MarketDocument>",
        series.concat()
    )
}

fn price(values: &SignalSeries, at: &str) -> Option<f64> {
    let at = instant::parse(at).unwrap();
    values.at(at).map(|interval| (interval.value * 1e6).round() / 1e3)
}

#[test]
fn an_omitted_position_repeats_the_price_before_it_with_a03_only() {
    let points = [(1, 50.0), (3, 60.5), (90, -12.25)];
    let (from, until) = ("2026-01-14T23:00Z", "2026-01-15T23:00Z");
    let at = |curve| {
        let text = document(&[series(curve, 1, from, until, "PT15M", &points)]);
        let values = parse(text.as_bytes()).unwrap();
        assert_eq!(values.currency.as_deref(), Some("EUR"));
        ["23:00", "23:15", "23:29", "23:30", "23:45"]
            .map(|time| price(&values, &format!("2026-01-14T{time}Z")))
            .into_iter()
            .chain(
                ["21:15", "22:59", "23:00"]
                    .map(|time| price(&values, &format!("2026-01-15T{time}Z"))),
            )
            .collect::<Vec<_>>()
    };
    let all = [
        Some(50.0),
        Some(50.0),
        Some(50.0),
        Some(60.5),
        Some(60.5),
        Some(-12.25),
        Some(-12.25),
        None,
    ];
    assert_eq!(at("A03"), all);
    assert_eq!(at("A01"), [Some(50.0), None, None, Some(60.5), None, Some(-12.25), None, None]);
}

#[test]
fn days_of_a_time_change_have_23_and_25_hours() {
    // Central European time: 29 March and 25 October 2026.
    for (from, until, hours) in [
        ("2026-03-28T23:00Z", "2026-03-29T22:00Z", 23),
        ("2026-10-24T22:00Z", "2026-10-25T23:00Z", 25),
    ] {
        let points: Vec<(u32, f64)> = (1..=hours).map(|n| (n, f64::from(n))).collect();
        let text = document(&[series("A01", 1, from, until, "PT60M", &points)]);
        let values = parse(text.as_bytes()).unwrap();
        assert_eq!(values.intervals.len(), hours as usize);
        assert_eq!(values.until(), instant::parse(until).unwrap());
        assert_eq!(price(&values, from), Some(1.0));
        let more = document(&[series("A01", 1, from, until, "PT60M", &[(hours + 1, 1.0)])]);
        let error = parse(more.as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("position `{}` of {hours} positions", hours + 1)),
            "{error}"
        );
    }
    // One price for a day of 25 hours.
    let one = document(&[series(
        "A03",
        1,
        "2026-10-24T22:00Z",
        "2026-10-25T23:00Z",
        "PT60M",
        &[(1, 5.0)],
    )]);
    assert_eq!(price(&parse(one.as_bytes()).unwrap(), "2026-10-25T22:59Z"), Some(5.0));
}

#[test]
fn of_overlapping_series_the_first_auction_and_the_finer_resolution_count() {
    let (from, until) = ("2026-01-01T00:00Z", "2026-01-01T02:00Z");
    let all = [
        series("A03", 1, from, until, "PT15M", &[(1, 15.0)]),
        series("A03", 2, from, until, "PT15M", &[(1, 99.0)]),
        series("A03", 1, from, until, "PT60M", &[(1, 60.0)]),
        series("A03", 2, until, "2026-01-01T03:00Z", "PT60M", &[(1, 42.0)]),
    ];
    let values = parse(document(&all).as_bytes()).unwrap();
    assert_eq!(price(&values, "2026-01-01T01:30Z"), Some(15.0));
    assert_eq!(price(&values, "2026-01-01T02:30Z"), Some(42.0));
}

#[test]
fn other_documents_are_refused_with_the_cause() {
    let (from, until) = ("2026-01-01T00:00Z", "2026-01-01T02:00Z");
    let good = document(&[series("A03", 1, from, until, "PT60M", &[(1, 15.0)])]);
    let error = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
    for (old, new, part) in [
        (">A44<", ">A61<", "document type `A61`"),
        (">MWH<", ">KWH<", "the unit is `KWH`"),
        (">A03<", ">A04<", "curve type `A04`"),
        ("PT60M", "PT7M", "resolution `PT7M`"),
        ("<start>2026-01-01T00:00Z", "<start>2026-01-01T00:00", "is not a time with an offset"),
        (
            "<start>2026-01-01T00:00Z",
            "<start>2026-01-01T00:10Z",
            "not a multiple of its resolution",
        ),
        (">15<", ">much<", "price `much`"),
        (">15<", ">NaN<", "out of range"),
        ("<Point>", "<Other>", "a day-ahead price document"),
    ] {
        assert!(good.contains(old), "{old}");
        let error = error(&good.replace(old, new));
        assert!(error.contains(part), "{new}: {error}");
    }
    assert!(error("<a/>").contains("the root element is `a`"));
    assert!(error("").contains("a day-ahead price document"));
    assert!(error(&document(&[])).contains("no value"));
    let refused = "<Acknowledgement_MarketDocument><Reason><code>999</code><text>No matching data found\
                   </text></Reason></Acknowledgement_MarketDocument>";
    assert!(error(refused).contains("the platform answered: No matching data found"));
}

#[test]
fn prices_of_two_zones_or_markets_are_refused() {
    let (from, until) = ("2026-01-01T00:00Z", "2026-01-01T02:00Z");
    let of = |zone: &str, contract: &str| {
        let named = format!(
            "<TimeSeries><in_Domain.mRID>{zone}</in_Domain.mRID><contract_MarketAgreement.type>{contract}\
             </contract_MarketAgreement.type>"
        );
        series("A03", 1, from, until, "PT60M", &[(1, 15.0)])
            .replace("<in_Domain.mRID codingScheme=\"A01\">10Y1001A1001A82H</in_Domain.mRID>", "")
            .replace("<TimeSeries>", &named)
    };
    assert!(parse(document(&[of("10Y-A", "A01"), of("10Y-A", "A01")]).as_bytes()).is_ok());
    let error = parse(document(&[of("10Y-A", "A01"), of("10Y-B", "A01")]).as_bytes());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`10Y-A`") && error.contains("`10Y-B`"), "{error}");
    let error = parse(document(&[of("10Y-A", "A07")]).as_bytes()).unwrap_err().to_string();
    assert!(error.contains("`A07`"), "{error}");
}

proptest! {
    /// Any bytes give a series or a named error.
    #[test]
    fn any_bytes_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&bytes);
        let _ = crate::electricity_maps::forecast("DE", &bytes);
        let _ = crate::watttime::series("DE", &bytes, true);
        let _ = crate::carbon_aware_sdk::forecast("DE", &bytes);
        let _ = crate::table::parse(&bytes);
    }

    /// A changed document gives a series that is ascending and finite, or a named error.
    #[test]
    fn a_changed_document_is_handled(
        position in 0usize..1_500, byte in any::<u8>(), points in prop::collection::vec((1u32..30, -500.0f64..500.0), 0..9),
    ) {
        let text = document(&[series("A03", 1, "2026-01-01T00:00Z", "2026-01-02T00:00Z", "PT60M", &points)]);
        let mut bytes = text.into_bytes();
        let position = position % bytes.len();
        bytes[position] = byte;
        if let Ok(values) = parse(&bytes) {
            prop_assert!(values.intervals.windows(2).all(|pair| pair[0].until <= pair[1].from));
            prop_assert!(values.intervals.iter().all(|i| i.value.is_finite() && i.from < i.until));
        }
    }
}
