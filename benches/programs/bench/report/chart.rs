//! The chart for docs/benchmarks.md: for each setting and each figure, a bar for each candidate.

use std::fmt::Write;

use crate::{
    report::{COLUMNS, Report, Runs, Setting},
    rig::candidate::REKNIT,
};

const LINE_HEIGHT: f64 = 20.0;
const PANEL_WIDTH: f64 = 150.0;
const ROW_HEIGHT: f64 = 18.0;
const GAP: f64 = 14.0;
const NAMES_WIDTH: f64 = 170.0;
/// The columns of the report that the chart shows.
const TITLES: [&str; 5] = ["objects/s", "CPU µs/object", "settled MB", "first Ready s", "p99 ms"];
/// The colors are legible on white and on black.
const STYLE: &str =
    "text{font:12px sans-serif;fill:#777}.title{font-weight:bold}.bar{fill:#999}.ours{fill:#d9622b}";

/// Draws the settings one below the other, and the machine as the last line.
pub(crate) fn svg(report: &Report) -> String {
    let (mut settings, mut top) = (String::new(), 0.0);
    for setting in &report.settings {
        draw_setting(&mut settings, setting, top);
        top += 2.0 * LINE_HEIGHT + ROW_HEIGHT * setting.candidates.len() as f64 + GAP;
    }
    let (width, height) = (NAMES_WIDTH + (PANEL_WIDTH + GAP) * TITLES.len() as f64, top + LINE_HEIGHT);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <style>{STYLE}</style>\n{settings}<text x=\"0\" y=\"{}\">{}</text>\n</svg>\n",
        top + GAP,
        report.machine
    )
}

fn draw_setting(svg: &mut String, setting: &Setting, top: f64) {
    let heading = format!("{} objects of each Kind, {} workers", setting.objects, setting.workers);
    let _ = writeln!(svg, "<text class=\"title\" x=\"0\" y=\"{}\">{heading}</text>", top + GAP);
    for (row, runs) in setting.candidates.iter().enumerate() {
        let _ = writeln!(svg, "<text x=\"0\" y=\"{}\">{}</text>", baseline(top, row), runs.name);
    }
    for (index, title) in TITLES.iter().enumerate() {
        draw_panel(svg, setting, title, [NAMES_WIDTH + (PANEL_WIDTH + GAP) * index as f64, top]);
    }
}

/// Draws the bars of one figure. Draws nothing if the figure was not measured in this setting.
fn draw_panel(svg: &mut String, setting: &Setting, title: &str, [left, top]: [f64; 2]) {
    let median = |runs: &Runs| {
        let column = COLUMNS.iter().find(|column| column.title == title)?;
        Some(column.figure(runs)?.median)
    };
    let max = setting.candidates.iter().filter_map(median).reduce(f64::max);
    let Some(max) = max.filter(|max| *max > 0.0) else { return };
    let _ =
        writeln!(svg, "<text class=\"title\" x=\"{left}\" y=\"{}\">{title}</text>", top + LINE_HEIGHT + GAP);
    for (row, runs) in setting.candidates.iter().enumerate() {
        let Some(value) = median(runs) else { continue };
        let length = value / max * (PANEL_WIDTH - 60.0);
        let class = if runs.name == REKNIT { "bar ours" } else { "bar" };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{left}\" y=\"{}\" width=\"{length:.1}\" height=\"13\"/>\
             <text x=\"{:.1}\" y=\"{}\">{value:.*}</text>",
            baseline(top, row) - 11.0,
            left + length + 5.0,
            baseline(top, row),
            if value < 10.0 { 2 } else { 0 },
        );
    }
}

fn baseline(top: f64, row: usize) -> f64 {
    top + 2.0 * LINE_HEIGHT + ROW_HEIGHT * row as f64 + 13.0
}
