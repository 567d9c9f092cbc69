//! The frame of a page: head, style, table of contents, sections, script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The style sheets of plots.
pub(super) const PLOT_STYLES: [&str; 2] = [wattle_view::PLOT_STYLE, include_str!("plots.css")];
/// Layouts for wide and narrow screens and for print.
const STYLE: &str = include_str!("page.css");
/// Sorts tables by a column; a page is complete without it.
const SCRIPT: &str = include_str!("page.js");

/// A section of a page.
pub struct Section {
    /// Its id: letters and hyphens.
    pub anchor: &'static str,
    /// Its heading.
    pub heading: String,
    /// Its contents; a section without any is left out.
    pub body: Markup,
}

impl Section {
    /// A section.
    pub fn new(anchor: &'static str, heading: &str, body: Markup) -> Self {
        Self { anchor, heading: heading.to_owned(), body }
    }
}

/// A page; `lead` comes before the sections.
pub fn page(title: &str, lead: &Markup, sections: &[Section]) -> String {
    let sections = || sections.iter().filter(|section| !section.body.0.is_empty());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { @for style in PLOT_STYLES { (PreEscaped(style)) } (PreEscaped(STYLE)) }
            }
            body {
                main {
                    header {
                        h1 { (title) }
                        (lead)
                        nav aria-label="Contents" {
                            ul {
                                @for section in sections() {
                                    li { a href={ "#" (section.anchor) } { (section.heading) } }
                                }
                            }
                        }
                    }
                    @for section in sections() {
                        section id=(section.anchor) {
                            h2 { (section.heading) }
                            (section.body)
                        }
                    }
                    footer {
                        p {
                            "Made by Wattle " (env!("CARGO_PKG_VERSION")) ". All contents follow from "
                            "the jobs, the cluster, the policies and the seed; the same input gives "
                            "the same page."
                        }
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    // Names from input files may hold control characters, which HTML does not allow.
    page.into_string().replace(|c: char| c.is_control() && c != '\n', "\u{fffd}") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_input_files_is_escaped() {
        let evil = "<script>alert(1)</script>&\"\u{1}";
        let page = page(evil, &html! {}, &[Section::new("a", evil, html! { p title=(evil) {} })]);
        let escaped = "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;\u{fffd}";
        assert_eq!(page.matches(escaped).count(), 5, "{page}");
        assert!(!page.contains("<script>alert"));
    }
}
