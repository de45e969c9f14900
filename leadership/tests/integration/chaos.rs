//! Leader election under random faults.

use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use reknit_leadership::Leadership;
use reknit_testing::ControlPlane;
use tokio::time::sleep;
use tower::BoxError;

use super::process::{LEASE_DURATION, Process, client_with_interceptor, config, elector_client, key};

const TEST_DURATION: Duration = Duration::from_secs(12);

/// Three processes compete for one lease. A third of their requests is refused, delayed or unanswered, and leaders are
/// killed or stopped at random and replaced. A killed process counts as the leader until its deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_never_lead_at_once_under_random_faults() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("chaos").await.unwrap();
    let start =
        || Process::start(client_with_interceptor(elector_client(plane), unreliable), &namespace, &config());
    let mut running = vec![start(), start(), start()];
    let mut leaderships: Vec<Leadership> = running.iter().map(|process| process.leadership.clone()).collect();
    let (mut samples, mut samples_with_leader, mut ended_processes) = (0, 0, 0);
    let (test_start, mut last_end) = (Instant::now(), Instant::now());
    while test_start.elapsed() < TEST_DURATION {
        let leaders: Vec<_> = leaderships.iter().filter(|leadership| leadership.leads(&key())).collect();
        // The processes are read one after the other. The first leader may have lost leadership before the second
        // gained it, so the first is read again.
        assert!(
            leaders.len() < 2 || !leaders[0].leads(&key()),
            "{} lead after {:?}",
            leaders.len(),
            test_start.elapsed()
        );
        samples += 1;
        samples_with_leader += leaders.len();
        if !leaders.is_empty() && last_end.elapsed() > LEASE_DURATION {
            (last_end, ended_processes) = (Instant::now(), ended_processes + 1);
            let leader = running.iter().position(Process::leads);
            let process = running.swap_remove(leader.unwrap_or_default());
            if rand::random() {
                tokio::spawn(process.stop());
            }
            running.push(start());
            leaderships.push(running[running.len() - 1].leadership.clone());
        }
        sleep(Duration::from_millis(2)).await;
    }
    println!(
        "{samples} samples in {TEST_DURATION:?}, one leader in {samples_with_leader}; {ended_processes} processes killed or stopped"
    );
    assert!(samples_with_leader > 0 && ended_processes > 0);
}

/// Sends the request, or refuses it, delays it or its response, or never returns the response.
async fn unreliable(client: Client, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let delay = Duration::from_millis(rand::random_range(0..4_000));
    match rand::random_range(0..15) {
        0 => Ok(error_response(StatusCode::CONFLICT)),
        1 => Ok(error_response(StatusCode::SERVICE_UNAVAILABLE)),
        2 => {
            sleep(delay).await;
            Ok(client.send(request).await?)
        }
        3 => {
            let response = client.send(request).await?;
            sleep(delay).await;
            Ok(response)
        }
        4 => {
            client.send(request).await?;
            std::future::pending().await
        }
        _ => Ok(client.send(request).await?),
    }
}

fn error_response(status: StatusCode) -> Response<Body> {
    let body = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "chaos", "code": status.as_u16()});
    let mut response = Response::new(Body::from(body.to_string().into_bytes()));
    *response.status_mut() = status;
    response
}
