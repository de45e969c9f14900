//! Waits until a process, or the whole machine, has next to nothing to do.

use std::{fs, time::Duration};

use tokio::time::{sleep, timeout};

use crate::Result;

/// Of half a second, what all processors of a quiet machine together may work.
const HALF_A_SECOND: Duration = Duration::from_millis(500);
const WORK: Duration = Duration::from_millis(100);
/// Another program's work is not waited for without end.
const PATIENCE: Duration = Duration::from_secs(15);

/// Waits until `worked`, which tells what has been done so far, grows by less than `work` in such a span.
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

/// Waits until this machine is quiet. An API server that is ready goes on with its start, and one that has sent a list
/// collects its garbage: who starts then would be measured with that as well.
pub(crate) async fn quiet() -> Result<()> {
    timeout(PATIENCE, rest(machine, HALF_A_SECOND, WORK)).await.unwrap_or_else(|_| {
        eprintln!("the machine does something else as well");
        Ok(())
    })
}

/// What all processors have done so far: for programs, for the kernel, and for interrupts.
fn machine() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().ok_or("/proc/stat is empty")?;
    // cpu user nice system idle iowait irq softirq
    Ok(ticks(line.split_whitespace().skip(1), &[0, 1, 2, 5, 6]))
}

/// The sum of the fields of these numbers, as time.
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
    async fn it_rests_once_it_does_little_and_not_once_it_has_done_little() {
        let (span, work) = (Duration::from_millis(1), Duration::from_millis(100));
        // In all; the last but one step is too much still.
        let worked = RefCell::new([0, 150, 300, 400, 450, 900].into_iter());
        rest(|| Ok(Duration::from_millis(worked.borrow_mut().next().unwrap())), span, work).await.unwrap();
        assert_eq!(worked.into_inner().collect::<Vec<_>>(), [900]);
    }

    #[tokio::test]
    async fn what_never_rests_is_waited_for() {
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
