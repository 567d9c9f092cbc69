//! Prose and identifiers use standard terms: a list of banned words and phrases over code, messages
//! and documentation.
//!
//! Identifiers are checked as words (`foo_bar` is read as `foo bar`). [`BANNED`] gives each pattern
//! with its replacement; docs/glossary.md has the terms of the project.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::tidy::{files, root, shown};

/// Banned words and phrases, in lower case, each with the standard replacement. A phrase matches whole
/// words in sequence.
const BANNED: &[(&[&str], &str)] = &[
    (&["whom", "whoever", "whomever"], "`which`, or name the component"),
    (
        &["somebody", "nobody", "everybody", "anybody", "someone", "anyone", "everyone"],
        "name the job, node, user or component",
    ),
    (&["told", "tell", "tells", "telling", "untold"], "reports, returns, receives, is given"),
    (
        &[
            "foretold",
            "foretell",
            "foretells",
            "foretelling",
            "foresee",
            "foresees",
            "foreseen",
            "foresaw",
        ],
        "predicts, predicted, forecast",
    ),
    (&["asked", "asks", "asking"], "requests, requested"),
    (&["hears", "heard", "hearing"], "receives, reports"),
    (&["says", "said", "saying"], "states, reports, contains, declares"),
    (
        &["thrift", "thrifty", "thriftier", "thriftiest", "thriftily"],
        "lowest-power, most efficient",
    ),
    (&["dear", "dearer", "dearest"], "costly, expensive"),
    (&["tryst", "haunted", "bequeath", "bequeathed", "kin", "nap", "naps"], "use the field's term"),
    (&["mate", "mates"], "co-tenant"),
    (&["reckon", "reckons", "reckoned", "reckoning"], "estimate, account for"),
    (&["anew"], "again, from scratch"),
    (&["mend", "mends", "mended", "mending"], "fix, fixed"),
    (&["wish", "wishes", "wished"], "request, target"),
    (&["stood"], "was in force, was current"),
    (&["goes on", "going on", "go on", "went on"], "continues, resumes"),
    (
        &["taken for", "comes to rest", "come to rest", "of late", "on hope", "lose its head"],
        "plain terms",
    ),
    (
        &["looked after", "looks after", "too dear", "so many", "in its stead", "stands by"],
        "plain terms",
    ),
    (
        &[
            "what is drawn",
            "what is spent",
            "what is known",
            "what is left",
            "what is there",
            "what was spent",
            "what was seen",
            "what was drawn",
            "what may be spent",
            "what has been spent",
            "what is expected",
            "what is asked",
            "what is needed",
        ],
        "name the quantity",
    ),
];

/// A phrase as words, and its replacement.
type Phrase = (Vec<&'static str>, &'static str);

/// The banned phrases by their first word.
static PHRASES: LazyLock<BTreeMap<&'static str, Vec<Phrase>>> = LazyLock::new(|| {
    let mut by_first: BTreeMap<&str, Vec<Phrase>> = BTreeMap::new();
    for (phrases, replacement) in BANNED {
        for phrase in *phrases {
            let words: Vec<&str> = phrase.split(' ').collect();
            by_first.entry(words[0]).or_default().push((words, replacement));
        }
    }
    by_first
});

/// Words before `who` that denote people.
const PEOPLE: &[&str] = &[
    "operator",
    "operators",
    "user",
    "users",
    "person",
    "people",
    "owner",
    "owners",
    "reader",
    "readers",
    "author",
    "authors",
];

/// The words of a line in lower case; identifiers are split at `_` and at capitals.
fn words(line: &str) -> Vec<String> {
    let mut spaced = String::with_capacity(line.len() + 16);
    let mut lower = false;
    for c in line.chars() {
        if c.is_ascii_uppercase() && lower {
            spaced.push(' ');
        }
        lower = c.is_ascii_lowercase();
        spaced.push(c);
    }
    spaced
        .split(|c: char| !c.is_alphabetic() && c != '\'')
        .map(|word| word.trim_matches('\'').to_lowercase())
        .filter(|word| !word.is_empty())
        .collect()
}

/// Letters of a word that are compared before its line is read word by word.
const PREFIX_LEN: usize = 3;

/// How a word begins of which each banned word or phrase has one: the first letters of its longest. A shorter word
/// ends within them, before a space or, in an identifier, before the next word.
static PREFIXES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut prefixes = BTreeSet::from(["who".to_owned()]);
    for (words, _) in PHRASES.values().flatten() {
        let (at, longest) =
            words.iter().enumerate().max_by_key(|(at, word)| (word.len(), Reverse(*at))).unwrap();
        if longest.len() >= PREFIX_LEN {
            prefixes.insert(longest[..PREFIX_LEN].to_owned());
        } else {
            prefixes.insert(format!("{longest} "));
            prefixes.extend(words.get(at + 1).map(|next| format!("{longest}{}", &next[..1])));
        }
    }
    assert!(prefixes.iter().all(|prefix| prefix.len() == PREFIX_LEN), "{prefixes:?}");
    prefixes
});

/// The lines of a text that may have a banned term, with their numbers. They are few: [`violations`] reads them, and
/// not the others.
fn suspects(text: &str) -> Vec<(usize, &str)> {
    let letters = text.to_ascii_lowercase().replace(|c: char| !c.is_ascii_lowercase(), " ");
    // A character that is not ASCII has become one space.
    let mut at = 0;
    let mut before = ' ';
    let mut found = Vec::new();
    for (number, line) in text.split('\n').enumerate() {
        let mut suspected = false;
        for c in line.chars().chain(['\n']) {
            // A word begins after anything but a letter, in an identifier also at a capital.
            if c.is_ascii_alphabetic() && (!before.is_ascii_alphabetic() || c.is_ascii_uppercase())
            {
                suspected |= letters.get(at..at + PREFIX_LEN).is_some_and(|s| PREFIXES.contains(s));
            }
            before = c;
            at += 1;
        }
        if suspected {
            found.push((number + 1, line));
        }
    }
    found
}

/// The banned phrases in a line, with their replacements.
fn violations(line: &str) -> Vec<(String, &'static str)> {
    let words = words(line);
    let mut found = Vec::new();
    for (i, word) in words.iter().enumerate() {
        for (phrase, replacement) in PHRASES.get(word.as_str()).into_iter().flatten() {
            let here = words[i..].iter().take(phrase.len());
            if here.eq(phrase.iter()) {
                found.push((phrase.join(" "), *replacement));
            }
        }
    }
    for (i, word) in words.iter().enumerate() {
        let person = i > 0 && PEOPLE.contains(&words[i - 1].as_str());
        if word == "who" && !person {
            found
                .push(("who".to_owned(), "`which` for jobs and nodes; `operators who` for people"));
        }
    }
    found
}

#[test]
fn prose_and_identifiers_use_standard_terms() {
    let endings =
        [".rs", ".md", ".toml", ".py", ".service", ".js", ".css", ".json", "run", "nats-server"];
    let mut found = Vec::new();
    let checked = |name: &str| endings.iter().any(|ending| name.ends_with(ending));
    // Every file, and each once: a name may have two of the endings.
    for path in files("") {
        let name = shown(&path);
        if name.ends_with("plain_english.rs") || !checked(&name) {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (number, line) in suspects(&text) {
            for (phrase, replacement) in violations(line) {
                found.push(format!("{name}:{number}: `{phrase}`: use {replacement}"));
            }
        }
    }
    let count = found.len();
    found.truncate(60);
    assert!(found.is_empty(), "{count} banned terms:\n{}", found.join("\n"));
}

#[test]
fn banned_terms_are_found_in_prose_and_identifiers() {
    let of =
        |line: &str| violations(line).into_iter().map(|(phrase, _)| phrase).collect::<Vec<_>>();
    assert_eq!(of("// the job is told to stop"), ["told"]);
    assert_eq!(of("fn budget_is_told_anew()"), ["told", "anew"]);
    assert_eq!(of("struct ForetoldPower;"), ["foretold"]);
    assert_eq!(of("//! Jobs who wait, and operators who wait."), ["who"]);
    assert_eq!(of("the run goes on"), ["goes on"]);
    assert!(of("the standard terms: mating, wishlist, tellurium").is_empty());
    // The quick look finds every line with a banned term, wherever it begins.
    for has in
        ["told", "fooTold bar", "\u{2013}Told", "_told", "'who'", "goOn", "go on", "Of late,"]
    {
        let text = format!("plain\n{has}\n\u{e9} plain");
        assert_eq!(suspects(&text), [(2, has)]);
    }
}

/// Every term of the glossary has one entry.
#[test]
fn glossary_terms_are_unique() {
    let text = std::fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let mut terms: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| **"))
        .filter_map(|rest| rest.split("**").next())
        .collect();
    assert!(terms.len() > 30, "{} terms", terms.len());
    terms.sort_unstable();
    let repeated: Vec<_> = terms.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
}
