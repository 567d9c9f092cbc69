//! Checks of HTML pages.

/// The text of each element of these names, in order; panics on unbalanced tags, invalid entities
/// and unquoted attributes.
pub(crate) fn texts_of(page: &str, names: &[&str]) -> Vec<String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    let mut open: Vec<(&str, String)> = Vec::new();
    let mut found = Vec::new();
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        for (_, entity) in text.match_indices('&').map(|(i, _)| text.split_at(i)) {
            let end = entity.find(';').unwrap_or_else(|| panic!("a bare & in {text:.80}"));
            assert!(end <= 6, "no entity: {entity:.20}");
        }
        open.iter_mut().for_each(|(_, inner)| inner.push_str(text));
        let end = at + rest[at..].find('>').unwrap();
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        assert!(tag.matches('"').count().is_multiple_of(2), "quotes in <{tag}>");
        if let Some(name) = tag.strip_prefix('/') {
            let (opened, inner) = open.pop().unwrap();
            assert_eq!(opened, name, "</{name}> after {inner:.80}");
            if names.contains(&name) {
                found.push(inner.trim().to_owned());
            }
        } else if !["meta", "br"].contains(&tag.split(' ').next().unwrap()) {
            let name = tag.split(' ').next().unwrap();
            if name == "style" || name == "script" {
                let end = rest.find("</").unwrap();
                rest = &rest[end..];
            }
            open.push((name, String::new()));
        }
    }
    assert!(open.is_empty(), "not closed: {:?}", open.iter().map(|(n, _)| n).collect::<Vec<_>>());
    found
}

/// Asserts that a page has no external references and no invalid numbers.
pub(crate) fn assert_self_contained(page: &str) {
    for reference in ["http:", "https:", "src=", "@import", "<link", "<img", "<iframe"] {
        assert!(!page.contains(reference), "{reference}");
    }
    for (at, _) in page.match_indices("url(") {
        assert!(page[at..].starts_with("url(#"), "{:.40}", &page[at..]);
    }
    for broken in ["NaN", "inf%", "\"inf", "-inf"] {
        assert!(!page.contains(broken), "{broken}");
    }
}
