//! The page around everything: head, style, contents, script.

use super::markup::escaped;

/// The look: colours for light, dark and paper; widths for desk and phone.
const STYLE: &str = include_str!("page.css");
/// Sorts tables by a column; the page is whole without it.
const SCRIPT: &str = include_str!("page.js");

/// A part of the page.
pub(super) struct Section {
    /// What links to it, of letters and hyphens.
    pub(super) anchor: String,
    /// Its heading, as markup.
    pub(super) heading: String,
    /// What stands in it, as markup.
    pub(super) body: String,
}

impl Section {
    /// A section of the page.
    pub(super) fn new(anchor: &str, heading: &str, body: String) -> Self {
        Self { anchor: anchor.to_owned(), heading: escaped(heading), body }
    }
}

/// The whole page. `lead` is markup that stands before the sections.
pub(super) fn page(title: &str, lead: &str, sections: &[Section]) -> String {
    let title = escaped(title);
    let mut contents = String::new();
    let mut body = String::new();
    for Section { anchor, heading, body: inner } in sections.iter().filter(|s| !s.body.is_empty()) {
        contents += &format!("<li><a href=\"#{anchor}\">{heading}</a></li>");
        body += &format!("<section id=\"{anchor}\"><h2>{heading}</h2>\n{inner}</section>\n");
    }
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/><title>{title}</title>\n\
         <style>\n{STYLE}</style></head>\n<body><main>\n<header><h1>{title}</h1>\n{lead}\
         <nav aria-label=\"Contents\"><ul>{contents}</ul></nav></header>\n{body}\
         <footer><p>Made by Wattle {version}. Everything shown follows from the jobs, the cluster, \
         the policies and the seed: the same again gives the same page.</p></footer>\n</main>\n\
         <script>\n{SCRIPT}</script></body></html>\n"
    )
}
