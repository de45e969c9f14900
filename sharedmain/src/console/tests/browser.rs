//! Chromium, driven by its DevTools protocol over pipes, which needs no websocket.
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A browser with one page. It is killed on drop.
pub(super) struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    last_id: u64,
    /// The errors that the page has logged.
    pub(super) errors: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser that the environment variable `CHROMIUM` names.
    pub(super) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".into());
        // Chromium reads requests from descriptor 3 and writes answers to 4.
        let script = "exec 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null; exec \"$@\"";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", &chromium, "--headless", "--remote-debugging-pipe", "--no-sandbox"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (requests, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Self {
            child,
            requests,
            answers,
            session: None,
            last_id: 0,
            errors: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method and returns its result.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut request = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let mut message = Vec::new();
            self.answers.read_until(0, &mut message).unwrap();
            assert_eq!(message.pop(), Some(0), "the browser has ended: hack/browser.sh installs it");
            let mut message: Value = serde_json::from_slice(&message).unwrap();
            if message["id"] == self.last_id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            let is_error = message["method"] == "Runtime.exceptionThrown"
                || (message["method"] == "Log.entryAdded" && message["params"]["entry"]["level"] == "error");
            if is_error {
                self.errors.push(message.to_string());
            }
        }
    }

    /// Evaluates an expression, and awaits it if it is a promise.
    pub(super) fn evaluate(&mut self, expression: &str) -> Value {
        self.try_evaluate(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    fn try_evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut result = self.call("Runtime.evaluate", params);
        if result["exceptionDetails"].is_null() { Ok(result["result"]["value"].take()) } else { Err(result) }
    }

    /// Waits until an expression is true. While a page loads, it may fail.
    pub(super) fn wait_for(&mut self, expression: &str) {
        let began = Instant::now();
        while self.try_evaluate(&format!("Boolean({expression})")) != Ok(json!(true)) {
            if began.elapsed() > TIMEOUT {
                panic!("{expression} is not true of {}", self.evaluate("document.body.innerText"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(super) fn press(&mut self, key: &str, code: u32) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    pub(super) fn screenshot(&mut self) -> Vec<u8> {
        let image = self.call("Page.captureScreenshot", json!({"format": "png"}));
        BASE64_STANDARD.decode(image["data"].as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
