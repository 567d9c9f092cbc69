//! A headless Chromium that tests drive through chromedriver, by the few WebDriver requests they need.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use wattle_runtime::testing::skipped;

use crate::http::http;
use crate::until;

/// Time limit of one request, wall time.
const ANSWER_WITHIN: Duration = wattle_runtime::testing::HANG;
/// The key of an element in WebDriver's messages.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

/// Whether Chromium and its driver are installed; otherwise a note is printed.
#[must_use]
pub fn is_installed() -> bool {
    let has = |program: &str| {
        let run = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    let found = has("chromedriver") && has("chromium");
    if !found {
        skipped(
            "the web page in a browser: chromium and chromium-driver are not installed (.ci/run installs them)",
        );
    }
    found
}

/// One request to the driver.
async fn exchange(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<Value> {
    let response = http(port, method, path, &[("Content-Type", "application/json")], body).await?;
    serde_json::from_str(&response.body).map_err(std::io::Error::other)
}

impl Browser {
    /// Starts a browser with a new profile.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start() -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let profile = tempfile::tempdir().expect("a temporary folder");
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        until("chromedriver answers", async || exchange(port, "GET", "/status", "").await.ok())
            .await;
        let folder = format!("--user-data-dir={}", browser._profile.path().display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--window-size=1400,1000",
            &folder,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let answer = exchange(port, "POST", "/session", &wanted.to_string()).await;
        let answer = answer.expect("chromedriver answers");
        let session = answer["value"]["sessionId"].as_str();
        session.unwrap_or_else(|| panic!("no session: {answer}")).clone_into(&mut browser.session);
        browser
    }

    /// A request of the session; its value, or the error's message.
    async fn request(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let path = format!("/session/{}{path}", self.session);
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let answer = exchange(self.port, method, &path, &body);
        let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await;
        let answer = answer.expect("chromedriver answers in time").expect("it answers JSON");
        match answer["value"].get("error") {
            Some(error) if error.is_string() => Err(answer["value"]["message"].to_string()),
            _ => Ok(answer["value"].clone()),
        }
    }

    /// Opens an address.
    pub async fn open(&self, address: &str) {
        self.request("POST", "/url", &json!({ "url": address })).await.expect("the page opens");
    }

    /// Runs a script in the page; `return` gives its value.
    pub async fn run(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        let value = self.request("POST", "/execute/sync", &body).await;
        value.unwrap_or_else(|error| panic!("{error} in {script}"))
    }

    /// Runs a script that resolves a promise.
    pub async fn run_async(&self, script: &str) -> Value {
        let script = format!(
            "const done = arguments[arguments.length - 1]; Promise.resolve((async () => {{ {script} \
             }})()).then(done, (error) => done(String(error)));"
        );
        let body = json!({ "script": script, "args": [] });
        self.request("POST", "/execute/async", &body)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The text of the first element that matches a selector.
    pub async fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector({selector:?})?.innerText ?? \"\"");
        self.run(&script).await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the text of an element contains `part`.
    ///
    /// # Panics
    /// After the deadline, with the text.
    pub async fn until_text(&self, selector: &str, part: &str) -> String {
        let what = format!("`{part}` in {selector}");
        until(&what, async || {
            let text = self.text(selector).await;
            text.contains(part).then_some(text)
        })
        .await
    }

    /// Clicks the link or button with this text, as a person does.
    ///
    /// # Panics
    /// If there is none, or another element covers it.
    pub async fn click(&self, text: &str) {
        let query =
            format!("//*[self::a or self::button][contains(normalize-space(.), \"{text}\")]");
        let found = until(text, async || {
            let body = json!({ "using": "xpath", "value": query });
            self.request("POST", "/element", &body).await.ok()
        })
        .await;
        let element = found[ELEMENT].as_str().expect("an element").to_owned();
        let clicked = self.request("POST", &format!("/element/{element}/click"), &json!({})).await;
        clicked.unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    /// Replaces the content of a text field, as a person types it.
    ///
    /// # Panics
    /// If no field matches the selector, or it takes no text.
    pub async fn fill(&self, selector: &str, text: &str) {
        let what = format!("a field {selector}");
        let found = until(&what, async || {
            let body = json!({ "using": "css selector", "value": selector });
            self.request("POST", "/element", &body).await.ok()
        })
        .await;
        let element = found[ELEMENT].as_str().expect("an element").to_owned();
        for (action, body) in [("clear", json!({})), ("value", json!({ "text": text }))] {
            let path = format!("/element/{element}/{action}");
            let done = self.request("POST", &path, &body).await;
            done.unwrap_or_else(|error| panic!("{selector}: {error}"));
        }
    }

    /// Presses a key.
    pub async fn press(&self, key: &str) {
        let actions =
            json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let body = json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] });
        self.request("POST", "/actions", &body).await.expect("the key is pressed");
    }

    /// Shows the page as on a screen of this width, CSS pixels.
    pub async fn width(&self, width: u32) {
        let metrics =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        let body = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": metrics });
        self.request("POST", "/goog/cdp/execute", &body).await.expect("the width is set");
    }

    /// The memory of the page's script after a collection of garbage, MB, and the number of elements.
    pub async fn memory(&self) -> (f64, u64) {
        let body = json!({ "cmd": "HeapProfiler.collectGarbage", "params": {} });
        self.request("POST", "/goog/cdp/execute", &body).await.expect("garbage is collected");
        let script = "return [performance.memory.usedJSHeapSize / 1e6, document.querySelectorAll('*').length]";
        let found = self.run(script).await;
        (found[0].as_f64().unwrap_or_default(), found[1].as_u64().unwrap_or_default())
    }

    /// The errors that the page has written to the console since the last call.
    pub async fn errors(&self) -> Vec<String> {
        let entries = self.request("POST", "/se/log", &json!({ "type": "browser" })).await;
        let entries = entries.expect("the console is read");
        let entries = entries.as_array().cloned().unwrap_or_default();
        let severe = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }

    /// Ends the browser.
    pub async fn end(mut self) {
        let _ = self.request("DELETE", "", &json!({})).await;
        self.stop();
    }

    fn stop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.stop();
    }
}
