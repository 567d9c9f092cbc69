//! Slurm's notation of host names: `gpu[01-03,07],login1` (slurm.schedmd.com/scontrol.html,
//! `show hostnames`).
//!
//! A name has any number of bracketed lists, each of numbers and ranges; the digits of a range's
//! first number set the width.

/// Most names of a list, a limit against typing errors.
const NAMES_MAX: usize = 100_000;

/// The names of a list; `None` where it is not one, or is too long. `None assigned` of a job that
/// never started is an empty list.
pub(super) fn expand(list: &str) -> Option<Vec<String>> {
    if matches!(list, "None assigned" | "(null)" | "None" | "Unknown") {
        return Some(Vec::new());
    }
    let mut names = Vec::new();
    for item in items(list)? {
        let mut found = vec![String::new()];
        let mut rest = item;
        while let Some((text, tail)) = rest.split_once('[') {
            let (numbers, tail) = tail.split_once(']')?;
            let numbers = values(numbers)?;
            if found.len().checked_mul(numbers.len())? > NAMES_MAX {
                return None;
            }
            let joined = |name: &String| {
                numbers.iter().map(|n| format!("{name}{text}{n}")).collect::<Vec<_>>()
            };
            found = found.iter().flat_map(joined).collect();
            rest = tail;
        }
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        found.iter_mut().for_each(|name| name.push_str(rest));
        if found.iter().any(|name| name.is_empty() || !name.chars().all(valid)) {
            return None;
        }
        names.extend(found);
        if names.len() > NAMES_MAX {
            return None;
        }
    }
    Some(names)
}

/// The parts of a list between commas outside brackets.
fn items(list: &str) -> Option<Vec<&str>> {
    let (mut items, mut start, mut depth) = (Vec::new(), 0, 0);
    for (i, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[start..i]);
                start = i + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return None;
        }
    }
    items.push(&list[start..]);
    (depth == 0).then_some(items)
}

/// The numbers of a bracketed list, with leading zeros.
fn values(list: &str) -> Option<Vec<String>> {
    let mut values = Vec::new();
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(from) || !digits(to) {
            return None;
        }
        let (first, last): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
        if last < first || last - first >= NAMES_MAX as u64 {
            return None;
        }
        values.extend((first..=last).map(|n| format!("{n:0width$}", width = from.len())));
        if values.len() > NAMES_MAX {
            return None;
        }
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_expanded() {
        for (list, names) in [
            ("gpu1", &["gpu1"][..]),
            ("gpu[01-03,07],login1", &["gpu01", "gpu02", "gpu03", "gpu07", "login1"]),
            ("gpu[9-11]", &["gpu9", "gpu10", "gpu11"]),
            ("r[1-2]n[1-2]", &["r1n1", "r1n2", "r2n1", "r2n2"]),
            ("dgx-[1,3]-ib.site", &["dgx-1-ib.site", "dgx-3-ib.site"]),
            ("None assigned", &[]),
        ] {
            assert_eq!(expand(list).unwrap(), names, "{list}");
        }
    }

    #[test]
    fn other_text_is_no_list() {
        for list in [
            "",
            "gpu[1-",
            "gpu1]",
            "gpu[]",
            "gpu[1-a]",
            "gpu[3-1]",
            "gpu[[1]]",
            "a,,b",
            "gpu[1-999999999]",
            "a[1-999][1-999]",
            "two words",
        ] {
            assert_eq!(expand(list), None, "{list}");
        }
    }
}
