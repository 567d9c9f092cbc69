//! The intake of Slurm's controller and the service know the same terms of a comment.

use std::collections::BTreeSet;

use wattle_site::Terms;

#[test]
fn the_intake_has_the_terms_of_the_service() {
    let unknown = Terms::parse("wattle: unknown", 0).unwrap_err().to_string();
    let (_, keys) = unknown.split_once("expected ").unwrap();
    let of_service: BTreeSet<&str> = keys.split(", ").flat_map(|part| part.split(" or ")).collect();
    let intake = include_str!("../../../deploy/slurm/wattle.lua");
    let (_, table) = intake.split_once("local TERMS = {\n").unwrap();
    let (table, _) = table.split_once("\n}\n").unwrap();
    // A line of a term has three spaces before its key: `gpus = {` or `["event-pause"] = {`.
    let of_intake: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("   ")?.split_once(" = {"))
        .map(|(key, _)| key.trim_start_matches("[\"").trim_end_matches("\"]"))
        .filter(|key| !key.contains(' '))
        .collect();
    assert_eq!(of_intake, of_service);
    assert!(of_service.len() >= 13, "{of_service:?}");
}
