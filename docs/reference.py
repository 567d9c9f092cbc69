"""The generated pages of the book: commands from the programs' help, configuration from deploy/*.toml.

`docs/build` writes them. A page is named as in docs/SUMMARY.md.
"""

import re
import subprocess
import textwrap

# Programs with a command line of their own, besides `wattle`.
PROGRAMS = ["wattle-simnode", "wattle-simjob"]
# An option or argument of clap's help: its name, then its help after two blanks or on the next line.
OPTION = re.compile(r"^ {2,6}((?:-\w(?:, |$))?(?:--[\w-]+)?[^ ]*(?: [<\[][^ ].*?[>\]](?:\.\.\.)?)?)(?:  +(\S.*))?$")


def help_of(words, programs):
    """The long help of a command."""
    command = [str(programs / words[0]), *words[1:], "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def sections(text):
    """The help as (heading, lines); the part before the first heading has the heading ''."""
    found = [("", [])]
    for line in text.splitlines():
        heading = re.fullmatch(r"([A-Z][A-Za-z ]+):", line)
        usage = re.fullmatch(r"(Usage): (.*)", line)
        if heading or usage:
            found.append(((heading or usage)[1], [usage[2]] if usage else []))
        else:
            found[-1][1].append(line)
    return found


def entries(lines):
    """Options, arguments or commands as (name, help)."""
    found = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        match = OPTION.match(line) if indent <= 6 else None
        named = line.strip().startswith(("-", "<", "[")) or indent == 2
        if match and named and line.strip():
            found.append([match[1], match[2] or ""])
        elif found and line.strip():
            text = line.strip()
            found[-1][1] += f"; {text[2:]}" if text.startswith("- ") else f" {text}"
    return [(name.strip(), " ".join(help_.split()).replace(" Possible values:;", ". Values:")) for name, help_ in found]


def cell(text):
    """Text of a table's cell; placeholders in angle brackets are no HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def table(rows, first):
    lines = [f"| {first} | meaning |", "|---|---|"]
    for name, help_ in rows:
        name = name.replace("|", "\\|")
        lines.append(f"| `{name}` | {cell(help_)} |")
    return "\n".join(lines) + "\n"


def command(words, programs, out):
    """Appends the sections of a command and of its subcommands."""
    parts = sections(help_of(words, programs))
    nested = [name for heading, lines in parts if heading == "Commands" for name, _ in entries(lines)]
    name = " ".join(words)
    out.append(f"{'#' * (len(words) + 1)} {name}\n")
    for heading, lines in parts:
        text = "\n".join(lines).strip("\n")
        if heading == "":
            out.append(cell(text) + "\n")
        elif heading == "Usage":
            out.append(f"```text\n{text}\n```\n")
        elif heading in ("Options", "Arguments"):
            rows = [row for row in entries(lines) if "--help" not in row[0] and "--version" not in row[0]]
            if rows:
                out.append(table(rows, heading.lower().removesuffix("s")))
            # What follows the options without an indent is prose.
            rest = "\n".join(line for line in lines if line and not line.startswith(" "))
            if rest:
                out.append(f"```text\n{rest}\n```\n")
        elif heading == "Commands":
            out.append(table([row for row in entries(lines) if row[0] != "help"], "command"))
        elif text:
            out.append(f"**{heading}**\n\n```text\n{textwrap.dedent(text)}\n```\n")
    for inner in nested:
        if inner != "help":
            command([*words, inner], programs, out)


def commands_page(programs):
    out = ["# Commands\n", "Generated from the programs' `--help`.\n"]
    for program in ["wattle", *PROGRAMS]:
        command([program], programs, out)
    return "\n".join(out)


def prose(comments):
    """Comments of a configuration as Markdown: indented lines stay as they are."""
    out, code = [], False
    for line in comments:
        if line.startswith("  ") != code:
            out.append("```text" if not code else "```")
            code = not code
        out.append(line if code else re.sub(r"docs/([\w-]+\.md)", r"[\1](../../\1)", cell(line)))
    return "\n".join(out + ["```"] * code)


def configuration_page(name, text):
    """A commented TOML file as a page: a section for each table, an entry for each group of keys."""
    out = [f"# {name}.toml\n", f"From [deploy/{name}.toml](../../../deploy/{name}.toml). A key behind `#` is not set by default.\n"]
    comments, keys, opened = [], [], False

    def flush():
        nonlocal opened
        if keys:
            if not opened:
                out.append("## Keys without a table\n")
                opened = True
            names = [re.match(r"(?:# )?([\w.\"-]+) = ", line) for line in keys]
            out.append("### " + ", ".join(f"`{found[1]}`" for found in names if found) + "\n")
            out.append("```toml\n" + "\n".join(keys) + "\n```\n")
        if comments:
            out.append(prose(comments) + "\n")
        comments.clear()
        keys.clear()

    for line in text.splitlines() + [""]:
        body = line.removeprefix("# ")
        table_line = re.fullmatch(r"(\[\[?[\w.\"-]+\]\]?)(?:\s+#.*)?", body)
        if not line.strip() or line.strip() == "#":
            flush()
        elif table_line:
            flush()
            opened = True
            out.append(f"## `{table_line[1]}`\n")
            if body != line:
                out.append("Absent by default.\n")
        elif re.match(r"[\w.\"-]+ = ", body) or not line.startswith("#"):
            keys.append(line)
        else:
            if keys:
                flush()
            comments.append(line[1:].removeprefix(" "))
    return "\n".join(out)


def pages(root, programs):
    """All generated pages by name."""
    found = {"docs/reference/commands.md": commands_page(programs)}
    files = sorted((root / "deploy").glob("*.toml"))
    rows = []
    for file in files:
        text = file.read_text()
        found[f"docs/reference/configuration/{file.stem}.md"] = configuration_page(file.stem, text)
        first = text.splitlines()[0].removeprefix("# ")
        rows.append(f"| [{file.name}](configuration/{file.stem}.md) | {cell(first)} |")
    found["docs/reference/configuration.md"] = (
        "# Configuration\n\nOne file for each service, in `/etc/wattle`. Generated from the commented examples in [deploy/](../../deploy); "
        "an unknown key is an error.\n\n| file | service |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
    return found
