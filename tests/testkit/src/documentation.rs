//! Commands of the documentation: those of fenced `console` and `sh` blocks, and those in backticks.
//!
//! In a `console` block a command begins with `$ `, and the lines after it are its output, where `...`
//! stands for omitted lines. In a `sh` block every line is a command.
//! A word after the language states how the commands are tested:
//!
//! | words | test |
//! |---|---|
//! | `sh`, `console` | run in every test run |
//! | `sh script` | the same, as one script |
//! | `sh slow` | takes minutes or reads measured files (`DIR`): parsed in every test run, run on request |
//! | `console session` | run in every test run, in the order of the page, against the system that the page starts; numbers of the output are not compared |
//! | `console session dated` | the same for an output that differs between runs: the page states the day on which it was printed, and the lines without a number are compared |
//! | `sh elsewhere REASON` | not run: its syntax is checked. The reasons are in [`REASONS`] |

use std::path::{Path, PathBuf};

/// The reasons for which a command is not run, with their meaning.
pub const REASONS: &[(&str, &str)] = &[
    ("gpus", "needs real GPUs"),
    ("minutes", "takes minutes, or needs release programs"),
    ("network", "installs packages from the network"),
    ("program", "needs a program that the tests do not install"),
    ("site", "changes accounts, services or files of hosts"),
    ("slurm", "needs a site with Slurm"),
    ("tested", "another test runs it: its page names the test, or the page's own test does"),
];

/// Where and when the commands of a block are run by tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// In every test run, each line on its own.
    Here,
    /// In every test run, all lines as one script.
    Script,
    /// On request.
    Slow,
    /// In every test run, in the order of the page against the system that the page starts.
    Session,
    /// As [`Self::Session`]; of the output only the lines without a number are compared.
    DatedSession,
    /// Never, for one of [`REASONS`].
    Elsewhere(&'static str),
}

/// A command of a fenced block.
#[derive(Clone, Debug)]
pub struct Command {
    /// The page, relative to the repository.
    pub page: String,
    /// Its line in the page, from 1.
    pub line: usize,
    /// The line on which its block begins.
    pub block: usize,
    /// How it is tested.
    pub run: Run,
    /// The command without its comment, as one text.
    pub text: String,
    /// The output that the page shows.
    pub output: Vec<String>,
}

/// The reason of this name.
fn reason(name: &str) -> Option<&'static str> {
    REASONS.iter().map(|known| known.0).find(|known| *known == name)
}

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it exists")
}

/// Every Markdown page of the repository, with its text.
#[must_use]
pub fn pages() -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                walk(&path, found);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    walk(&root, &mut found);
    // The README comes first, then the other pages by name.
    found.sort_by_key(|path| (*path != root.join("README.md"), path.clone()));
    found
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a page is text");
            (path.strip_prefix(&root).expect("below the root").display().to_string(), text)
        })
        .collect()
}

/// The commands of all fenced blocks, in order.
///
/// # Errors
/// Blocks with commands whose language is missing or unknown, with the remedy.
pub fn commands() -> Result<Vec<Command>, Vec<String>> {
    let (mut commands, mut problems) = (Vec::new(), Vec::new());
    for (page, text) in pages() {
        let mut lines = text.lines().enumerate();
        while let Some((start, line)) = lines.next() {
            let Some(info) = line.trim_start().strip_prefix("```") else { continue };
            let body: Vec<(usize, &str)> = lines
                .by_ref()
                .take_while(|(_, line)| !line.trim_start().starts_with("```"))
                .collect();
            let words: Vec<&str> = info.split_whitespace().collect();
            let run = match words[..] {
                ["sh" | "console"] => Run::Here,
                ["sh", "script"] => Run::Script,
                ["sh" | "console", "slow"] => Run::Slow,
                ["console", "session"] => Run::Session,
                ["console", "session", "dated"] => Run::DatedSession,
                ["sh" | "console", "elsewhere", word] if reason(word).is_some() => {
                    Run::Elsewhere(reason(word).unwrap_or_default())
                }
                ["sh" | "console", ..] => {
                    let reasons: Vec<&str> = REASONS.iter().map(|known| known.0).collect();
                    problems.push(format!(
                        "{page}:{}: unknown words `{info}`; after `elsewhere` comes one of {}",
                        start + 1,
                        reasons.join(", ")
                    ));
                    continue;
                }
                _ => {
                    let is_command = |line: &str| {
                        let line = line.trim_start().trim_start_matches("$ ");
                        ["wattle ", "cargo "].iter().any(|start| line.starts_with(start))
                            && !line.contains(" -> ")
                    };
                    if words.is_empty() && body.iter().any(|(_, line)| is_command(line)) {
                        problems.push(format!(
                            "{page}:{}: commands in a block without `sh` or `console`",
                            start + 1
                        ));
                    }
                    continue;
                }
            };
            let of_block = of_block(&page, start + 1, words[0] == "console", run, &body);
            if words[0] == "console" && of_block.is_empty() {
                // Output only: of the command of the block before.
                if !body.iter().any(|(_, line)| *line == "...") {
                    problems.push(format!("{page}:{}: `console` without `$ `: use sh", start + 1));
                }
            }
            commands.extend(of_block);
        }
    }
    if problems.is_empty() { Ok(commands) } else { Err(problems) }
}

fn of_block(
    page: &str,
    block: usize,
    console: bool,
    run: Run,
    body: &[(usize, &str)],
) -> Vec<Command> {
    let mut found: Vec<Command> = Vec::new();
    let mut open = false;
    for &(number, line) in body {
        if open {
            let last = &mut found.last_mut().expect("an open command").text;
            last.push('\n');
            last.push_str(line);
        } else if let Some(text) = if console { line.strip_prefix("$ ") } else { Some(line) } {
            // A comment begins after a blank, outside of quotes.
            let mut comments = text.match_indices(" #").map(|(at, _)| at);
            let comment = comments.find(|at| text[..*at].matches('\'').count() % 2 == 0);
            let text = text[..comment.unwrap_or(text.len())].trim_end();
            if text.trim().is_empty() {
                continue;
            }
            found.push(Command {
                page: page.to_owned(),
                line: number + 1,
                block,
                run,
                text: text.to_owned(),
                output: Vec::new(),
            });
        } else if let Some(command) = found.last_mut() {
            command.output.push(line.to_owned());
        }
        if let Some(last) = found.last_mut().filter(|last| last.output.is_empty()) {
            open = last.text.ends_with('\\') || last.text.matches('\'').count() % 2 == 1;
        }
    }
    for command in &mut found {
        command.text = command.text.replace("\\\n", " ");
        while command.output.last().is_some_and(|line| line.trim().is_empty()) {
            command.output.pop();
        }
    }
    found
}

/// Commands in backticks that start with `program`, as (page, line, command).
#[must_use]
pub fn inline_commands(program: &str) -> Vec<(String, usize, String)> {
    let mut found = Vec::new();
    for (page, text) in pages() {
        let mut fenced = false;
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if !fenced {
                let codes = line.split('`').skip(1).step_by(2);
                let named = codes.filter(|code| code.split(' ').any(|word| word == program));
                found.extend(named.map(|code| (page.clone(), number + 1, code.to_owned())));
            }
        }
    }
    found
}

/// The words of the first program that a shell line runs, without assignments before it, and up to the
/// first pipe, redirection or `&`.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut any) = (Vec::new(), String::new(), None, false);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (None, '\'' | '"') => (quote, any) = (Some(c), true),
            (None, ' ' | '\n') => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            _ => word.push(c),
        }
    }
    let is_assignment = |word: &String| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || "_".contains(c))
        })
    };
    let ends = |word: &String| ["|", "&", "&&", ">", "<", ";"].contains(&word.as_str());
    words.into_iter().skip_while(is_assignment).take_while(|word| !ends(word)).collect()
}

/// The commands of `program` in the documentation that its parser refuses, with the place and the cause.
///
/// `parse` receives the words of a command. Its error has the cause and whether only arguments are missing,
/// which prose may omit; `None` is no error, as for `--help`.
pub fn refused(
    program: &str,
    parse: impl Fn(Vec<String>) -> Result<(), Option<(String, bool)>>,
) -> Vec<String> {
    let mut refused = Vec::new();
    let mut check = |place: String, text: &str, complete: bool| {
        let words = words(text);
        if words.first().is_none_or(|word| word != program) {
            return;
        }
        if let Err(Some((cause, is_incomplete))) = parse(words)
            && (complete || !is_incomplete)
        {
            refused.push(format!("{place}: {text}: {cause}"));
        }
    };
    for command in commands().unwrap_or_else(|problems| panic!("{}", problems.join("\n"))) {
        check(format!("{}:{}", command.page, command.line), &command.text, true);
    }
    for (page, line, text) in inline_commands(program) {
        // A form with optional parts is no command.
        if !text.contains(['[', '\u{2026}']) && page != "CHANGELOG.md" {
            check(format!("{page}:{line}"), &text, false);
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_split_into_commands_and_output() {
        let body = [
            (1, "$ wattle jobs   # all of this cluster's"),
            (2, "none"),
            (3, ""),
            (4, "$ wattle submit \\"),
            (5, "    -- true"),
        ];
        let found = of_block("a.md", 1, true, Run::Here, &body);
        let texts: Vec<&str> = found.iter().map(|command| command.text.as_str()).collect();
        assert_eq!(texts, ["wattle jobs", "wattle submit      -- true"]);
        assert_eq!(found[0].output, ["none"]);
        let script = of_block("a.md", 1, false, Run::Here, &[(1, "python3 -c '"), (2, "x = 1'")]);
        assert_eq!(script.len(), 1);
    }

    #[test]
    fn words_are_those_of_the_first_program() {
        assert_eq!(words("A=1 wattle logs 'a b' | tail -6"), ["wattle", "logs", "a b"]);
        assert_eq!(words("wattle-simjob --steps 3 &"), ["wattle-simjob", "--steps", "3"]);
    }
}
