//! The order and the number of the measurements.

use std::path::Path;

use clap::{Args, builder::PossibleValuesParser};

use crate::{
    Result,
    measure::{idle, latency, listing, memory, throughput},
    report::{Report, Runs, Setting, statistics::Spread},
    rig::{
        candidate::{self, Candidate},
        cluster::Cluster,
        machine::Machine,
    },
};

#[derive(Args)]
pub(crate) struct Plan {
    /// Measures everything, in two to four hours. Of the options below, only --only still has an effect
    #[arg(long)]
    full: bool,
    /// The numbers of objects of each Kind, in ascending order
    #[arg(long, value_delimiter = ',', default_value = "5000")]
    objects: Vec<usize>,
    /// The numbers of concurrent reconciles or writes
    #[arg(long, value_delimiter = ',', default_value = "10")]
    workers: Vec<usize>,
    /// The number of runs of each candidate; candidates take turns
    #[arg(long, default_value = "3")]
    runs: usize,
    /// The duration of the latency measurement, with 50 new Services a second
    #[arg(long = "changes", default_value = "10", value_name = "SECONDS")]
    latency_seconds: usize,
    /// Also measures memory after a relist and while every Service changes
    #[arg(long)]
    memory: bool,
    /// Measures only the candidates of these names
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = PossibleValuesParser::new(candidate::names()))]
    only: Vec<String>,
}

impl Plan {
    /// Starts an empty API server for the measurement of the selected candidates.
    pub(crate) async fn start(mut self, programs: &Path) -> Result<Benchmark> {
        if self.full {
            self.objects = vec![5_000, 50_000];
            self.workers = vec![2, 10];
            (self.runs, self.latency_seconds, self.memory) = (5, 20, true);
        }
        let mut candidates = Candidate::all(programs);
        candidates.retain(|candidate| match &self.only[..] {
            [] => !candidate.has_page(),
            only => only.iter().any(|name| name == candidate.name),
        });
        eprintln!("starting an API server");
        let cluster = Cluster::start().await?;
        let report = Report::new(Machine::current(&cluster).await);
        Ok(Benchmark { plan: self, candidates, cluster, report })
    }
}

/// The candidates and the API server of the measurements.
pub(crate) struct Benchmark {
    plan: Plan,
    candidates: Vec<Candidate>,
    cluster: Cluster,
    /// The results so far.
    pub(crate) report: Report,
}

impl Benchmark {
    /// Makes all measurements of the plan.
    pub(crate) async fn run(&mut self) -> Result<()> {
        for objects in self.plan.objects.clone() {
            eprintln!("creating objects until there are {objects} of each Kind");
            self.cluster.grow_to(objects).await?;
            if let Some(seconds) = self.listing().await? {
                self.report.listing.insert(objects, seconds);
            }
            for workers in self.plan.workers.clone() {
                self.throughput(objects, workers).await?;
            }
        }
        if self.plan.memory {
            self.memory().await?;
        }
        // Measured after throughput and memory, because it adds objects, which would change their figures.
        self.latency().await?;
        eprintln!("measuring idle processes");
        let idle = idle::measure(&self.cluster, compared(&self.candidates), self.max_workers()).await?;
        self.report.idle =
            idle.into_iter().map(|(name, milliseconds)| (name.to_owned(), milliseconds)).collect();
        Ok(())
    }

    async fn throughput(&mut self, objects: usize, workers: usize) -> Result<()> {
        let candidates = compared(&self.candidates).map(|candidate| Runs::new(candidate.name)).collect();
        self.report.settings.push(Setting { objects, workers, candidates });
        let setting = self.report.settings.last_mut().ok_or("there is no setting")?;
        for run in 1..=self.plan.runs {
            let mut order: Vec<_> = compared(&self.candidates).zip(&mut setting.candidates).collect();
            if run % 2 == 0 {
                order.reverse(); // so that drift over time and the previous run affect all candidates alike
            }
            for (candidate, runs) in order {
                self.cluster.restore_snapshot().await?;
                let measured = throughput::measure(&self.cluster, candidate, objects, workers).await?;
                eprintln!(
                    "{objects} objects, {workers} workers, run {run}, {}: {:.0} objects/s, {:.0} µs each",
                    candidate.name, measured.objects_per_second, measured.cpu_per_object
                );
                runs.throughput.push(measured);
            }
        }
        Ok(())
    }

    /// Measures the seconds that the floor takes to list both Kinds. Returns `None` if the floor is not measured.
    async fn listing(&self) -> Result<Option<Spread>> {
        let Some(floor) =
            self.candidates.iter().find(|candidate| candidate.is_floor() && !candidate.is_watching_floor())
        else {
            return Ok(None);
        };
        let mut seconds = Vec::new();
        for _ in 0..self.plan.runs {
            self.cluster.restore_snapshot().await?;
            seconds.push(listing::measure(&self.cluster, floor).await?);
        }
        Ok(Spread::of(seconds))
    }

    async fn memory(&mut self) -> Result<()> {
        self.cluster.save_snapshot().await?;
        for candidate in self.candidates.iter().filter(|candidate| !candidate.is_floor()) {
            eprintln!("memory of {}", candidate.name);
            let phases = memory::measure(&self.cluster, candidate, self.max_workers()).await?;
            self.report.memory.insert(candidate.name.to_owned(), phases);
        }
        Ok(())
    }

    /// Measures latency with the largest number of objects.
    async fn latency(&mut self) -> Result<()> {
        let services = self.plan.latency_seconds * latency::CREATES_PER_SECOND;
        let max_objects = self.plan.objects.iter().max().copied().unwrap_or_default();
        latency::prepare(&self.cluster, services).await?;
        for setting in self.report.settings.iter_mut().filter(|setting| setting.objects == max_objects) {
            for run in 1..=self.plan.runs {
                // The plain floor watches here too, so the watching floor is left out.
                let candidates = compared(&self.candidates).zip(&mut setting.candidates);
                for (candidate, runs) in candidates.filter(|(candidate, _)| !candidate.is_watching_floor()) {
                    let measured =
                        latency::measure(&self.cluster, candidate, services, setting.workers).await?;
                    eprintln!(
                        "{} workers, run {run}, {}: p50 {:.1} ms, p99 {:.1} ms",
                        setting.workers, candidate.name, measured.p50, measured.p99
                    );
                    runs.latency.push(measured);
                }
            }
        }
        Ok(())
    }

    fn max_workers(&self) -> usize {
        self.plan.workers.iter().max().copied().unwrap_or(1)
    }
}

/// Returns the candidates whose speed is compared. Of tuned variants, which are as fast as the others, only the memory
/// is measured.
fn compared(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> {
    candidates.iter().filter(|candidate| !candidate.is_tuned())
}
