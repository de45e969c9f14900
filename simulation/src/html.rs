//! The page of a failed run: replicas, passes, writes and faults over time.

use std::fmt::Write;

use crate::{
    time::Time,
    timeline::{Failure, Line, timeline},
};

const WIDTH: f64 = 1200.0;
const LANE: usize = 70;
const LEFT: f64 = 90.0;

/// Writes the page, which needs no other file.
pub(crate) fn page(failure: &Failure<'_>) -> String {
    let Failure { test, seed, run, .. } = failure;
    let mut page = String::from(HEAD);
    _ = write!(page, "<h1>{} · seed {seed}</h1>", escaped(test));
    for violation in &run.violations {
        _ = write!(
            page,
            "<p class=bad><b>{}</b><br>{}</p>",
            escaped(&violation.oracle),
            escaped(&violation.message)
        );
    }
    _ = write!(page, "<p>Faults: {}</p>", escaped(&run.plan.to_string()));
    page.push_str(&picture(failure));
    page.push_str("<table>");
    for Line { at, replica, text } in timeline(run) {
        let replica = replica.map_or_else(String::new, |replica| format!("replica-{replica}"));
        let class = if text.starts_with("fault") { " class=fault" } else { "" };
        _ = write!(page, "<tr{class}><td>{at}<td>{replica}<td>{}", escaped(&text));
    }
    page.push_str("</table>");
    page
}

/// One lane for each replica: passes as bars, writes as ticks, faults as crosses.
fn picture(failure: &Failure<'_>) -> String {
    let (run, lanes) = (failure.run, failure.replicas);
    let last = run.violations.iter().map(|violation| violation.at).max().unwrap_or(run.end);
    let span = last.since(Time::default()).as_secs_f64().max(1.0);
    let x = |at: Time| LEFT + at.since(Time::default()).as_secs_f64() / span * (WIDTH - LEFT - 10.0);
    let height = lanes * LANE + 30;
    let mut svg = format!("<svg viewBox='0 0 {WIDTH} {height}' role=img aria-label='replicas over time'>");
    for lane in 0..lanes {
        let y = lane * LANE + 40;
        _ = write!(
            svg,
            "<text x=5 y={y}>replica-{lane}</text><line x1={LEFT} x2={WIDTH} y1={y} y2={y} class=axis />"
        );
    }
    for pass in run.trace.passes.values() {
        let (y, from, to) = (pass.replica * LANE + 32, x(pass.begun), x(pass.ended.unwrap_or(last)));
        let width = (to - from).max(1.5);
        _ = write!(
            svg,
            "<rect class=pass x={from:.1} y={y} width={width:.1} height=16><title>{} {} at {}</title></rect>",
            escaped(&pass.controller),
            escaped(&pass.key),
            pass.begun
        );
    }
    for sent in run.trace.requests.iter().filter(|sent| sent.is_effect()) {
        let (x, y) = (x(sent.at), sent.replica * LANE + 24);
        let summary = escaped(&sent.summary());
        _ = write!(
            svg,
            "<rect class=write x={x:.1} y={y} width=2 height=32><title>{summary} at {}</title></rect>",
            sent.at
        );
    }
    for note in &run.trace.notes {
        let class = if note.text.starts_with("fault") { "fault" } else { "note" };
        let (x, y) = (x(note.at), note.replica.map_or(12, |replica| replica * LANE + 20));
        _ = write!(
            svg,
            "<circle class={class} cx={x:.1} cy={y} r=4><title>{} at {}</title></circle>",
            escaped(&note.text),
            note.at
        );
    }
    for violation in &run.violations {
        let x = x(violation.at);
        _ = write!(svg, "<line class=bad x1={x:.1} x2={x:.1} y1=0 y2={height} />");
    }
    svg.push_str("</svg>");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")
}

const HEAD: &str = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
<title>reknit simulation</title><style>\
:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;margin:1.5em;max-width:1300px}\
svg{width:100%;font:12px system-ui;fill:currentColor}.axis{stroke:#8888}.pass{fill:#4a90d9;opacity:.6}\
.write{fill:#2e9e4f}.fault{fill:#d33;color:#d33}.note{fill:#888}line.bad{stroke:#d33;stroke-width:2}\
p.bad{border-left:4px solid #d33;padding-left:.7em;white-space:pre-wrap}\
table{border-collapse:collapse;font-family:ui-monospace,monospace}td{padding:.1em .8em .1em 0;vertical-align:top}\
</style>";
