//! Tests of which requests are counted.

use kube::config::{ExecConfig, ExecInteractiveMode};

use super::*;

/// The numbers of requests by code.
fn counted(registry: &Registry) -> Vec<(String, f64)> {
    let families = registry.gather();
    let requests = families.iter().find(|family| family.name() == "rest_client_requests_total");
    let series = requests.into_iter().flat_map(|family| family.get_metric());
    let code = |metric: &prometheus::proto::Metric| {
        metric.get_label().iter().find(|label| label.name() == "code").unwrap().value().to_owned()
    };
    series.map(|metric| (code(metric), metric.get_counter().get_value())).collect()
}

#[tokio::test]
async fn a_request_that_is_given_up_counts_as_one_without_a_response() {
    let (listener, registry) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Registry::new());
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let transport = measured_transport(Config::new(address), &registry);
    let received = async {
        let mut stream = listener.accept().await.unwrap().0;
        read_head(&mut stream).await;
        stream
    };
    drop(transport.send(get())); // never begun
    tokio::select! {
        _ = transport.send(get()) => panic!("the server has answered"),
        _stream = received => {}
    }
    assert_eq!(counted(&registry), [("<error>".to_owned(), 1.0)]);
    let server = async { respond(&mut listener.accept().await.unwrap().0, OK).await };
    both(server, async { transport.send(get()).await.unwrap() }).await;
    assert_eq!(counted(&registry), [("200".to_owned(), 1.0), ("<error>".to_owned(), 1.0)]);
}

#[tokio::test]
async fn a_request_whose_credentials_cannot_be_renewed_counts_as_one_without_a_response() {
    let (runs, registry) = (tempfile::NamedTempFile::new().unwrap(), Registry::new());
    let (path, expired) = (runs.path().display(), "2020-01-01T00:00:00Z");
    let printed = format!("{{status: {{token: t, expirationTimestamp: {expired}}}}}");
    let script = format!("echo run >> {path}; test $(wc -l < {path}) -eq 1 && printf '{printed}'");
    let mut config = Config::new(Uri::from_static("https://127.0.0.1:1"));
    config.auth_info.exec = Some(ExecConfig {
        command: Some("sh".into()),
        args: Some(vec!["-c".into(), script]),
        interactive_mode: Some(ExecInteractiveMode::Never),
        ..ExecConfig::default()
    });
    let error = measured_transport(config, &registry).send(get()).await.err().unwrap();
    assert!(chain(&error).any(|error| error.to_string().contains("credential plugin failed")), "{error:?}");
    assert_eq!(counted(&registry), [("<error>".to_owned(), 1.0)]);
}
