//! Tests of what a process shows of itself on request: profiles, running passes, the console and recorded passes.
use std::{fs, net::TcpListener, path::Path, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use prost::Message;
use reknit_testing::eventually;
use serde_json::{Value, json};

use crate::{
    child::{TestCommand, parse_line},
    cluster::{TIMEOUT, TestCluster, with_cluster},
    life_cycle::{self, wait_for_status},
    observability::{scrape_sum, wait_for_all_reconciles},
    server, trials,
};

trials![
    profiles_are_served_while_the_config_map_enables_them,
    the_console_is_on_localhost_at_the_port_of_its_flag_and_refuses_other_names,
    the_console_is_on_localhost_while_the_config_map_enables_it,
    log_event_and_dump_say_where_a_pass_waits_for_a_silent_server,
    a_paused_object_is_named_in_log_and_dump_until_it_is_resumed,
    failed_passes_are_recorded_while_the_config_map_names_a_folder,
];

impl TestCluster {
    /// The notes of the events with this reason.
    async fn notes(&self, reason: &str) -> Vec<String> {
        let events = self.events().list(&ListParams::default()).await.unwrap().items.into_iter();
        events
            .filter(|event| event.reason.as_deref() == Some(reason))
            .filter_map(|event| event.note)
            .collect()
    }
}

/// The parts of pprof's format that the test reads.
#[derive(prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "5")]
    functions: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "10")]
    nanoseconds: i64,
}

#[derive(prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

#[derive(prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

fn profiles_are_served_while_the_config_map_enables_them() {
    with_cluster(async |cluster| {
        let child = cluster.command("burns").arg("--disable-ha").spawn();
        wait_for_status(&child, "/readiness", 200);
        let address = child.wait_for_address("profiling");
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        let (status, why) = life_cycle::get(&address, "/debug/pprof/profile?seconds=1");
        assert_eq!(status, 404);
        assert!(why.starts_with("profiling is not enabled"), "{why}");
        cluster.configure_observability(json!({"runtime-profiling": "enabled"})).await;
        child.wait_for_line("profiling is enabled");
        let (status, body) = life_cycle::get_bytes(&address, "/debug/pprof/profile?seconds=2");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        // KEEP_PROFILE is a path at which the profile is kept for go tool pprof.
        if let Some(path) = std::env::var_os("KEEP_PROFILE") {
            std::fs::write(path, &body).unwrap();
        }
        let profile = Profile::decode(&*body).unwrap();
        let samples: i64 = profile.samples.iter().map(|sample| sample.values[0]).sum();
        let name = |function: &Function| &profile.strings[function.name as usize];
        let burn_cpu = profile.functions.iter().filter(|function| name(function).contains("burn_cpu"));
        let burn_cpu_ids: Vec<_> = burn_cpu.map(|function| function.id).collect();
        let burning = profile
            .samples
            .iter()
            .filter(|sample| sample.locations.iter().any(|location| burn_cpu_ids.contains(location)));
        let burning: i64 = burning.map(|sample| sample.values[0]).sum();
        println!("{samples} samples in two seconds, {burning} of them in burn_cpu");
        assert_eq!(profile.nanoseconds, 2_000_000_000);
        assert!(burning > 5 && burning * 2 > samples, "{burning} of {samples}: {:#?}", profile.strings);
        assert_eq!(life_cycle::get(&address, "/debug/pprof/heap").0, 501);
        cluster.configure_observability(json!({"runtime-profiling": "disabled"})).await;
        child.wait_for_line("profiling is disabled");
        assert_eq!(life_cycle::get(&address, "/debug/pprof/profile?seconds=1").0, 404);
    });
}

fn the_console_is_on_localhost_at_the_port_of_its_flag_and_refuses_other_names() {
    with_cluster(async |cluster| {
        let command = cluster.command_with_three_maps().await.arg("--console-bind-address=:0");
        let child = command.spawn();
        wait_for_all_reconciles(&child);
        let address = child.wait_for_address("the console");
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        let (status, why) = life_cycle::get(&address, "/debug/reknit/v1/passes");
        assert_eq!((status, why.contains("localhost")), (403, true), "{why}");
        eventually("all passes to be finished", TIMEOUT, async || {
            let passes = life_cycle::get_as("localhost", &address, "/debug/reknit/v1/passes");
            let passes: Value = serde_json::from_slice(&passes.1).unwrap();
            let finished = passes["finished"].as_array().unwrap();
            let is_of =
                |pass: &Value, name: &str| pass["key"].as_str().is_some_and(|key| key.ends_with(name));
            let has = |name: &&str| finished.iter().any(|pass| is_of(pass, name));
            if ["/a", "/b", "/c"].iter().all(has) { Ok(()) } else { Err(format!("{passes:#}")) }
        })
        .await;
    });
}

/// Another process of the machine may have the port. Then the log says so, and only the switch is tested.
fn the_console_is_on_localhost_while_the_config_map_enables_it() {
    with_cluster(async |cluster| {
        let child = cluster.command("maps").arg("--disable-ha").spawn();
        wait_for_status(&child, "/readiness", 200);
        let address = "127.0.0.1:8009";
        assert!(!child.lines().iter().any(|line| line.contains(address)));
        cluster.configure_observability(json!({"console": "enabled"})).await;
        let line = child.wait_for_line(address);
        if line.contains("listening for the console") {
            let (status, page) = life_cycle::get_as("localhost", address, "/debug/reknit/v1/process");
            assert_eq!(status, 200);
            assert!(String::from_utf8_lossy(&page).contains("\"component\":\"faulty\""));
            cluster.configure_observability(json!({"console": "disabled"})).await;
            child.wait_for_line("the console is disabled");
        } else {
            assert!(line.contains(&format!("cannot listen on {address} for the console")), "{line}");
        }
    });
}

fn log_event_and_dump_say_where_a_pass_waits_for_a_silent_server() {
    with_cluster(async |cluster| {
        let server = TcpListener::bind("127.0.0.1:0").unwrap(); // accepts, and never answers
        let address = server.local_addr().unwrap().to_string();
        cluster.apply_map("asking", json!({"ask": address})).await;
        cluster.apply_map("blocking", json!({"block": "30000"})).await;
        let child = cluster.command("slow maps").arg("--disable-ha").spawn();
        let line = child.wait_for_line("the pass is slow");
        println!("{line}");
        assert!(line.contains("\"waits\":\"in ") && line.contains("scenarios.rs:"), "{line}");
        let again = format!("{:?}", Duration::from_secs(3));
        child.wait_for_line(&format!("\"age\":\"{again}\""));
        assert!(scrape_sum(&child, "reknit_slow_reconciles") >= 1.0);
        let note = eventually("the event of the slow pass", TIMEOUT, async || {
            cluster.notes("SlowReconcile").await.into_iter().next().ok_or("none")
        })
        .await;
        println!("{note}");
        assert!(
            note.starts_with("the pass has been running for ") && note.contains("scenarios.rs:"),
            "{note}"
        );

        let address = child.wait_for_address("profiling");
        assert_eq!(life_cycle::get(&address, "/debug/passes").0, 404);
        cluster.configure_observability(json!({"runtime-profiling": "enabled"})).await;
        child.wait_for_line("profiling is enabled");
        assert!(life_cycle::get(&address, "/debug/").1.contains("/debug/passes"));
        let (status, dump) = life_cycle::get(&address, "/debug/passes");
        println!("{dump}");
        assert_eq!(status, 200);
        let asking = format!("maps {}/asking, pass ", cluster.namespace);
        assert!(dump.contains("running passes: 2\n") && dump.contains(&asking), "{dump}");
        assert!(dump.contains("TcpStream") && dump.contains("scenarios.rs:"), "{dump}");
        assert!(dump.contains("  its code has not returned for a second"), "{dump}");
        assert_eq!(dump.matches("\n  causes: the object added (").count(), 2, "{dump}");
    });
}

fn a_paused_object_is_named_in_log_and_dump_until_it_is_resumed() {
    with_cluster(async |cluster| {
        let paused = format!("{}/paused", cluster.namespace);
        cluster.apply_map("paused", json!({})).await;
        let annotate = async |value: Value| {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"reknit.dev/paused": value}}}));
            cluster.config_maps().patch("paused", &PatchParams::default(), &patch).await.unwrap();
        };
        annotate(json!("")).await;
        cluster.configure_observability(json!({"runtime-profiling": "enabled"})).await;
        let child = cluster.command("maps").arg("--disable-ha").spawn();
        let line = parse_line(&child.wait_for_line("the object is paused: it is not reconciled until"));
        assert_eq!(
            (&line["knative.dev/key"], &line["annotation"]),
            (&json!(paused), &json!("reknit.dev/paused"))
        );
        child.wait_for_line("profiling is enabled");
        let address = child.wait_for_address("profiling");
        let (_, dump) = life_cycle::get(&address, "/debug/passes");
        assert!(dump.ends_with(&format!("\npaused keys:\n  maps {paused}\n")), "{dump}");
        assert!(!child.lines().iter().any(|line| line.contains("reconcile of paused begins")));

        annotate(Value::Null).await;
        child.wait_for_line("the object is no longer paused");
        child.wait_for_line("reconcile of paused ends");
        let (_, dump) = life_cycle::get(&address, "/debug/passes");
        assert!(dump.ends_with("\npaused keys:\n"), "{dump}");
    });
}

fn failed_passes_are_recorded_while_the_config_map_names_a_folder() {
    with_cluster(async |cluster| {
        let (_closed, address) = server::closed_port();
        let asking = json!({"secret": "credentials", "ask": address.to_string()});
        let secrets = Api::<Secret>::namespaced(cluster.client.clone(), &cluster.namespace);
        let secret: Secret = serde_json::from_value(
            json!({"metadata": {"name": "credentials"}, "stringData": {"password": "correct horse"}}),
        )
        .unwrap();
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let recorded = |name: &str| {
            let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
            let mut files = files.filter(|file| file.to_str().unwrap().ends_with(&format!("_{name}.json")));
            files.next().map(|file| fs::read_to_string(file).unwrap())
        };
        let child = cluster.command("maps").arg("--disable-ha").spawn();
        let fails = async |name: &str| {
            cluster.apply_map(name, asking.clone()).await;
            let key = format!("\"{}/{name}\"", cluster.namespace);
            eventually("a second pass to fail", TIMEOUT, async || {
                let lines = child.lines();
                let is_second =
                    |line: &&String| line.contains("the pass failed") && line.contains("retry 1 after");
                lines.iter().find(|line| line.contains(&key) && is_second(line)).map(drop).ok_or(lines.len())
            })
            .await;
        };
        fails("before").await;
        cluster.configure_observability(json!({"record-failures": folder.path()})).await;
        child.wait_for_line("failed passes are recorded");
        fails("meanwhile").await;
        let pass = eventually("the pass to be recorded", TIMEOUT, async || recorded("meanwhile")).await;
        assert!(pass.contains("credentials"), "{pass}");
        for value in ["correct horse", "Y29ycmVjdCBob3JzZQ"] {
            assert!(!pass.contains(value), "{pass}");
        }
        let print = |path: &Path| TestCommand::with_scenario("maps").arg("--print-recorded").arg(path).run();
        let (status, names) = print(folder.path());
        let name = names.iter().find(|name| name.ends_with("_meanwhile.json"));
        let name = name.unwrap_or_else(|| panic!("{names:?}"));
        let file = folder.path().join(name);
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!((status, print(&file)), (0, (0, text.lines().map(Into::into).collect())));
        let (status, lines) = print(Path::new("/etc/hostname"));
        assert_eq!((status, lines.len()), (1, 1), "{lines:?}");
        cluster.configure_observability(json!({})).await;
        child.wait_for_line("failed passes are no longer recorded");
        fails("after").await;
        assert!(recorded("after").is_none());
    });
}
