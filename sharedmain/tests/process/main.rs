//! Tests of whole processes. This executable runs itself as the process under test.
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod brake;
#[cfg(test)]
mod child;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod collector;
#[cfg(test)]
mod credentials;
#[cfg(test)]
mod debugging;
#[cfg(test)]
mod leadership;
#[cfg(test)]
mod life_cycle;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod observability;
#[cfg(test)]
mod open_files;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod server;
#[cfg(test)]
mod traps;

use std::{process::ExitCode, time::Instant};

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if scenarios::is_process_under_test() {
        return scenarios::run();
    }
    let trials = [
        bad_input::trials(),
        brake::trials(),
        credentials::trials(),
        debugging::trials(),
        leadership::trials(),
        life_cycle::trials(),
        cluster::trials(),
        metrics::trials(),
        observability::trials(),
        open_files::trials(),
        plan::trials(),
        traps::trials(),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials.into_iter().flatten().collect()).exit_code()
}

/// Defines `trials()`, which returns these functions as tests with their names. Ignored ones are measurements.
macro_rules! trials {
    ($($name:ident),* $(; ignored: $($ignored:ident),*)? $(,)?) => {
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            vec![
                $($crate::trial(stringify!($name), $name),)*
                $($($crate::trial(stringify!($ignored), $ignored).with_ignored_flag(true)),*)?
            ]
        }
    };
}
pub(crate) use trials;

fn trial(name: &'static str, run: fn()) -> Trial {
    Trial::test(name, move || {
        let start = Instant::now();
        run();
        // hack/test.sh lists the slowest tests by such lines, which have the format of libtest.
        println!("test {name} ... ran <{:.3}s>", start.elapsed().as_secs_f64());
        Ok::<_, Failed>(())
    })
}

/// A number from the environment.
fn number_of(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}
