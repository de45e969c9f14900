//! Measures reknit beside its peers and a bare client, against one real API server. `hack/bench.sh` builds and runs it.

mod candidate;
mod chart;
mod cluster;
mod idle;
mod latency;
mod listing;
mod machine;
mod memory;
mod plan;
mod process;
mod report;
mod statistics;
mod throughput;
mod watch;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::{plan::Plan, report::Report};

/// What went wrong; the first failure ends it all.
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
    let args = Args::parse();
    // What was started ends with it, which dropping the run sees to.
    let ended = tokio::select! {
        ended = run(args) => ended,
        interrupted = interrupted() => interrupted,
    };
    match ended {
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
    let (report, ended) = args.plan.carry_out(&args.programs).await?;
    if ended.is_err() {
        println!("not all was measured; what was:");
    }
    print!("{}", report.table());
    ended?;
    args.write.map_or(Ok(()), |name| write(&report, &name))
}

fn write(report: &Report, name: &str) -> Result<()> {
    let folder = Path::new(RESULTS);
    fs::create_dir_all(folder)?;
    fs::write(folder.join(format!("{name}.json")), serde_json::to_string_pretty(report)? + "\n")?;
    fs::write(folder.join(format!("{name}.svg")), chart::svg(report))?;
    println!("written to benches/results/{name}.json and {name}.svg");
    Ok(())
}
