//! The chart for README.md: for each figure a bar a candidate, of the setting with the most objects and workers.

use std::fmt::Write;

use crate::{
    candidate::REKNIT,
    report::{COLUMNS, Report, Runs, Setting},
};

const PANEL: [f64; 2] = [150.0, 34.0];
const BAR: f64 = 18.0;
const GAP: f64 = 14.0;
const NAMES: f64 = 170.0;
const SHOWN: [&str; 5] = ["objects/s", "CPU µs/object", "settled MB", "first Ready s", "p99 ms"];
/// Legible on white and on black.
const STYLE: &str =
    "text{font:12px sans-serif;fill:#777}.title{font-weight:bold}.bar{fill:#999}.ours{fill:#d9622b}";

/// None where nothing was measured.
pub(crate) fn svg(report: &Report) -> Option<String> {
    let setting = report.settings.iter().max_by_key(|setting| (setting.objects, setting.workers))?;
    let height = PANEL[1] + BAR * setting.candidates.len() as f64 + GAP;
    let width = NAMES + (PANEL[0] + GAP) * SHOWN.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n<style>{STYLE}</style>\n"
    );
    for (row, runs) in setting.candidates.iter().enumerate() {
        let _ = writeln!(svg, "<text x=\"0\" y=\"{}\">{}</text>", baseline(row), runs.name);
    }
    for (at, title) in SHOWN.iter().enumerate() {
        panel(&mut svg, setting, title, NAMES + (PANEL[0] + GAP) * at as f64);
    }
    let of = format!("{} objects of each Kind, {} workers", setting.objects, setting.workers);
    let _ = writeln!(svg, "<text x=\"0\" y=\"{}\">{of}; {}</text>\n</svg>", height - 6.0, report.machine);
    Some(svg)
}

fn panel(svg: &mut String, setting: &Setting, title: &str, left: f64) {
    let median = |runs: &Runs| {
        let column = COLUMNS.iter().find(|column| column.title == title)?;
        Some(column.figure(runs)?.median)
    };
    let most = setting.candidates.iter().filter_map(median).fold(f64::MIN_POSITIVE, f64::max);
    let _ = writeln!(svg, "<text class=\"title\" x=\"{left}\" y=\"20\">{title}</text>");
    for (row, runs) in setting.candidates.iter().enumerate() {
        let Some(value) = median(runs) else { continue };
        let (length, class) =
            (value / most * (PANEL[0] - 60.0), if runs.name == REKNIT { "bar ours" } else { "bar" });
        let top = baseline(row) - 11.0;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"{length:.1}\" height=\"13\"/>\
             <text x=\"{:.1}\" y=\"{}\">{value:.*}</text>",
            left + length + 5.0,
            baseline(row),
            if value < 10.0 { 2 } else { 0 },
        );
    }
}

fn baseline(row: usize) -> f64 {
    PANEL[1] + BAR * row as f64 + 13.0
}
