//! GPU and model names from the path of a file, and class names from columns.
//!
//! A GPU's name is read where the format puts it (`summary_power_v100`, `throughputs_A100/`,
//! `bloom+a40_bf16`); elsewhere only a word of the list of known GPUs counts, so that a model's name is
//! not mistaken for one.

use wattle_common::hash::fnv1a;
use wattle_common::id::{ID_LEN_MAX, WorkloadId};

/// Known GPU names; RTX, GTX and MI with a number are known too.
const KNOWN: &[&str] = &[
    "k20", "k40", "k80", "m40", "m60", "p4", "p40", "p100", "v100", "v100s", "t4", "a2", "a10",
    "a10g", "a16", "a30", "a40", "a100", "a800", "a4000", "a5000", "a6000", "l4", "l20", "l40",
    "l40s", "h20", "h100", "h200", "h800", "gh200", "b100", "b200", "b300", "gb200", "gb300",
];
/// Words before a number that do not name a GPU.
const NO_GPU: &[&str] = &[
    "run", "part", "test", "exp", "trial", "copy", "file", "set", "fold", "seed", "split", "rev",
    "ver", "v", "node", "gpu", "day", "bs", "b", "bf", "fp", "int", "n", "dp", "tp", "pp",
];

/// The last folders and the file name of `place`.
fn parts(place: &str) -> Vec<&str> {
    let all: Vec<&str> = place.split(['/', '\\']).filter(|p| !p.is_empty()).collect();
    all[all.len().saturating_sub(4)..].to_vec()
}

/// File name without its extension.
pub(crate) fn stem(place: &str) -> &str {
    let name = parts(place).last().copied().unwrap_or_default();
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// Name of the folder that contains the file.
pub(crate) fn folder(place: &str) -> Option<&str> {
    let parts = parts(place);
    parts.len().checked_sub(2).map(|i| parts[i])
}

/// GPU named by the path `place`, as written there.
pub(crate) fn gpu(place: &str) -> Option<String> {
    let stem = stem(place);
    let lower = stem.to_ascii_lowercase();
    let after = |prefix: &str| lower.find(prefix).map(|at| &stem[at + prefix.len()..]);
    let folders: Vec<&str> = {
        let mut parts = parts(place);
        parts.pop();
        parts.into_iter().rev().collect()
    };
    let named = after("summary_power_")
        .or_else(|| stem.split_once('+').map(|(_, rest)| rest))
        .and_then(|rest| first_words(rest, is_gpu));
    let by_folder = || {
        folders.iter().find_map(|folder| {
            let lower = folder.to_ascii_lowercase();
            let rest =
                lower.strip_prefix("throughputs_").map(|r| &folder[folder.len() - r.len()..]);
            rest.and_then(|rest| first_words(rest, is_gpu))
        })
    };
    let by_token = || {
        std::iter::once(&stem).chain(&folders).find_map(|name| {
            let words: Vec<&str> = words(name).collect();
            (0..words.len()).find_map(|i| {
                // `b200` in a longer name may be a batch size.
                let batch = words.len() > 1 && words[i].to_ascii_lowercase().starts_with('b');
                first_words(&name[offset(name, words[i])..], is_known).filter(|_| !batch)
            })
        })
    };
    named.or_else(by_folder).or_else(by_token)
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty())
}

/// Offset of `word` in `name`, of which it is a part.
fn offset(name: &str, word: &str) -> usize {
    word.as_ptr() as usize - name.as_ptr() as usize
}

/// The first word of `text`, or the first two joined (`rtx_3090`), if it names a GPU.
fn first_words(text: &str, is: fn(&str) -> bool) -> Option<String> {
    let mut words = words(text);
    let first = words.next()?;
    if is(first) {
        return Some(first.to_owned());
    }
    let family = ["rtx", "gtx", "mi"].contains(&first.to_ascii_lowercase().as_str());
    let joined = format!("{first}{}", words.next().filter(|_| family)?);
    is(&joined).then_some(joined)
}

/// Whether `word` is the name of a known GPU.
fn is_known(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let (letters, digits) = lower.split_at(lower.find(|c: char| c.is_ascii_digit()).unwrap_or(0));
    KNOWN.contains(&lower.as_str())
        || (["rtx", "gtx", "mi"].contains(&letters)
            && digits.len() >= 2
            && digits.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether `word`, where a GPU is expected, can be one: letters followed by a number.
fn is_gpu(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let letters = lower.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
    is_known(word) || (letters > 0 && letters < 8 && !NO_GPU.contains(&&lower[..letters]))
}

/// GPU type of a GPU's name, as in windows.
pub(crate) fn gpu_type(gpu: Option<&str>) -> String {
    gpu.map_or_else(|| "unknown".to_owned(), |gpu| id(&gpu.to_ascii_lowercase()))
}

/// Workload class named by the non-empty `parts`.
pub(crate) fn class(parts: &[&str]) -> WorkloadId {
    let filled: Vec<&str> = parts.iter().copied().filter(|p| !p.is_empty()).collect();
    WorkloadId::new(&id(&filled.join("-"))).expect("`id` makes ids")
}

/// `text` as an id: other characters become `_`; a text that is too long ends in a hash.
fn id(text: &str) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let out: String = text.chars().map(|c| if good(c) { c } else { '_' }).collect();
    match out.len() {
        0 => "unnamed".to_owned(),
        1..=ID_LEN_MAX => out,
        _ => format!("{}-{:08x}", &out[..ID_LEN_MAX - 9], fnv1a(text.as_bytes()) as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_name_is_read_where_its_format_puts_it() {
        for (place, expected) in [
            ("zeus/summary_power_v100.csv", Some("v100")),
            ("summary_power_rtx6000.csv", Some("rtx6000")),
            ("x/summary_power_RTX_3090-b.csv", Some("RTX3090")),
            ("summary_power_x9000.csv", Some("x9000")),
            ("summary_power.csv", None),
            ("summary_power_run2.csv", None),
            ("ef/throughputs_A100/bert.csv", Some("A100")),
            ("ef/throughputs_Z77/sub/bert.csv", Some("Z77")),
            ("ef/curves/resnet50.csv", None),
            ("stage_profile/bloom+a40_bf16.csv", Some("a40")),
            ("stage_profile/bloom+a100_sxm_bf16.csv", Some("a100")),
            ("stage_profile/gpt3-175b.csv", None),
            ("pollux/bert/placements.csv", None),
            ("pollux/T4/bert/placements.csv", Some("T4")),
            ("pollux/t5-b200/placements.csv", None),
            ("my/h200/caps.csv", Some("h200")),
            ("", None),
        ] {
            assert_eq!(gpu(place).as_deref(), expected, "{place}");
        }
        assert_eq!((folder("a/b/c.csv"), stem("a/b/c.d.csv")), (Some("b"), "c.d"));
        assert_eq!(folder("c.csv"), None);
    }

    #[test]
    fn names_become_valid_ids() {
        assert_eq!(class(&["a b", "", "b16"]).as_str(), "a_b-b16");
        assert_eq!(class(&[]).as_str(), "unnamed");
        let (long, other) = ("x".repeat(80), format!("{}y", "x".repeat(79)));
        assert!(
            class(&[&long]).as_str().len() == ID_LEN_MAX && class(&[&long]) != class(&[&other])
        );
        assert_eq!(gpu_type(Some("A100")), "a100");
    }
}
