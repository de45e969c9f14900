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
    /// Measures everything: two to four hours. Of the options below only --only has an effect then
    #[arg(long)]
    full: bool,
    /// The number of AddressableServices and of Services; in ascending order
    #[arg(long, value_delimiter = ',', default_value = "5000")]
    objects: Vec<usize>,
    /// The number of concurrent reconciles or writes
    #[arg(long, value_delimiter = ',', default_value = "10")]
    workers: Vec<usize>,
    /// The number of runs of each candidate, in turns
    #[arg(long, default_value = "3")]
    runs: usize,
    /// The duration of the latency measurement, with 50 new Services a second
    #[arg(long, default_value = "10", value_name = "SECONDS")]
    changes: usize,
    /// Also measures memory after lists anew and while everything changes
    #[arg(long)]
    memory: bool,
    /// Measures these only, by name
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = PossibleValuesParser::new(candidate::names()))]
    only: Vec<String>,
}

impl Plan {
    /// Starts with an empty API server.
    pub(crate) async fn begin(mut self, programs: &Path) -> Result<Measuring> {
        if self.full {
            self.objects = vec![5_000, 50_000];
            self.workers = vec![2, 10];
            (self.runs, self.changes, self.memory) = (5, 20, true);
        }
        let mut candidates = Candidate::all(programs);
        candidates
            .retain(|candidate| self.only.is_empty() || self.only.iter().any(|name| name == candidate.name));
        eprintln!("starting an API server");
        let cluster = Cluster::start().await?;
        let report = Report::of(Machine::this(&cluster).await);
        Ok(Measuring { plan: self, candidates, cluster, report })
    }
}

pub(crate) struct Measuring {
    plan: Plan,
    candidates: Vec<Candidate>,
    cluster: Cluster,
    /// The results so far.
    pub(crate) report: Report,
}

impl Measuring {
    pub(crate) async fn all(&mut self) -> Result<()> {
        for objects in self.plan.objects.clone() {
            eprintln!("creating {objects} objects of each Kind");
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
        // Measured last, because it adds objects that would be part of the other figures.
        self.latency().await?;
        eprintln!("looking on while nothing happens");
        let idle = idle::measure(&self.cluster, compared(&self.candidates), self.most_workers()).await?;
        self.report.idle = idle.into_iter().map(|(name, spent)| (name.to_owned(), spent)).collect();
        Ok(())
    }

    async fn throughput(&mut self, objects: usize, workers: usize) -> Result<()> {
        let candidates = compared(&self.candidates).map(|candidate| Runs::none(candidate.name)).collect();
        self.report.settings.push(Setting { objects, workers, candidates });
        let setting = self.report.settings.last_mut().ok_or("the setting is there")?;
        for run in 1..=self.plan.runs {
            let mut turn: Vec<_> = compared(&self.candidates).zip(&mut setting.candidates).collect();
            if run % 2 == 0 {
                turn.reverse(); // what changes with time, or with who was before, is no candidate's alone
            }
            for (candidate, runs) in turn {
                self.cluster.reset().await?;
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

    /// Measures listing, or returns `None` if there is no floor to compare with.
    async fn listing(&self) -> Result<Option<Spread>> {
        let Some(floor) =
            self.candidates.iter().find(|candidate| candidate.is_floor() && !candidate.also_watches())
        else {
            return Ok(None);
        };
        let mut seconds = Vec::new();
        for _ in 0..self.plan.runs {
            self.cluster.reset().await?;
            seconds.push(listing::measure(&self.cluster, floor).await?);
        }
        Ok(Spread::of(seconds))
    }

    async fn memory(&mut self) -> Result<()> {
        self.cluster.keep().await?;
        for candidate in self.candidates.iter().filter(|candidate| !candidate.is_floor()) {
            eprintln!("memory of {}", candidate.name);
            let phases = memory::measure(&self.cluster, candidate, self.most_workers()).await?;
            self.report.memory.insert(candidate.name.to_owned(), phases);
        }
        Ok(())
    }

    /// Measures latency with the highest number of objects.
    async fn latency(&mut self) -> Result<()> {
        let changes = self.plan.changes * latency::CREATES_PER_SECOND;
        let most = self.plan.objects.iter().max().copied().unwrap_or_default();
        latency::prepare(&self.cluster, changes).await?;
        for setting in self.report.settings.iter_mut().filter(|setting| setting.objects == most) {
            for run in 1..=self.plan.runs {
                // The floor follows a watch here anyway.
                let candidates = compared(&self.candidates).zip(&mut setting.candidates);
                for (candidate, runs) in candidates.filter(|(candidate, _)| !candidate.also_watches()) {
                    let measured =
                        latency::measure(&self.cluster, candidate, changes, setting.workers).await?;
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

    fn most_workers(&self) -> usize {
        self.plan.workers.iter().max().copied().unwrap_or(1)
    }
}

/// The candidates whose speed is compared. Tuned variants are as fast as the others, and only their memory is measured.
fn compared(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> {
    candidates.iter().filter(|candidate| !candidate.is_tuned())
}
