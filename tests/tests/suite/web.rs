//! The web page of `wattle up`, driven in headless Chromium: every page, a live update, a job that is
//! submitted and followed, a lost bus, a lost server, and accessibility.

use std::path::PathBuf;

use serde_json::Value;
use wattle_runtime::testing::{Weight, skipped, turn};
use wattle_tests::browser::{self, Browser};
use wattle_tests::prometheus::{addresses, get};
use wattle_tests::{System, kill, repository, until};

/// Every page: the text of its link, and a selector that its content has.
const PAGES: [(&str, &str); 10] = [
    ("Overview", ".map .tile"),
    ("Jobs", "table th.job"),
    ("Nodes", "section table"),
    ("Schedule", ".gantt a"),
    ("Energy", ".chart"),
    ("Saving", ".chart"),
    ("Budget", "form.fields"),
    ("Events", "form.fields"),
    ("Predictors", "table"),
    ("Services", "table"),
];
const THEMES: [&str; 2] = ["light", "dark"];
/// Width of a desktop and of a phone, CSS pixels.
pub(crate) const WIDTHS: [u32; 2] = [1_400, 390];
/// WebDriver's codes of the keys Tab and Enter.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

/// Signs in with the address that `wattle up` prints; returns that of the page.
pub(crate) async fn sign_in(browser: &Browser, system: &System) -> String {
    let error = system.stderr();
    let line = error.lines().find_map(|line| line.strip_prefix("web page: "));
    let address = line.unwrap_or_else(|| panic!("no address in {error}")).trim();
    browser.open(address).await;
    address.split("/sign-in").next().unwrap_or_default().to_owned()
}

/// The rules of axe-core, if they are installed; otherwise a note is printed.
pub(crate) fn accessibility_rules() -> Option<String> {
    let path = std::env::var_os("WATTLE_AXE")
        .map_or_else(|| repository("target/axe/node_modules/axe-core/axe.min.js"), PathBuf::from);
    let rules = std::fs::read_to_string(&path).ok();
    if rules.is_none() {
        skipped(&format!("no accessibility rules at {} (.ci/run installs them)", path.display()));
    }
    rules
}

/// Checks the accessibility of the shown page in both themes, of which the second changes only colours.
pub(crate) async fn check_accessibility(browser: &Browser, rules: &str, page: &str) {
    theme(browser, THEMES[0]).await;
    check_rules(browser, rules, "", &format!("{page}, {}", THEMES[0])).await;
    theme(browser, THEMES[1]).await;
    let contrast = ", runOnly: [\"color-contrast\"]";
    check_rules(browser, rules, contrast, &format!("{page}, {}", THEMES[1])).await;
}

async fn check_rules(browser: &Browser, rules: &str, which: &str, page: &str) {
    let loaded = browser.run("return typeof window.axe").await;
    if loaded != "object" {
        browser.run(rules).await;
    }
    let found = browser
        .run_async(&format!(
            "const {{ violations }} = await axe.run(document, {{ resultTypes: [\"violations\"]{which} }});
             return violations.map(({{ id, nodes }}) => `${{id}}: ${{nodes[0].html}} ${{nodes[0].failureSummary}}`);",
        ))
        .await;
    assert_eq!(found, Value::Array(Vec::new()), "{page}");
}

async fn theme(browser: &Browser, theme: &str) {
    let script = format!(
        "localStorage.setItem('theme', {theme:?}); document.documentElement.dataset.theme = {theme:?};"
    );
    browser.run(&script).await;
}

/// Opens a page by its link and waits for its content.
async fn open_by_link(browser: &Browser, link: &str, content: &str) {
    let script = format!(
        "[...document.querySelectorAll('#nav a')].find((link) => link.textContent === {link:?}).click()"
    );
    browser.run(&script).await;
    let what = format!("{content} of the page {link}");
    let script = format!(
        "return document.querySelector('#nav a[aria-current]')?.textContent === {link:?} && \
         document.querySelector('main h1') !== null && document.querySelector({content:?}) !== null"
    );
    until(&what, async || (browser.run(&script).await == Value::Bool(true)).then_some(())).await;
}

/// Checks the shown page at both widths and in both themes.
async fn check_page(browser: &Browser, page: &str, rules: Option<&str>) {
    for width in WIDTHS {
        browser.width(width).await;
        let excess =
            browser.run("return document.documentElement.scrollWidth - window.innerWidth").await;
        assert!(excess.as_i64().is_some_and(|excess| excess <= 0), "{page} at {width}: {excess}");
    }
    if let Some(rules) = rules {
        check_accessibility(browser, rules, page).await;
    }
    browser.width(WIDTHS[0]).await;
}

/// Visits every page in both themes and at both widths.
async fn visit_every_page(browser: &Browser) {
    let rules = accessibility_rules();
    for (link, content) in PAGES {
        open_by_link(browser, link, content).await;
        check_page(browser, link, rules.as_deref()).await;
    }
    let foreign = browser
        .run(
            "return performance.getEntriesByType(\"resource\").map((one) => one.name)
                 .filter((name) => !name.startsWith(location.origin))",
        )
        .await;
    assert_eq!(foreign, Value::Array(Vec::new()), "only the own server is used");
}

/// The page of a running job has its life as pictures, and the same as text.
async fn check_life(browser: &Browser) {
    // The first window is closed.
    browser.until_text("main", "Starts as a table").await;
    browser.until_text(".timeline ol", "start 1, 2 GPUs: ").await;
    let label = |chart: &str| {
        format!(
            "return [...document.querySelectorAll('.timeline svg')].map((one) => \
             one.getAttribute('aria-label') ?? '').find((label) => label.startsWith({chart:?})) ?? ''"
        )
    };
    let power = browser.run(&label("Power of its GPUs: ")).await;
    let power = power.as_str().unwrap_or_default();
    assert!(power.contains(" W; sum of their caps ") && !power.contains("not known"), "{power}");
    assert_ne!(browser.run(&label("Steps per second: ")).await, "", "its speed is drawn");
    // With the keyboard: the table opens, and stays open when the page is updated.
    browser.run("document.querySelector('main details summary').focus()").await;
    browser.press(ENTER).await;
    browser.until_text("main details table", "Steps/s").await;
    check_page(browser, "the page of a job", accessibility_rules().as_deref()).await;
    let is_open = browser.run("return document.querySelector('main details').open").await;
    assert_eq!(is_open, Value::Bool(true));
}

/// The schedule has a row for each GPU, with the job on both of its GPUs, and the same as text.
async fn check_schedule(browser: &Browser, job: &str) {
    open_by_link(browser, "Schedule", ".gantt a").await;
    let rows = browser.run("return document.querySelectorAll('.gantt .lane').length").await;
    assert_eq!(rows, 8, "two nodes of four GPUs");
    let link = format!(".gantt a[href='/jobs/{job}']");
    let bars = format!("return document.querySelectorAll({link:?}).length");
    until("the job on two GPUs", async || (browser.run(&bars).await == 2).then_some(())).await;
    browser.run("document.querySelector('main summary').focus()").await;
    browser.press(ENTER).await;
    let text = browser.until_text("main details table", job).await;
    assert!(text.contains("running"), "{text}");
    // A bar leads to its job without a reload.
    browser.run("window.stays = true").await;
    let click = format!(
        "document.querySelector({link:?}).dispatchEvent(new MouseEvent('click', {{ bubbles: true, cancelable: true }}))"
    );
    browser.run(&click).await;
    browser.until_text("main h1", job).await;
    assert_eq!(browser.run("return window.stays").await, Value::Bool(true));
}

/// Power by node and energy by hour are drawn, and stated as text.
async fn check_power_and_energy(browser: &Browser) {
    open_by_link(browser, "Nodes", "table caption").await;
    let rows = "return [...document.querySelectorAll('table')].find((table) => table.caption.textContent\
                .startsWith('Power of each node'))?.innerText ?? ''";
    let text = browser.run(rows).await;
    let text = text.as_str().unwrap_or_default();
    assert!(["n0", "n1", "Caps in force"].iter().all(|part| text.contains(part)), "{text}");
    open_by_link(browser, "Energy", ".chart").await;
    let label = "return [...document.querySelectorAll('.chart svg')].map((one) => one.getAttribute('aria-label'))\
                 .find((label) => label.startsWith('Energy of each of the last 48 hours by use, ')) ?? ''";
    let label = browser.run(label).await;
    let label = label.as_str().unwrap_or_default();
    assert!(label.contains(" known; now ") && !label.contains(" 0 hours"), "{label}");
    browser.run("document.querySelector('main summary').focus()").await;
    browser.press(ENTER).await;
    browser.until_text("main details table", "Idle GPUs").await;
}

/// The form states what a budget will allow, in the figures and words that hold once it is set.
async fn check_budget(browser: &Browser) {
    open_by_link(browser, "Budget", "form.fields").await;
    browser.fill("#energy_kwh", "1000").await;
    let fact = |name: &str| {
        format!(
            "return [...document.querySelectorAll('main dt')].find((dt) => dt.textContent.startsWith({name:?}))\
             ?.nextElementSibling.textContent ?? ''"
        )
    };
    let sustained = fact("Sustained on average over 1 d");
    until("what it sustains", async || (browser.run(&sustained).await != "").then_some(())).await;
    let sustained = browser.run(&sustained).await;
    browser.until_text(".preview", "At least the present draw.").await;
    browser.click("Set").await;
    browser.until_text("main", "MWh per 1 d").await;
    browser.click("Set it").await;
    let even = fact("Even spending");
    until("the same mean power", async || (browser.run(&even).await == sustained).then_some(()))
        .await;
    let idle = fact("Power without jobs");
    until("the idle draw", async || (browser.run(&idle).await != "").then_some(())).await;
    Box::pin(remove_budget(browser)).await;
}

/// The preview of a budget with which no job could start states that, and the present budget is removed.
async fn remove_budget(browser: &Browser) {
    browser.fill("#energy_kwh", "1").await;
    browser.until_text(".preview", "No job can start: the idle cluster draws").await;
    check_page(browser, "the entered budget", accessibility_rules().as_deref()).await;
    browser.click("Remove the budget").await;
    browser.click("Remove it").await;
    browser.until_text(".verdict-line", "no budget is set").await;
}

/// What the present job would use and when it would end at other settings is drawn, and stated as text.
async fn check_what_if(browser: &Browser) {
    open_by_link(browser, "Budget", "form.fields").await;
    browser.until_text("main", "What if").await;
    let label = "return [...document.querySelectorAll('.chart svg')].map((one) => one.getAttribute('aria-label') ?? '')\
                 .find((label) => label.startsWith('Energy that is saved over')) ?? ''";
    until("the curve", async || (browser.run(label).await != "").then_some(())).await;
    let label = browser.run(label).await;
    let label = label.as_str().unwrap_or_default();
    assert!(label.contains(" less energy if they complete "), "{label}");
    check_page(browser, "the budget with its curve", accessibility_rules().as_deref()).await;
}

/// The sum of the samples of a metric.
fn sampled(text: &str, metric: &str) -> f64 {
    let start = format!("{metric}{{");
    let samples = text.lines().filter(|line| line.starts_with(&start));
    samples.filter_map(|line| line.split(' ').next_back()?.parse::<f64>().ok()).sum()
}

/// The saved energy is one number on the page, in the text, JSON and CSV of the command, and in the metrics.
async fn check_saving(browser: &Browser, system: &System) {
    open_by_link(browser, "Saving", ".chart").await;
    let addresses = addresses(system.folder());
    let placer = addresses.iter().find(|(name, _)| name.starts_with("placer"));
    let (_, placer) = placer.unwrap_or_else(|| panic!("{addresses:?}"));
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5;
    // All are renewed every five minutes, not at one instant.
    until("one saving", async || {
        let saved = system.json(&["saved", "--since", "30d", "--json"]);
        let total = &saved["total"];
        let saved_kwh = total["saved_kwh"].as_f64().filter(|_| total["jobs_compared"] != 0)?;
        let text = system.wattle(&["saved", "--since", "30d"]).stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        let shown = browser.text(".verdict-line").await;
        let csv = system.wattle(&["saved", "--since", "30d", "--csv"]).stdout;
        let csv = String::from_utf8_lossy(&csv).into_owned();
        let mut rows =
            csv.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let column = rows.next()?.iter().position(|name| name == "saved_kwh")?;
        let of_csv: f64 = rows.filter_map(|row| row[column].parse::<f64>().ok()).sum();
        let metrics = get(placer, "/metrics").ok()?;
        let of_metrics = sampled(&metrics, "wattle_cluster_saved_joules") / 3.6e6;
        let is_one = close(saved_kwh, of_csv)
            && close(saved_kwh, of_metrics)
            && shown.contains(text.lines().next()?)
            && shown.contains("completed");
        is_one.then_some(())
    })
    .await;
    // The page has the whole verdict, not its first line only.
    assert!(browser.text(".verdict-line").await.contains(" on average"));
}

/// An event is announced in the form.
async fn announce_event(browser: &Browser) {
    open_by_link(browser, "Events", "form.fields").await;
    browser.fill("#duration_min", "60").await;
    browser.fill("#depth", "200").await;
    browser
        .until_text(".preview, .fields", "Depth = 200 %: expected above 0 % and below 100 %.")
        .await;
    browser.fill("#depth", "5").await;
    browser.until_text(".preview", "Accepted with the present draw.").await;
    browser.fill("#id", "peak").await;
    // The power before is known once every node was metered.
    until("the event is announced", async || {
        let is_shown = browser.run("return location.pathname").await == "/grid-events/peak";
        if !is_shown {
            browser.run("document.querySelector('form.fields button[type=submit]')?.click()").await;
        }
        is_shown.then_some(())
    })
    .await;
    browser.until_text("main h1", "peak").await;
}

/// The page of an event has its report, and changes and cancels it.
async fn check_event(browser: &Browser, system: &System) {
    browser.until_text("main", "Minutes as CSV").await;
    browser.until_text(".verdict-line", "so far: the site was within the target of").await;
    // The figures of the page are those of the command, at some instant.
    until("the same verdict", async || {
        let shown = browser.text(".verdict-line").await;
        let output = system.wattle(&["event", "report", "peak"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        shown.contains(text.lines().next().unwrap_or("no output")).then_some(())
    })
    .await;
    Box::pin(check_page(browser, "an event", accessibility_rules().as_deref())).await;
    let csv = browser
        .run_async("return await (await fetch(document.querySelector('a[download]').href)).text()")
        .await;
    let csv = csv.as_str().unwrap_or_default();
    assert!(csv.starts_with("minute,phase,target_kw,") && csv.lines().count() > 1, "{csv}");
    browser.fill("#duration_min", "90").await;
    browser.click("Change").await;
    browser.until_text("main", "The duration is changed.").await;
    browser.click("Cancel event").await;
    browser.click("Cancel the event").await;
    browser.until_text(".verdict-line", "cancelled").await;
}

/// The content, and a search, are reached and kept by the keyboard.
async fn use_keyboard(browser: &Browser, address: &str) {
    // The first key leads to the content.
    browser.open(&format!("{address}/jobs")).await;
    browser.until_text("main h1", "Jobs").await;
    browser.press(TAB).await;
    assert_eq!(browser.run("return document.activeElement.className").await, "skip");
    // A search keeps the focus, and its address.
    browser.run("document.getElementById('search').focus()").await;
    browser.press("z").await;
    browser.until_text("main", "No job matches").await;
    assert_eq!(
        browser.run("return document.activeElement.id + location.search").await,
        "search?q=z"
    );
}

/// A lost bus and a lost server are shown, and their return.
async fn lose_bus_and_server(browser: &Browser, system: &mut System) {
    // A lost bus is shown, and its return.
    let server = system.processes("nats-server");
    server.iter().for_each(|pid| kill(*pid, "STOP"));
    browser.until_text("#connection", "Bus lost").await;
    browser.until_text("#announce", "The NATS server is away").await;
    server.iter().for_each(|pid| kill(*pid, "CONT"));
    browser.until_text("#connection", "Live").await;

    // A killed server is shown, and its return without a reload.
    browser.run("window.stays = true").await;
    // It is away until `wattle up` continues, which starts it again.
    system.signal("STOP");
    system.kill_9("wattle-web");
    browser.until_text("#connection", "Server lost").await;
    system.signal("CONT");
    browser.until_text("#connection", "Live").await;
    assert_eq!(browser.run("return window.stays").await, Value::Bool(true));
}

/// A page that is left gives its connection back: a browser has six for each host.
async fn load_many_times(browser: &Browser, address: &str) {
    for count in 0..8 {
        browser.open(&format!("{address}/jobs?q=z{count}")).await;
        browser.until_text("main", "No job matches").await;
    }
    browser.open(address).await;
    browser.until_text("#connection", "Live").await;
}

#[tokio::test]
async fn page_is_driven_in_a_browser() {
    let _turn = turn(Weight::Heavy);
    if !browser::is_installed() {
        return;
    }
    let mut system = System::up(&["--simulated", "2x4:v100", "--rate", "60"]).await;
    let browser = Browser::start().await;
    let address = sign_in(&browser, &system).await;
    assert_eq!(browser.run("return location.pathname + location.search").await, "/");
    browser.until_text("main h1", "0 running, 0 queued").await;
    browser.until_text("#connection", "Live").await;

    // A live update: the document stays.
    browser.run("window.stays = true").await;
    let job = system.submit(
        "train",
        &["--gpus", "2", "--workload", "resnet50-imagenet-b128"],
        &[
            "--workload",
            "resnet50-imagenet-b128",
            "--steps",
            "100000000",
            "--steps-per-epoch",
            "500",
        ],
    );
    browser.until_text("main h1", "1 running, 0 queued").await;
    assert_eq!(browser.run("return window.stays").await, Value::Bool(true));

    // The job is followed: why it is there, how far it is, its output.
    browser.click(job.as_str()).await;
    browser.until_text("main h1", job.as_str()).await;
    browser.until_text(".reasons", "placed on n").await;
    browser.until_text("main", "steps/s").await;
    let epochs = "return [...document.querySelectorAll('main dt')]\
                  .find((dt) => dt.textContent === 'Epochs')?.nextElementSibling.textContent ?? ''";
    let before = browser.run(epochs).await;
    until("progress", async || (browser.run(epochs).await != before).then_some(())).await;
    Box::pin(check_life(&browser)).await;
    browser.click("Show output on n").await;
    browser.until_text("#log", "attempt 1 on n").await;

    // A job that completes, for the saving.
    system.submit(
        "short",
        &["--gpus", "1", "--workload", "resnet50-imagenet-b128"],
        &["--workload", "resnet50-imagenet-b128", "--steps", "1000"],
    );
    Box::pin(visit_every_page(&browser)).await;
    Box::pin(check_what_if(&browser)).await;
    Box::pin(check_saving(&browser, &system)).await;
    Box::pin(check_schedule(&browser, job.as_str())).await;
    Box::pin(check_power_and_energy(&browser)).await;
    Box::pin(check_budget(&browser)).await;
    Box::pin(announce_event(&browser)).await;
    Box::pin(check_event(&browser, &system)).await;

    Box::pin(use_keyboard(&browser, &address)).await;

    // The session of the user who started the system may act.
    browser.open(&format!("{address}/jobs/{job}")).await;
    browser.click("Cancel").await;
    browser.click("Cancel the job").await;
    browser.until_text(".verdict-line", "cancelled").await;
    assert_eq!(browser.errors().await, Vec::<String>::new());

    Box::pin(load_many_times(&browser, &address)).await;

    Box::pin(lose_bus_and_server(&browser, &mut system)).await;

    browser.end().await;
    assert!(system.end().await.success());
}
