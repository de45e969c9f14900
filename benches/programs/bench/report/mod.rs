//! The results, as data and as a table.

pub(crate) mod chart;
pub(crate) mod statistics;

use std::{collections::BTreeMap, fmt::Write};

use serde::Serialize;

use crate::{
    measure::{latency::Latency, memory::Phases, throughput::Throughput},
    report::statistics::Spread,
    rig::{
        candidate::{REKNIT, is_floor},
        machine::Machine,
    },
};

/// The results of one run of the program.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) settings: Vec<Setting>,
    /// Seconds from the start of a process until it has listed both Kinds, by the number of objects of each.
    pub(crate) listing: BTreeMap<usize, Spread>,
    /// The memory of each candidate, with the highest number of objects.
    pub(crate) memory: BTreeMap<String, Phases>,
    /// Milliseconds of processor time in a minute without work, for each candidate.
    pub(crate) idle: BTreeMap<String, f64>,
}

/// The results for a number of objects of each Kind and a number of workers.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) objects: usize,
    pub(crate) workers: usize,
    pub(crate) candidates: Vec<Runs>,
}

/// The runs of one candidate.
#[derive(Debug, Serialize)]
pub(crate) struct Runs {
    pub(crate) name: String,
    pub(crate) throughput: Vec<Throughput>,
    pub(crate) latency: Vec<Latency>,
}

/// One figure of each candidate, which is a column of the table.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    value: fn(&Runs) -> Option<Spread>,
}

macro_rules! of_throughput {
    ($title:literal, $run:ident => $figure:expr) => {
        Column { title: $title, value: |runs| Spread::of(runs.throughput.iter().map(|$run| $figure)) }
    };
}

macro_rules! of_latency {
    ($title:literal, $run:ident => $figure:expr) => {
        Column { title: $title, value: |runs| Spread::of(runs.latency.iter().map(|$run| $figure)) }
    };
}

pub(crate) const COLUMNS: [Column; 9] = [
    of_throughput!("objects/s", run => run.objects_per_second),
    of_throughput!("CPU µs/object", run => run.cpu_per_object),
    of_throughput!("settled MB", run => run.memory.settled),
    of_throughput!("peak MB", run => run.memory.peak),
    of_throughput!("first Ready s", run => run.first_ready),
    of_throughput!("last Ready s", run => run.last_ready),
    of_throughput!("writes/object", run => run.writes_per_object),
    of_latency!("p50 ms", run => run.p50),
    of_latency!("p99 ms", run => run.p99),
];

impl Runs {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), throughput: Vec::new(), latency: Vec::new() }
    }
}

impl Setting {
    fn runs_of(&self, name: &str) -> Option<&Runs> {
        self.candidates.iter().find(|runs| runs.name == name)
    }
}

impl Report {
    /// Creates an empty report for this machine.
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            machine,
            settings: Vec::new(),
            listing: BTreeMap::new(),
            memory: BTreeMap::new(),
            idle: BTreeMap::new(),
        }
    }

    /// Returns the table to print: medians with their ranges, and the ratios of reknit's figures to the others'.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{}\n", self.machine);
        for setting in &self.settings {
            let _ = writeln!(text, "\n{} objects of each Kind, {} workers", setting.objects, setting.workers);
            text += &align_columns(&setting.rows());
        }
        text += "\n";
        for (objects, seconds) in &self.listing {
            let _ =
                writeln!(text, "listing {objects} objects of each Kind takes {} s", format_spread(seconds));
        }
        text += &align_columns(&self.memory_rows());
        for (name, milliseconds) in &self.idle {
            let _ = writeln!(text, "idle for a minute, {name} uses {milliseconds:.1} ms of processor time");
        }
        text
    }

    fn memory_rows(&self) -> Vec<Vec<String>> {
        if self.memory.is_empty() {
            return Vec::new();
        }
        let titles = ["MB", "first list", "peak", "relist", "peak", "churn", "peak"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        for (name, phases) in &self.memory {
            let memories = [phases.first_list, phases.relist, phases.churn];
            let figures = memories.iter().flat_map(|memory| [memory.settled, memory.peak]);
            rows.push(std::iter::once(name.clone()).chain(figures.map(|mb| format!("{mb:.0}"))).collect());
        }
        rows
    }
}

impl Setting {
    fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: String, figures: Vec<String>| std::iter::once(name).chain(figures).collect();
        let mut rows = vec![row(String::new(), COLUMNS.iter().map(|column| column.title.into()).collect())];
        for runs in &self.candidates {
            let figure =
                |column: &Column| column.figure(runs).as_ref().map_or_else(|| "–".into(), format_spread);
            rows.push(row(runs.name.clone(), COLUMNS.iter().map(figure).collect()));
        }
        let Some(ours) = self.runs_of(REKNIT) else { return rows };
        for theirs in self.candidates.iter().filter(|runs| runs.name != REKNIT) {
            let figure = |column: &Column| {
                ratio(column, ours, theirs).map_or_else(|| "–".into(), |r| format!("{r:.2}"))
            };
            rows.push(row(format!("{REKNIT} / {}", theirs.name), COLUMNS.iter().map(figure).collect()));
        }
        rows
    }
}

impl Column {
    /// Returns the figure of these runs. Returns `None` if it was not measured or would be meaningless: a floor neither
    /// lists nor caches objects, so its memory and its times until the first and the last Ready object cannot be
    /// compared with those of a controller.
    pub(crate) fn figure(&self, runs: &Runs) -> Option<Spread> {
        let meaningless = is_floor(&runs.name) && (self.title.contains("MB") || self.title.contains("Ready"));
        if meaningless { None } else { (self.value)(runs) }
    }
}

fn ratio(column: &Column, ours: &Runs, theirs: &Runs) -> Option<f64> {
    Some(column.figure(ours)?.median / column.figure(theirs)?.median)
}

fn format_spread(spread: &Spread) -> String {
    let digits = match spread.median {
        median if median >= 100.0 => 0,
        median if median >= 10.0 => 1,
        _ => 2,
    };
    let Spread { median, least, most } = spread;
    match least == most {
        true => format!("{median:.digits$}"),
        false => format!("{median:.digits$} ({least:.digits$}-{most:.digits$})"),
    }
}

/// Aligns the columns, the first to the left and the others to the right.
fn align_columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| match column {
            0 => format!("{cell:<0$}", width(column)),
            _ => format!("  {cell:>0$}", width(column)),
        });
        text += cells.collect::<String>().trim_end();
        text += "\n";
    }
    text
}
