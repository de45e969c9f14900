//! The alerts on metrics that never change after the first scrape.

use std::collections::BTreeSet;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// Programs, each in a namespace of its own, with the metrics of their pods and the alerts that these raise.
const PROGRAMS: [(&str, &[&str], &[&str]); 9] = [
    (
        "sound",
        &["reknit_status_fields_dropped_keys{controller=\"c\"} 0
          reknit_child_fields_dropped_total{controller=\"c\",group=\"apps\",resource=\"deployments\"} 0
          reknit_webhook_certificate_unusable 0
          reknit_oldest_failing_seconds{controller=\"c\"} 0
          reknit_leader_election_buckets_unowned{controller=\"c\"} 0"],
        &[],
    ),
    (
        "dropped-since-the-start",
        &["reknit_status_fields_dropped_total{controller=\"c\"} 3
          reknit_status_fields_dropped_keys{controller=\"c\"} 3"],
        &["ReknitStatusFieldsDropped"],
    ),
    (
        "stored-by-now",
        &["reknit_status_fields_dropped_total{controller=\"c\"} 3
          reknit_status_fields_dropped_keys{controller=\"c\"} 0"],
        &[],
    ),
    (
        "dropped-of-children",
        &["reknit_child_fields_dropped_total{controller=\"c\",group=\"apps\",resource=\"deployments\"} 3"],
        &["ReknitChildFieldsDropped"],
    ),
    (
        "started-beside-a-bad-certificate",
        &["certwatcher_read_certificate_errors_total 1
          reknit_webhook_certificate_unusable 1"],
        &["ReknitCertificateIsUnusable"],
    ),
    (
        "one-object-fails",
        &["reknit_failing_keys{controller=\"c\"} 1
          reknit_oldest_failing_seconds{controller=\"c\"} 1000"],
        &["ReknitKeysFail"],
    ),
    (
        "objects-fail-in-turn",
        &["reknit_failing_keys{controller=\"c\"} 5
          reknit_oldest_failing_seconds{controller=\"c\"} 60"],
        &[],
    ),
    (
        "one-replica-is-cut-off",
        &[
            "reknit_leader_election_buckets_unowned{controller=\"c\"} 0",
            "reknit_leader_election_buckets_unowned{controller=\"c\"} 10",
        ],
        &[],
    ),
    (
        "no-leader",
        &[
            "reknit_leader_election_buckets_unowned{controller=\"c\"} 10",
            "reknit_leader_election_buckets_unowned{controller=\"c\"} 10",
        ],
        &["ReknitBucketHasNoLeader"],
    ),
];

/// Answers each request with these metrics, and returns the address.
async fn serve(metrics: &str) -> TestResult<String> {
    let lines: String = metrics.lines().map(|line| format!("{}\n", line.trim())).collect();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{lines}",
        lines.len()
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // A scrape that ends early is repeated by Prometheus.
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    Ok(address)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: hack/prometheus.sh"]
async fn a_lasting_fault_raises_its_alert_at_the_first_scrape_and_one_replica_no_alert_about_all()
-> TestResult {
    let mut targets = Vec::new();
    for (namespace, pods, _) in PROGRAMS {
        for (number, metrics) in pods.iter().enumerate() {
            let labels = json!({"job": SYSTEM_NAMESPACE, "namespace": namespace, "pod": number.to_string()});
            targets.push(json!({"targets": [serve(metrics).await?], "labels": labels}));
        }
    }
    let number = targets.len();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prometheus-alerts");
    let _ = fs::remove_dir_all(&folder); // of an earlier run
    fs::create_dir_all(&folder)?;
    let prometheus =
        Prometheus::start(&folder, &[json!({"job_name": "pods", "static_configs": targets})]).await?;
    prometheus.wait_for_data(&format!("count(up == 1) == {number}")).await;

    let rules: Value =
        serde_saphyr::from_str(&fs::read_to_string(root().join("config/monitoring/rules.yaml"))?)?;
    let mut raised = BTreeSet::new();
    for rule in rules["spec"]["groups"][0]["rules"].as_array().into_iter().flatten() {
        let (alert, expression) = (rule["alert"].as_str(), rule["expr"].as_str());
        let (alert, expression) = alert.zip(expression).ok_or("an alert has no expression")?;
        let data = prometheus.get(&format!("/api/v1/query?query={}", url_encode(expression))).await?;
        let samples = data["result"].as_array().into_iter().flatten();
        let namespaces = samples.filter_map(|sample| sample["metric"]["namespace"].as_str());
        raised.extend(namespaces.map(|namespace| (namespace.to_owned(), alert.to_owned())));
    }
    let expected = PROGRAMS.iter().flat_map(|(namespace, _, alerts)| {
        alerts.iter().map(|alert| ((*namespace).to_owned(), (*alert).to_owned()))
    });
    assert_eq!(raised, expected.collect());
    drop(prometheus);
    fs::remove_dir_all(&folder)?;
    Ok(())
}
