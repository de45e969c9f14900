//! Processor time, and waiting until a process or the whole machine is almost idle.

use std::{fs, time::Duration};

use tokio::time::{sleep, timeout};

use crate::Result;

/// A machine is idle if all its processors together use less than `IDLE_CPU_TIME` in a sample of this length.
const SAMPLE: Duration = Duration::from_millis(500);
const IDLE_CPU_TIME: Duration = Duration::from_millis(100);
/// The limit of the wait for an idle machine.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(15);

/// Waits until `cpu_time`, the total processor time so far, grows by less than `limit` in one sample.
pub(crate) async fn wait_until_idle(
    cpu_time: impl Fn() -> Result<Duration>,
    sample: Duration,
    limit: Duration,
) -> Result<()> {
    let mut before = cpu_time()?;
    loop {
        sleep(sample).await;
        let now = cpu_time()?;
        if now.saturating_sub(before) < limit {
            return Ok(());
        }
        before = now;
    }
}

/// Waits until this machine is idle. Otherwise the API server's own work would be measured: it is busy for a while
/// after it reports that it is ready, and collects garbage after a list. After 15 seconds prints that the machine is not
/// idle, and returns.
pub(crate) async fn wait_for_idle_machine() -> Result<()> {
    let idle = wait_until_idle(machine_cpu_time, SAMPLE, IDLE_CPU_TIME);
    timeout(MACHINE_TIMEOUT, idle).await.unwrap_or_else(|_| {
        eprintln!("the machine is not idle: other programs disturb the measurement");
        Ok(())
    })
}

/// The total time that all processors have spent in programs, the kernel and interrupts.
fn machine_cpu_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().ok_or("/proc/stat is empty")?;
    // cpu user nice system idle iowait irq softirq
    Ok(sum_of_ticks(line.split_whitespace().skip(1), &[0, 1, 2, 5, 6]))
}

/// Returns the sum of the fields with these indices, as time.
pub(crate) fn sum_of_ticks<'a>(fields: impl Iterator<Item = &'a str>, indices: &[usize]) -> Duration {
    let fields: Vec<_> = fields.collect();
    let ticks: u64 = indices.iter().filter_map(|index| fields.get(*index)?.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10) // USER_HZ is 100
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, iter::successors};

    use super::*;

    #[tokio::test]
    async fn the_wait_ends_when_a_sample_uses_less_than_the_limit() {
        let (sample, limit) = (Duration::from_millis(1), Duration::from_millis(100));
        // The step from 300 to 400 is not below the limit, the step from 400 to 450 is.
        let totals = RefCell::new([0, 150, 300, 400, 450, 900].into_iter());
        let cpu_time = || Ok(Duration::from_millis(totals.borrow_mut().next().unwrap()));
        wait_until_idle(cpu_time, sample, limit).await.unwrap();
        assert_eq!(totals.into_inner().collect::<Vec<_>>(), [900]);
    }

    #[tokio::test]
    async fn the_wait_goes_on_while_every_sample_reaches_the_limit() {
        let totals = RefCell::new(successors(Some(Duration::ZERO), |total| Some(*total + IDLE_CPU_TIME)));
        let cpu_time = || Ok(totals.borrow_mut().next().unwrap());
        let idle = wait_until_idle(cpu_time, Duration::from_millis(1), IDLE_CPU_TIME);
        timeout(Duration::from_millis(50), idle).await.unwrap_err();
    }

    #[test]
    fn only_the_selected_fields_are_summed_in_hundredths_of_a_second() {
        let fields = "10 20 30 4000 5000 60 70".split(' ');
        assert_eq!(sum_of_ticks(fields, &[0, 1, 2, 5, 6]), Duration::from_millis(1_900));
    }
}
