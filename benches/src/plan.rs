//! What is measured, how often and in which order.

use std::{collections::BTreeMap, path::Path};

use clap::Args;

use crate::{
    Result,
    candidate::Candidate,
    cluster::Cluster,
    idle, latency, listing,
    machine::Machine,
    memory,
    report::{Report, Runs, Setting},
    statistics::Spread,
    throughput,
};

#[derive(Args)]
pub(crate) struct Plan {
    /// Everything: two hours. The options below have no effect then
    #[arg(long)]
    full: bool,
    /// How many AddressableServices, and as many Services; fewer first
    #[arg(long, value_delimiter = ',', default_value = "5000")]
    objects: Vec<usize>,
    /// How many passes, or writes, at once
    #[arg(long, value_delimiter = ',', default_value = "10")]
    workers: Vec<usize>,
    /// How often each is measured, in turns
    #[arg(long, default_value = "3")]
    runs: usize,
    /// For how long 50 Services a second are created to measure latency
    #[arg(long, default_value = "10", value_name = "SECONDS")]
    changes: usize,
    /// Also measures memory after lists anew and while everything changes
    #[arg(long)]
    memory: bool,
    /// Measures these only, by name
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
}

impl Plan {
    pub(crate) async fn carry_out(mut self, programs: &Path) -> Result<Report> {
        if self.full {
            self.objects = vec![5_000, 50_000];
            self.workers = vec![2, 10];
            (self.runs, self.changes, self.memory) = (5, 30, true);
        }
        let mut candidates = Candidate::all(programs);
        candidates
            .retain(|candidate| self.only.is_empty() || self.only.iter().any(|name| name == candidate.name));
        eprintln!("starting an API server");
        let cluster = Cluster::start().await?;
        Measuring { plan: self, candidates, cluster }.all().await
    }
}

struct Measuring {
    plan: Plan,
    candidates: Vec<Candidate>,
    cluster: Cluster,
}

impl Measuring {
    async fn all(self) -> Result<Report> {
        let machine = Machine::this(&self.cluster).await;
        let (mut settings, mut listing) = (Vec::new(), BTreeMap::new());
        for &objects in &self.plan.objects {
            eprintln!("creating {objects} objects of each Kind");
            self.cluster.grow_to(objects).await?;
            listing.extend(self.listing().await?.map(|seconds| (objects, seconds)));
            for &workers in &self.plan.workers {
                settings.push(self.throughput(objects, workers).await?);
            }
        }
        let memory = self.memory().await?;
        // Comes last, since what it adds would be part of the other figures.
        self.latency(&mut settings).await?;
        eprintln!("looking on while nothing happens");
        let idle = idle::measure(&self.cluster, self.compared(), self.most_workers()).await?;
        let idle = idle.into_iter().map(|(name, spent)| (name.to_owned(), spent)).collect();
        Ok(Report { machine, settings, listing, memory, idle })
    }

    async fn throughput(&self, objects: usize, workers: usize) -> Result<Setting> {
        let none = |candidate: &Candidate| Runs::none(candidate.name);
        let mut candidates: Vec<Runs> = self.compared().map(none).collect();
        for run in 1..=self.plan.runs {
            for (candidate, runs) in self.compared().zip(&mut candidates) {
                self.cluster.reset().await?;
                let measured = throughput::measure(&self.cluster, candidate, objects, workers).await?;
                eprintln!(
                    "{objects} objects, {workers} workers, run {run}, {}: {:.0} objects/s, {:.0} µs each",
                    candidate.name, measured.objects_per_second, measured.cpu_per_object
                );
                runs.throughput.push(measured);
            }
        }
        Ok(Setting { objects, workers, candidates })
    }

    /// None where there is no floor to compare with.
    async fn listing(&self) -> Result<Option<Spread>> {
        let Some(floor) = self.candidates.iter().find(|candidate| candidate.is_floor()) else {
            return Ok(None);
        };
        let mut seconds = Vec::new();
        for _ in 0..self.plan.runs {
            self.cluster.reset().await?;
            seconds.push(listing::measure(&self.cluster, floor).await?);
        }
        Ok(Spread::of(seconds))
    }

    async fn memory(&self) -> Result<BTreeMap<String, memory::Phases>> {
        let mut found = BTreeMap::new();
        for candidate in self.candidates.iter().filter(|candidate| self.plan.memory && !candidate.is_floor())
        {
            eprintln!("memory of {}", candidate.name);
            let phases = memory::measure(&self.cluster, candidate, self.most_workers()).await?;
            found.insert(candidate.name.to_owned(), phases);
        }
        Ok(found)
    }

    /// With the most objects.
    async fn latency(&self, settings: &mut [Setting]) -> Result<()> {
        let changes = self.plan.changes * latency::A_SECOND;
        let most = self.plan.objects.iter().max().copied().unwrap_or_default();
        latency::prepare(&self.cluster, changes).await?;
        for setting in settings.iter_mut().filter(|setting| setting.objects == most) {
            for run in 1..=self.plan.runs {
                for (candidate, runs) in self.compared().zip(&mut setting.candidates) {
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

    /// Those that are told to hold less are as fast as without, and looked at for memory alone.
    fn compared(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(|candidate| !candidate.is_tuned())
    }

    fn most_workers(&self) -> usize {
        self.plan.workers.iter().max().copied().unwrap_or(1)
    }
}
