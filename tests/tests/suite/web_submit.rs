//! A job that is submitted on the web page, driven in headless Chromium: wrong input, a refusal of the
//! placer, and the job on its page until its end.

use serde_json::Value;
use wattle_common::JobId;
use wattle_runtime::testing::{Weight, turn};
use wattle_tests::System;
use wattle_tests::browser::{self, Browser};

use crate::web::{WIDTHS, accessibility_rules, check_accessibility, sign_in};

/// WebDriver's codes of the keys Tab, Space and Enter.
const TAB: &str = "\u{e004}";
const SPACE: &str = " ";
const ENTER: &str = "\u{e007}";

/// The content of a field.
async fn value(browser: &Browser, field: &str) -> Value {
    browser.run(&format!("return document.getElementById('job-{field}').value")).await
}

/// The id of the element with the focus.
async fn focused(browser: &Browser) -> Value {
    browser.run("return document.activeElement.id").await
}

/// The errors of the console, without those that state a refused request.
async fn errors(browser: &Browser) -> Vec<String> {
    let mut errors = browser.errors().await;
    errors.retain(|error| !error.contains("the server responded with a status of 4"));
    errors
}

/// Checks the shown form: both widths, both themes.
async fn check_form(browser: &Browser) {
    for width in WIDTHS {
        browser.width(width).await;
        let excess =
            browser.run("return document.documentElement.scrollWidth - window.innerWidth").await;
        assert!(excess.as_i64().is_some_and(|excess| excess <= 0), "at {width}: {excess}");
    }
    if let Some(rules) = accessibility_rules() {
        check_accessibility(browser, &rules, "the form").await;
    }
    browser.width(WIDTHS[0]).await;
}

/// The words of the command are shown, with what only a shell interprets.
async fn enter_command(browser: &Browser) {
    browser.fill("#job-command", "echo \"hello $GREETING\"; sleep 1").await;
    browser.until_text("#job-words", "hello $GREETING;").await;
    browser.until_text("main form", "Only a shell interprets $").await;
    // With the keyboard alone: Tab leads from the command to the choice of a shell.
    browser.press(TAB).await;
    assert_eq!(focused(browser).await, "job-shell");
    browser.press(SPACE).await;
    browser.until_text("#job-words", "Runs sh -c echo \"hello $GREETING\"; sleep 1").await;
}

/// A wrong field shows its error when it is left, and receives the focus when the form is sent.
async fn enter_wrong_fields(browser: &Browser) {
    browser.fill("#job-gpus", "8..1").await;
    browser.press(TAB).await;
    let error = "invalid number of GPUs `8..1`: expected a number or a range, as in 4 or 1..8";
    browser.until_text("#job-gpus-error", error).await;
    browser.run("document.querySelector('main details').open = true").await;
    browser.fill("#job-environment", "GREETING").await;
    browser.fill("#job-deadline", "soon").await;
    browser.click("Submit the job").await;
    browser.until_text("main form [role=alert]", "3 fields are not valid").await;
    browser.until_text("#job-environment-error", "expected KEY=VALUE").await;
    browser.until_text("#job-deadline-error", "expected 90s, 45m, 12h or 3d").await;
    assert_eq!(focused(browser).await, "job-gpus", "the first field with an error");
    let described = browser
        .run("const { ariaInvalid } = document.activeElement; return [ariaInvalid, document.activeElement.getAttribute('aria-describedby')].join()")
        .await;
    assert_eq!(described, "true,job-gpus-hint job-gpus-error");
}

/// The placer's refusal is beside the form, and nothing is lost.
async fn enter_too_many_gpus(browser: &Browser) {
    browser.fill("#job-gpus", "64").await;
    browser.fill("#job-environment", "GREETING=ada").await;
    browser.fill("#job-deadline", "2h").await;
    browser.fill("#job-name", "greeting").await;
    browser.click("Submit the job").await;
    let refusal = browser.until_text("main form [role=alert]", "Not submitted: ").await;
    assert!(refusal.contains("64"), "{refusal}");
    assert_eq!(value(browser, "command").await, "echo \"hello $GREETING\"; sleep 1");
    assert_eq!(value(browser, "environment").await, "GREETING=ada");
}

/// The job leads to its page; a repeated click makes no second job.
async fn submit(browser: &Browser, system: &System) {
    browser.fill("#job-gpus", "2").await;
    browser
        .run("const form = document.querySelector('main form'); form.requestSubmit(); form.requestSubmit();")
        .await;
    let heading = browser.until_text("main h1", "greeting-").await;
    let job = JobId::new(heading.trim()).unwrap();
    let path = browser.run("return location.pathname").await;
    assert_eq!(path, format!("/jobs/{job}"));
    browser.until_text(".verdict-line", "finished").await;
    browser.click("Show output on n").await;
    browser.until_text("#log", "hello ada").await;
    let record = system.record(&job).await.unwrap();
    let spec = &record.spec;
    assert_eq!(spec.command, ["sh", "-c", "echo \"hello $GREETING\"; sleep 1"]);
    assert_eq!((spec.gpus.min, spec.gpus.max, spec.name.as_str()), (2, 2, "greeting"));
    assert!(spec.deadline_at_us.is_some() && spec.user.is_some());
    assert_eq!(system.json(&["jobs", "--all", "--json"]).as_array().map(Vec::len), Some(1));
}

/// The form is empty again; Enter in a field submits it.
async fn submit_with_the_keyboard(browser: &Browser) {
    browser.run("history.back()").await;
    browser.until_text("main h1", "Submit a job").await;
    assert_eq!(value(browser, "command").await, "");
    browser.fill("#job-command", "no-such-program").await;
    browser.fill("#job-name", "absent").await;
    browser.press(ENTER).await;
    browser.until_text("main h1", "absent-").await;
    browser.until_text(".verdict-line", "failed").await;
}

#[tokio::test]
async fn a_job_is_submitted_on_the_page_and_followed_to_its_end() {
    let _turn = turn(Weight::Heavy);
    if !browser::is_installed() {
        return;
    }
    let mut system = System::up(&["--simulated", "2x4:v100", "--rate", "60"]).await;
    let browser = Browser::start().await;
    let address = sign_in(&browser, &system).await;
    browser.open(&format!("{address}/jobs")).await;
    browser.click("Submit a job").await;
    browser.until_text("main h1", "Submit a job").await;
    browser.until_text(".verdict-line", "The job will belong to").await;
    browser.until_text("#job-gpu_type", "v100 (8 in the cluster)").await;
    // On the heap: the states of all steps are too large for the stack of a test.
    Box::pin(enter_command(&browser)).await;
    Box::pin(enter_wrong_fields(&browser)).await;
    Box::pin(check_form(&browser)).await;
    Box::pin(enter_too_many_gpus(&browser)).await;
    Box::pin(submit(&browser, &system)).await;
    Box::pin(submit_with_the_keyboard(&browser)).await;
    assert_eq!(errors(&browser).await, Vec::<String>::new());

    browser.end().await;
    assert!(system.end().await.success());
}
