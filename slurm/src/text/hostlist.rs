//! Slurm's lists of node names: `n[1,3-4],m01`.

use super::TextError;
use super::gres::is_absent;

/// Most names of one list: more than any cluster has nodes.
const NAMES_MAX: usize = 65_536;

/// The names of a list, in its order; none for an absent one, such as `None assigned` of a job that never
/// started. The digits of a range's first number set the width of its numbers.
///
/// # Errors
/// If a bracket is not closed, a range is not one of numbers, an item is empty or has a character that no
/// host name has, or there are more than 65,536 names.
pub fn expand(list: &str) -> Result<Vec<String>, TextError> {
    if is_absent(list) || matches!(list, "None assigned" | "Unknown") {
        return Ok(Vec::new());
    }
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let mut names = Vec::new();
    for item in items(list)? {
        let mut built = vec![String::new()];
        let mut rest = item;
        while let Some((prefix, bracket)) = rest.split_once('[') {
            let Some((inner, after)) = bracket.split_once(']') else {
                return Err(TextError::new("host list with an open bracket", list));
            };
            let numbers = numbers(inner, list)?;
            if built.len().saturating_mul(numbers.len()) > NAMES_MAX {
                return Err(TextError::new("host list with too many names", list));
            }
            built = built
                .iter()
                .flat_map(|begun| numbers.iter().map(move |n| format!("{begun}{prefix}{n}")))
                .collect();
            rest = after;
        }
        built.iter_mut().for_each(|begun| begun.push_str(rest));
        if built.iter().any(|name| name.is_empty() || !name.chars().all(is_valid)) {
            return Err(TextError::new("host list with an item that is no host name", list));
        }
        names.extend(built);
        if names.len() > NAMES_MAX {
            return Err(TextError::new("host list with too many names", list));
        }
    }
    Ok(names)
}

/// The list of these names, with ranges of consecutive numbers: `n[1-3,5]`. Names with the same prefix and
/// number of digits are together; otherwise the order is kept.
#[must_use]
pub fn compress<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for name in names {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        // A number beyond u64 is part of the name.
        let (prefix, number) = name.split_at(name.len() - digits.min(18));
        match groups.iter_mut().find(|(known, _)| *known == prefix && !number.is_empty()) {
            Some((_, numbers)) => numbers.push(number),
            None => groups.push((prefix, vec![number])),
        }
    }
    let texts = groups.into_iter().map(|(prefix, numbers)| match numbers.as_slice() {
        [single] => format!("{prefix}{single}"),
        _ => format!("{prefix}[{}]", ranges(numbers)),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// `1-3,5` of `1 2 3 5`.
fn ranges(numbers: Vec<&str>) -> String {
    let mut ranges: Vec<(&str, &str)> = Vec::new();
    let value = |text: &str| text.parse::<u64>().unwrap_or(0);
    let mut sorted = numbers;
    sorted.sort_by_key(|text| (text.len(), value(text)));
    sorted.dedup();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last))
                if value(last) + 1 == value(number)
                    && (last.len() == number.len() || !number.starts_with('0')) =>
            {
                *last = number;
            }
            _ => ranges.push((number, number)),
        }
    }
    let text = |(low, high): (&str, &str)| {
        if low == high { low.to_owned() } else { format!("{low}-{high}") }
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// The items between the commas outside brackets.
fn items(list: &str) -> Result<Vec<&str>, TextError> {
    let mut items = Vec::new();
    let (mut start, mut is_open) = (0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if is_open => return Err(TextError::new("host list with nested brackets", list)),
            '[' => is_open = true,
            ']' if !is_open => return Err(TextError::new("host list with a stray bracket", list)),
            ']' => is_open = false,
            ',' if !is_open => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[start..]);
    Ok(items)
}

/// The numbers of `1,3-4`, with leading zeros as they are written.
fn numbers(inner: &str, list: &str) -> Result<Vec<String>, TextError> {
    let invalid = || TextError::new("host list with an invalid range", list);
    let mut numbers = Vec::new();
    for part in inner.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(low) || !is_number(high) {
            return Err(invalid());
        }
        let (first, last): (u64, u64) =
            (low.parse().map_err(|_| invalid())?, high.parse().map_err(|_| invalid())?);
        if last < first || last - first >= NAMES_MAX as u64 {
            return Err(invalid());
        }
        numbers.extend((first..=last).map(|n| format!("{n:0width$}", width = low.len())));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_have_names_ranges_and_leading_zeros() {
        let names = |list| expand(list).unwrap().join(" ");
        assert_eq!(names("gpu1"), "gpu1");
        assert_eq!(names("n[1,3-4],m01"), "n1 n3 n4 m01");
        assert_eq!(names("gpu[01-03,07],login1"), "gpu01 gpu02 gpu03 gpu07 login1");
        assert_eq!(names("gpu[9-11]"), "gpu9 gpu10 gpu11");
        assert_eq!(names("gpu-[08-11]-ib"), "gpu-08-ib gpu-09-ib gpu-10-ib gpu-11-ib");
        assert_eq!(names("dgx-[1,3]-ib.site"), "dgx-1-ib.site dgx-3-ib.site");
        assert_eq!(names("r[1-2]n[1-2]"), "r1n1 r1n2 r2n1 r2n2");
        for absent in ["", "(null)", "None assigned"] {
            assert_eq!(names(absent), "");
        }
    }

    #[test]
    fn damaged_lists_are_refused() {
        for list in [
            "n[1",
            "n]1",
            "n1]",
            "n[[1]]",
            "n[]",
            "n[a]",
            "n[1-a]",
            "n[2-1]",
            "n[1-]",
            "n[0-99999999]",
            "n[0-999]x[0-999]",
            "a,,b",
            "two words",
        ] {
            assert!(expand(list).is_err(), "{list}");
        }
    }

    #[test]
    fn names_are_compressed() {
        assert_eq!(compress(["n1", "n3", "n2", "m01", "n5"]), "n[1-3,5],m01");
        assert_eq!(compress(["n9", "n10"]), "n[9-10]");
        assert_eq!(compress(["n09", "n10", "head"]), "n[09-10],head");
        assert_eq!(compress([]), "");
    }

    proptest! {
        #[test]
        fn a_compressed_list_has_the_same_names(
            numbers in proptest::collection::btree_set(("[a-c]{1,2}", 0u64..30), 0..40)
        ) {
            let mut names: Vec<String> = numbers.iter().map(|(p, n)| format!("{p}{n}")).collect();
            names.sort();
            names.dedup();
            let mut again = expand(&compress(names.iter().map(String::as_str))).unwrap();
            again.sort();
            prop_assert_eq!(again, names);
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = expand(&text);
        }
    }
}
