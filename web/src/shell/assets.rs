//! The files of the page, part of the program.

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The addresses of pages; each shows the same document, whose script shows the page.
pub(super) const PAGES: [&str; 13] = [
    "/",
    "/jobs",
    "/jobs/{job}",
    "/submit",
    "/nodes",
    "/schedule",
    "/energy",
    "/saving",
    "/budget",
    "/grid-events",
    "/grid-events/{event}",
    "/predictors",
    "/services",
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($path:literal: $kind:expr),+ $(,)?) => {
        /// Path, content type, content.
        const FILES: &[(&str, &str, &[u8])] = &[
            ("plot.css", CSS, wattle_view::PLOT_STYLE.as_bytes()),
            $(($path, $kind, include_bytes!(concat!("../../assets/", $path)))),+
        ];
    };
}

files! {
    "index.html": HTML,
    "style.css": CSS,
    "layout.css": CSS,
    "icon.svg": "image/svg+xml",
    "app.js": SCRIPT,
    "chart.js": SCRIPT,
    "dom.js": SCRIPT,
    "format.js": SCRIPT,
    "parts.js": SCRIPT,
    "session.js": SCRIPT,
    "stream.js": SCRIPT,
    "timeline.js": SCRIPT,
    "pages/budget.js": SCRIPT,
    "pages/energy.js": SCRIPT,
    "pages/event.js": SCRIPT,
    "pages/events.js": SCRIPT,
    "pages/job.js": SCRIPT,
    "pages/jobs.js": SCRIPT,
    "pages/life.js": SCRIPT,
    "pages/log.js": SCRIPT,
    "pages/nodes.js": SCRIPT,
    "pages/overview.js": SCRIPT,
    "pages/predictors.js": SCRIPT,
    "pages/saving.js": SCRIPT,
    "pages/schedule.js": SCRIPT,
    "pages/services.js": SCRIPT,
    "pages/submit.js": SCRIPT,
}

/// A mark of the content (FNV-1a), by which a browser recognises that its copy is current.
fn tag(content: &[u8]) -> String {
    let hash = content.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("\"{hash:016x}\"")
}

fn served(path: &str, headers: &HeaderMap) -> Response {
    let Some((_, kind, content)) = FILES.iter().find(|(known, ..)| *known == path) else {
        return (StatusCode::NOT_FOUND, "no such file\n").into_response();
    };
    let tag = tag(content);
    // The browser validates its copy at each use, so that a new release is shown at once.
    let fresh = [(header::CACHE_CONTROL, "no-cache".to_owned()), (header::ETAG, tag.clone())];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, fresh).into_response();
    }
    (fresh, [(header::CONTENT_TYPE, *kind)], *content).into_response()
}

/// A page.
pub(super) async fn page(headers: HeaderMap) -> Response {
    served("index.html", &headers)
}

/// A file of the page.
pub(super) async fn file(Path(path): Path<String>, headers: HeaderMap) -> Response {
    served(&path, &headers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every module that a script imports is a file, and every file is used.
    #[test]
    fn scripts_import_only_own_files() {
        let mut used = BTreeSet::from(["index.html".to_owned()]);
        for (path, kind, content) in FILES {
            // The name of the SVG namespace is no address.
            let text =
                std::str::from_utf8(content).unwrap().replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://") || *kind == "image/svg+xml", "{path} names a server");
            assert!(!text.contains("https://"), "{path} names a server");
            assert!(text.lines().count() < 500, "{path} is long");
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            for line in text.lines() {
                let Some((_, from)) = line.split_once(" from \"") else { continue };
                let name = from.split('"').next().unwrap();
                let name = match name.strip_prefix("./") {
                    Some(name) if folder.is_empty() => name.to_owned(),
                    Some(name) => format!("{folder}/{name}"),
                    None => name.strip_prefix("../").unwrap().to_owned(),
                };
                used.insert(name);
            }
            if *path == "index.html" {
                let named = text.split('"').filter_map(|part| part.strip_prefix("/assets/"));
                used.extend(named.map(str::to_owned));
            }
        }
        let files: BTreeSet<String> = FILES.iter().map(|(path, ..)| (*path).to_owned()).collect();
        assert_eq!(used, files);
    }
}
