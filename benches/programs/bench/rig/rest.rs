//! Waiting until a process, or the whole machine, is almost idle.

use std::{fs, time::Duration};

use tokio::time::{sleep, timeout};

use crate::Result;

/// The length of a sample. On a quiet machine all processors together work less than `WORK` in it.
const HALF_A_SECOND: Duration = Duration::from_millis(500);
const WORK: Duration = Duration::from_millis(100);
/// The limit of the wait for other programs.
const PATIENCE: Duration = Duration::from_secs(15);

/// Waits until `worked`, the total work so far, grows by less than `work` in one sample.
pub(crate) async fn rest(
    worked: impl Fn() -> Result<Duration>,
    span: Duration,
    work: Duration,
) -> Result<()> {
    let mut before = worked()?;
    loop {
        sleep(span).await;
        let now = worked()?;
        if now.saturating_sub(before) < work {
            return Ok(());
        }
        before = now;
    }
}

/// Waits until this machine is quiet. A ready API server continues its start, and one that has sent a list collects its
/// garbage. Both would be part of the measurement.
pub(crate) async fn quiet() -> Result<()> {
    timeout(PATIENCE, rest(machine, HALF_A_SECOND, WORK)).await.unwrap_or_else(|_| {
        eprintln!("the machine does something else as well");
        Ok(())
    })
}

/// The total time that all processors spent in programs, the kernel and interrupts.
fn machine() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().ok_or("/proc/stat is empty")?;
    // cpu user nice system idle iowait irq softirq
    Ok(ticks(line.split_whitespace().skip(1), &[0, 1, 2, 5, 6]))
}

/// The sum of these fields, as time.
pub(crate) fn ticks<'a>(fields: impl Iterator<Item = &'a str>, numbers: &[usize]) -> Duration {
    let fields: Vec<_> = fields.collect();
    let ticks: u64 = numbers.iter().filter_map(|number| fields.get(*number)?.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10) // USER_HZ is 100
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, iter::successors};

    use super::*;

    #[tokio::test]
    async fn a_process_rests_when_its_work_per_sample_is_small() {
        let (span, work) = (Duration::from_millis(1), Duration::from_millis(100));
        // Totals. The last step but one is still too large.
        let worked = RefCell::new([0, 150, 300, 400, 450, 900].into_iter());
        rest(|| Ok(Duration::from_millis(worked.borrow_mut().next().unwrap())), span, work).await.unwrap();
        assert_eq!(worked.into_inner().collect::<Vec<_>>(), [900]);
    }

    #[tokio::test]
    async fn a_process_that_never_rests_is_waited_for() {
        let steps = RefCell::new(successors(Some(Duration::ZERO), |all| Some(*all + WORK)));
        let resting = rest(|| Ok(steps.borrow_mut().next().unwrap()), Duration::from_millis(1), WORK);
        timeout(Duration::from_millis(50), resting).await.unwrap_err();
    }

    #[test]
    fn ticks_are_hundredths_of_a_second_and_only_those_asked_for() {
        let fields = "10 20 30 4000 5000 60 70".split(' ');
        assert_eq!(ticks(fields, &[0, 1, 2, 5, 6]), Duration::from_millis(1_900));
    }
}
