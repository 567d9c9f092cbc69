//! An absent reading never becomes a number: no statement of the source that names an optional reading replaces
//! its absence by a default, or leaves it out of a sum. Sums are made by `wattle_common::total::Total`, which
//! counts what is missing.

use crate::tidy::{files, shown};

/// Optional readings, as fields of readings, summaries, reports and records.
const READINGS: [&str; 19] = [
    "power_mw_mean",
    "power_mw",
    "energy_mj_total",
    "energy_mj_gpus",
    "energy_mj_open",
    "energy_total",
    "utilization_gpu_percent_mean",
    "utilization_gpu_percent",
    "memory_used_mib",
    "memory_free_mib",
    "memory_mib",
    "temperature_c",
    "cap_mw_min",
    "cap_mw_max",
    "clock_mhz_supported_max",
    "power_mw_expected",
    "power_mw_baseline",
    "power_mw_budget_mean",
    "intensity_mg_per_kwh",
];

/// Crates that read, state or plan with readings.
const CRATES: [&str; 9] = [
    "cli/",
    "common/",
    "gpu/",
    "placer/",
    "power-agent/",
    "profiler/",
    "runtime/",
    "view/",
    "web/",
];

/// Statements that may: the file, a part of the statement, and why no reading is invented.
const ALLOWED: [(&str, &str, &str); 2] = [
    ("common/src/messages/ledger.rs", "energy_mj_gpus", "the sum is documented as a lower bound"),
    ("common/src/bounds/", "", "a limit holds for an absent value"),
];

/// Whether a statement replaces absence by a number.
fn invents(statement: &str) -> bool {
    // An empty cell is no number.
    let statement = &statement.replace(".map(watts).unwrap_or_default()", "");
    let replaced =
        ["unwrap_or_default()", "unwrap_or(0", "unwrap_or(Power::ZERO", "unwrap_or(Energy::ZERO"]
            .into_iter()
            .chain(["map_or(0", "map_or(Power::ZERO", "map_or(Energy::ZERO"]);
    let summed = statement.contains(".sum(") || statement.contains(".sum::<");
    let left_out = [".filter_map(", ".flatten()", ".flat_map("].into_iter();
    replaced.into_iter().any(|call| statement.contains(call))
        || (summed && left_out.into_iter().any(|call| statement.contains(call)))
}

/// Whether a statement reads this field.
fn names(statement: &str, field: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    statement.match_indices(field).any(|(at, _)| {
        let ends = !statement[at + field.len()..].starts_with(|c| is_word(c) || c == '(');
        statement[..at].ends_with('.') && ends
    })
}

/// The statements of a file before its tests, and the parts of lists, without comments and line breaks.
fn statements(text: &str) -> Vec<String> {
    let source = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code = source.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    let code = code.collect::<String>();
    code.split([';', '{', '}', ',']).map(str::to_owned).collect()
}

#[test]
fn no_absent_reading_becomes_a_number() {
    let mut found = Vec::new();
    let mut read = 0;
    for path in files(".rs") {
        let file = shown(&path);
        let is_source = CRATES.iter().any(|folder| file.starts_with(folder))
            && file.contains("/src/")
            && !file.contains("/tests");
        if !is_source {
            continue;
        }
        for statement in statements(&std::fs::read_to_string(&path).unwrap()) {
            if !READINGS.iter().any(|field| names(&statement, field)) {
                continue;
            }
            read += 1;
            let allowed = |(of, part, _): &(&str, &str, &str)| {
                file.starts_with(of) && statement.contains(part)
            };
            if invents(&statement) && !ALLOWED.iter().any(allowed) {
                found.push(format!("{file}: {statement}"));
            }
        }
    }
    assert!(read > 50, "the fields are found: {read}");
    assert!(found.is_empty(), "an absent reading becomes a number:\n{}", found.join("\n"));
}

/// The page draws what is absent as absent: none of its scripts has a number in its place.
#[test]
fn no_script_of_the_page_has_a_number_for_an_absent_value() {
    let numbers = ["?? 0", "|| 0", "??0", "||0"];
    let mut read = 0;
    for path in files(".js").into_iter().filter(|path| shown(path).starts_with("web/assets/")) {
        read += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let found = text.lines().find(|line| numbers.iter().any(|number| line.contains(number)));
        assert_eq!(found, None, "{}", shown(&path));
    }
    assert!(read > 5, "{read} scripts");
}

#[test]
fn inventions_are_recognised() {
    let is_found =
        |code: &str| statements(code).iter().any(|one| names(one, "power_mw_mean") && invents(one));
    for code in [
        "let w: Power = gpus.iter().filter_map(|gpu| gpu.power_mw_mean).sum();",
        "let w = gpu\n    .power_mw_mean\n    .unwrap_or_default();",
        "let w = gpu.power_mw_mean.map_or(Power::ZERO, half);",
        "let w: Power = gpus.map(|gpu| gpu.power_mw_mean).flatten().sum();",
    ] {
        assert!(is_found(code), "{code}");
    }
    for code in [
        "let w: Total<Power> = gpus.iter().map(|gpu| gpu.power_mw_mean).collect();",
        "let w = gpu.power_mw_mean.map(watts).unwrap_or(\"-\");",
        "let w: Option<Power> = gpus.map(|gpu| gpu.power_mw_mean).sum();",
        "// gpu.power_mw_mean.unwrap_or_default()",
        "#[cfg(test)]\nfn of(gpu: Gpu) -> Power { gpu.power_mw_mean.unwrap_or_default() }",
    ] {
        assert!(!is_found(code), "{code}");
    }
}
