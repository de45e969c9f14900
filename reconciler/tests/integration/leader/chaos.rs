//! Leader election under random faults.

use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use reknit_reconciler::leader::Leadership;
use reknit_testing::ControlPlane;
use tokio::time::sleep;
use tower::BoxError;

use super::process::{LEASE, Process, client, config, key, tampered};

const TIME: Duration = Duration::from_secs(12);

/// Three processes compete for one lease. A third of their requests is refused, delayed or unanswered, and processes are
/// killed, stopped and started at random. A killed process counts as the leader until its deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_never_lead_at_once_under_random_faults() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("chaos").await.unwrap();
    let start = || Process::start(tampered(client(plane), unreliable), &namespace, &config());
    let mut running = vec![start(), start(), start()];
    let mut all: Vec<Leadership> = running.iter().map(|process| process.leadership.clone()).collect();
    let (mut samples, mut led, mut ended) = (0, 0, 0);
    let (began, mut quiet) = (Instant::now(), Instant::now());
    while began.elapsed() < TIME {
        let leaders: Vec<_> = all.iter().filter(|leadership| leadership.leads(&key())).collect();
        // The processes are asked one after the other, so the first one is asked again.
        assert!(
            leaders.len() < 2 || !leaders[0].leads(&key()),
            "{} lead after {:?}",
            leaders.len(),
            began.elapsed()
        );
        samples += 1;
        led += leaders.len();
        if !leaders.is_empty() && quiet.elapsed() > LEASE {
            (quiet, ended) = (Instant::now(), ended + 1);
            let leader = running.iter().position(Process::leads);
            let process = running.swap_remove(leader.unwrap_or_default());
            if rand::random() {
                tokio::spawn(process.stop());
            }
            running.push(start());
            all.push(running[running.len() - 1].leadership.clone());
        }
        sleep(Duration::from_millis(2)).await;
    }
    println!("{samples} samples in {TIME:?}, one leader in {led}; {ended} processes killed or stopped");
    assert!(led > 0 && ended > 0);
}

async fn unreliable(client: Client, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let by = Duration::from_millis(rand::random_range(0..4_000));
    match rand::random_range(0..15) {
        0 => Ok(refused(StatusCode::CONFLICT)),
        1 => Ok(refused(StatusCode::SERVICE_UNAVAILABLE)),
        2 => {
            sleep(by).await;
            Ok(client.send(request).await?)
        }
        3 => {
            let answer = client.send(request).await?;
            sleep(by).await;
            Ok(answer)
        }
        4 => {
            client.send(request).await?;
            std::future::pending().await
        }
        _ => Ok(client.send(request).await?),
    }
}

fn refused(status: StatusCode) -> Response<Body> {
    let body = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "chaos", "code": status.as_u16()});
    let mut response = Response::new(Body::from(body.to_string().into_bytes()));
    *response.status_mut() = status;
    response
}
