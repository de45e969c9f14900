//! Measures reknit beside its peers and a bare client, against one real API server. `hack/bench.sh` builds and runs it.

mod measure;
mod plan;
mod report;
mod rig;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    plan::Plan,
    report::{Report, chart},
};

/// A result whose first error ends the program.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results");

/// Measures reknit beside its peers and a bare client.
#[derive(Parser)]
#[command(name = "hack/bench.sh")]
struct Args {
    /// The folder of the programs to measure; hack/bench.sh gives it
    #[arg(long)]
    programs: PathBuf,
    /// Puts the result into benches/results/NAME.json and NAME.svg
    #[arg(long, value_name = "NAME")]
    write: Option<String>,
    #[command(flatten)]
    plan: Plan,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn interrupted() -> Result<()> {
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    Err("interrupted".into())
}

async fn run(args: Args) -> Result<()> {
    let mut measuring = unless_interrupted(args.plan.begin(&args.programs)).await?;
    let ended = unless_interrupted(measuring.all()).await;
    if ended.is_err() {
        println!("not all was measured; what was:");
    }
    print!("{}", measuring.report.table());
    ended?;
    args.write.map_or(Ok(()), |name| write(&measuring.report, &name))
}

/// Runs the work until it ends or a signal arrives. Dropping the work stops what it started.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        ended = work => ended,
        Err(interrupted) = interrupted() => Err(interrupted),
    }
}

fn write(report: &Report, name: &str) -> Result<()> {
    let folder = Path::new(RESULTS);
    fs::create_dir_all(folder)?;
    fs::write(folder.join(format!("{name}.json")), serde_json::to_string_pretty(report)? + "\n")?;
    fs::write(folder.join(format!("{name}.svg")), chart::svg(report))?;
    println!("written to benches/results/{name}.json and {name}.svg");
    Ok(())
}
