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

/// The result of a step. Its error ends the program.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results");

/// Measures reknit beside its peers and a bare client.
#[derive(Parser)]
#[command(name = "hack/bench.sh")]
struct Args {
    /// The folder of the programs to measure; set by hack/bench.sh
    #[arg(long)]
    programs: PathBuf,
    /// Writes the result to benches/results/NAME.json and NAME.svg
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

/// Returns an error once SIGINT or SIGTERM arrives.
async fn interruption() -> Result<()> {
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    Err("interrupted".into())
}

async fn run(args: Args) -> Result<()> {
    let mut benchmark = unless_interrupted(args.plan.start(&args.programs)).await?;
    let result = unless_interrupted(benchmark.run()).await;
    if result.is_err() {
        println!("the measurement is incomplete; the results so far:");
    }
    print!("{}", benchmark.report.table());
    result?;
    args.write.map_or(Ok(()), |name| write(&benchmark.report, &name))
}

/// Runs the future until it completes or a signal arrives. A signal drops the future, which stops the processes that it
/// started.
async fn unless_interrupted<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        result = future => result,
        Err(interrupted) = interruption() => Err(interrupted),
    }
}

fn write(report: &Report, name: &str) -> Result<()> {
    let folder = Path::new(RESULTS);
    fs::create_dir_all(folder)?;
    fs::write(folder.join(format!("{name}.json")), serde_json::to_string_pretty(report)? + "\n")?;
    fs::write(folder.join(format!("{name}.svg")), chart::svg(report))?;
    println!("wrote benches/results/{name}.json and {name}.svg");
    Ok(())
}
