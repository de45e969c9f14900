//! The metrics of a process after each action of table.txt, read from its endpoint.
//!
//! A line of the table is an action, or a change that it leads to: a series, named by its metric and the beginnings of some
//! of its labels, and what is true of the sum of all such series. It rises (`+`) or falls (`-`) by this number or more, is
//! equal to it (`=`) or greater (`>`).
mod actions;
mod program;

use std::{collections::BTreeSet, fs, path::Path};

use reknit_testing::eventually;

use self::actions::Actions;
pub(crate) use self::program::add_controllers;
use crate::{
    child::Child,
    cluster::{TIMEOUT, with_own_cluster},
    life_cycle::get,
    trials,
};

trials![each_action_of_the_table_changes_its_metrics_and_each_metric_of_the_docs_is_in_the_table];

const TABLE: &str = include_str!("table.txt");

/// A change of a sum of series by an action.
struct Change<'a> {
    series: &'a str,
    sign: char,
    number: f64,
}

impl<'a> Change<'a> {
    fn parse(line: &'a str) -> Self {
        let (series, change) = line.trim().rsplit_once(' ').unwrap();
        let (sign, number) = change.split_at(1);
        Self { series, sign: sign.chars().next().unwrap(), number: number.parse().unwrap() }
    }

    fn has_happened(&self, before: f64, now: f64) -> bool {
        match self.sign {
            '+' => now >= before + self.number,
            '-' => now <= before - self.number,
            '=' => now == self.number,
            '>' => now > self.number,
            sign => panic!("{}: {sign}", self.series),
        }
    }

    /// The name of the metric, if a metric that is always zero has no such change.
    fn proven_metric(&self) -> Option<&'a str> {
        let name = self.series.split('{').next()?;
        let name = name.strip_suffix("_count").unwrap_or(name);
        (self.sign != '-' && self.number > 0.0 || self.sign == '>').then_some(name)
    }

    /// The sum of the series in a text in the format of Prometheus.
    fn sum_in(&self, text: &str) -> f64 {
        let (name, labels) = self.series.split_once('{').unwrap_or((self.series, ""));
        let labels = labels.trim_end_matches('}').split_terminator(',');
        let labels: Vec<_> = labels.map(|label| label.replacen('=', "=\"", 1)).collect();
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        });
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }
}

/// The actions of the table with their changes, in order.
fn rows() -> Vec<(&'static str, Vec<Change<'static>>)> {
    let mut rows = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        match (line.starts_with(' '), rows.last_mut()) {
            (true, Some((_, changes))) => Vec::push(changes, Change::parse(line)),
            _ => rows.push((line, Vec::new())),
        }
    }
    rows
}

fn scrape(process: &Child) -> String {
    get(&process.wait_for_address("metrics"), "/metrics").1
}

/// Takes an action, and waits until all of its changes have happened.
async fn act(actions: &mut Actions, action: &str, changes: &[Change<'_>]) {
    let before = scrape(actions.process());
    actions.act(action).await;
    eventually(action, TIMEOUT * 2, async || {
        let now = scrape(actions.process());
        let missing = changes.iter().filter_map(|change| {
            let (series, sign, number) = (change.series, change.sign, change.number);
            let [before, now] = [&before, &now].map(|text| change.sum_in(text));
            let has_happened = change.has_happened(before, now);
            (!has_happened).then(|| format!("{series} {sign}{number}: {before} before, {now} now"))
        });
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) }
    })
    .await;
}

/// The metrics in the table of docs/operations.md.
fn documented() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("| action | series | change |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let series = rows.map(|row| row.split('|').nth(2).unwrap().trim().trim_matches('`'));
    series.map(|series| series.split('{').next().unwrap().to_owned()).collect()
}

fn each_action_of_the_table_changes_its_metrics_and_each_metric_of_the_docs_is_in_the_table() {
    let rows = rows();
    let changes = rows.iter().flat_map(|(_, changes)| changes);
    let proven = changes.filter_map(Change::proven_metric).filter(|name| !name.starts_with("process_"));
    assert_eq!(proven.map(str::to_owned).collect::<BTreeSet<_>>(), documented());
    with_own_cluster(async |cluster| {
        let mut actions = Actions::new(cluster).await;
        for (action, changes) in &rows {
            act(&mut actions, action, changes).await;
        }
        actions.end().await;
    });
}
