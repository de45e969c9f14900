//! Tests of the limit of open files.
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    time::Duration,
};

use crate::{
    child::{Child, TestCommand, parse_line},
    credentials::{PLUGIN_USER, secure_kubeconfig, server_for},
    server::HttpServer,
    trials,
};

trials![
    the_soft_limit_is_raised_to_the_hard_one,
    an_exec_plugin_gets_the_former_soft_limit,
    a_process_with_a_low_hard_limit_warns_of_it_and_of_refused_connections_once,
];

fn command(server: &HttpServer) -> TestCommand {
    TestCommand::new().args(["--disable-ha", "--server", &server.url()])
}

/// Opens idle connections to the port of the probes.
fn connect(child: &Child, count: usize) -> Vec<TcpStream> {
    let address = child.wait_for_address("probes");
    (0..count).map(|_| TcpStream::connect(&address).unwrap()).collect()
}

/// Requests the metrics, and waits for the answer.
fn metrics_respond(child: &Child) {
    let mut stream = TcpStream::connect(child.wait_for_address("metrics")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn the_soft_limit_is_raised_to_the_hard_one() {
    let server = HttpServer::without_objects();
    let child = command(&server).open_files("-Sn 64").spawn();
    child.wait_for_line("greeter runs");
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let [soft, hard, _] = files.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{files}") };
    assert!(soft == hard && soft != "64", "{files}");
    let clients = connect(&child, 90);
    metrics_respond(&child);
    drop(clients);
    let lines = child.lines();
    let is_about_files = |line: &String| line.contains("open files") || line.contains("failed to accept");
    assert!(!lines.iter().any(is_about_files), "{lines:#?}");
}

fn an_exec_plugin_gets_the_former_soft_limit() {
    let server = server_for("from-plugin");
    let command = TestCommand::new().arg("--disable-ha");
    let script = "#!/bin/sh
        while [ \"$(ulimit -Sn)\" != 512 ]; do sleep 0.01; done
        echo '{apiVersion: client.authentication.k8s.io/v1, kind: ExecCredential, status: {token: from-plugin}}'\n";
    let plugin = command.file("plugin", script);
    fs::set_permissions(plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let path = command.file("config", &secure_kubeconfig(&server, PLUGIN_USER));
    let child = command.env("KUBECONFIG", path).open_files("-Sn 512").spawn();
    child.wait_for_line("greeter runs");
}

fn a_process_with_a_low_hard_limit_warns_of_it_and_of_refused_connections_once() {
    let server = HttpServer::without_objects();
    let child = command(&server).open_files("-n 80").spawn();
    let warning = parse_line(&child.wait_for_line("the limit of open files is low"));
    assert_eq!((&warning["severity"], &warning["limit"]), (&"WARNING".into(), &80.into()), "{warning}");
    child.wait_for_line("greeter runs");
    let clients = connect(&child, 90);
    child.wait_for_line("failed to accept a connection to probes");
    // The server answers once it has closed the first connections, whose clients have sent nothing for ten seconds.
    metrics_respond(&child);
    drop(clients);
    let lines = child.lines();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(count("failed to accept a connection to probes"), 1, "{lines:#?}");
    assert!(count("failed to accept a connection to metrics") <= 1, "{lines:#?}");
}
