//! One kubeconfig file, read as kubectl reads it.
//!
//! In Go a field that is null, empty or missing has the same value. kube tells them apart: an empty `current-context`
//! would hide that of the next file, and a null map would be malformed. So such fields are dropped before kube sees
//! them.
use std::{
    collections::BTreeSet,
    path::{MAIN_SEPARATOR, Path},
};

use kube::config::{AuthInfo, Cluster, Kubeconfig};
use serde_json::{Map, Value};
use serde_saphyr::options::DuplicateKeyPolicy;

/// The fields in base64, which may be wrapped.
const DATA_FIELDS: [&str; 3] = ["certificate-authority-data", "client-certificate-data", "client-key-data"];

/// Parses a file whose relative paths are relative to this folder. An error does not quote the file, which may contain
/// credentials.
pub(super) fn parse(bytes: &[u8], folder: &Path) -> Result<Kubeconfig, String> {
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(&decode(bytes)?, options)
        .map_err(|e| format!("malformed YAML: {}", e.without_snippet()))?;
    documents.into_iter().filter(|document| !document.is_null()).try_fold(
        Kubeconfig::default(),
        |merged, mut document| {
            drop_empty_fields(&mut document);
            let mut config: Kubeconfig = serde_path_to_error::deserialize(document)
                .map_err(|e| format!("malformed: {} has another type", e.path()))?;
            refuse_duplicates(&config)?;
            complete(&mut config, folder);
            merged.merge(config).map_err(|e| e.to_string())
        },
    )
}

/// Decodes UTF-8, or UTF-16 with a byte order mark, as PowerShell writes it.
fn decode(bytes: &[u8]) -> Result<String, String> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<_> = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
        String::from_utf16(&units).map_err(|_| "malformed UTF-16".to_owned())
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] | rest => {
            String::from_utf8(rest.into()).map_err(|_| "malformed UTF-8".into())
        }
    }
}

fn drop_empty_fields(document: &mut Value) {
    let Some(document) = fields(Some(document)) else { return };
    for (list, field) in [("clusters", "cluster"), ("contexts", "context"), ("users", "user")] {
        for entry in document.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(entry) = fields(Some(entry)) else { continue };
            entry.entry("name").or_insert_with(|| "".into());
            let Some(named) = fields(entry.get_mut(field)) else { continue };
            if list == "contexts" {
                named.entry("cluster").or_insert_with(|| "".into());
            }
            for field in DATA_FIELDS {
                if let Some(Value::String(text)) = named.get_mut(field) {
                    text.retain(|c| !c.is_ascii_whitespace());
                }
            }
            fields(named.get_mut("exec"));
            if let Some(provider) = fields(named.get_mut("auth-provider")) {
                fields(provider.get_mut("config"));
            }
        }
    }
}

/// Drops the fields of an object that are null or empty, and returns the others.
fn fields(object: Option<&mut Value>) -> Option<&mut Map<String, Value>> {
    let object = object?.as_object_mut()?;
    object.retain(|_, value| !value.is_null() && value != "");
    Some(object)
}

/// Refuses two entries of one name, as kubectl does: nobody could tell which one is meant.
fn refuse_duplicates(config: &Kubeconfig) -> Result<(), String> {
    fn refuse<'a>(list: &str, mut names: impl Iterator<Item = &'a String>) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        match names.find(|name| !seen.insert(*name)) {
            Some(name) => Err(format!("two {list} have the name {name:?}")),
            None => Ok(()),
        }
    }
    refuse("clusters", config.clusters.iter().map(|entry| &entry.name))?;
    refuse("contexts", config.contexts.iter().map(|entry| &entry.name))?;
    refuse("users", config.auth_infos.iter().map(|entry| &entry.name))
}

fn complete(config: &mut Kubeconfig, folder: &Path) {
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        resolve(&mut cluster.certificate_authority, folder);
        add_scheme(cluster);
    }
    for AuthInfo { client_certificate, client_key, token_file, exec, .. } in
        config.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut())
    {
        [client_certificate, client_key, token_file].into_iter().for_each(|path| resolve(path, folder));
        // A command without a separator is searched in PATH.
        let command = exec.as_mut().map(|exec| &mut exec.command);
        command
            .filter(|command| command.iter().any(|command| command.contains(MAIN_SEPARATOR)))
            .into_iter()
            .for_each(|command| resolve(command, folder));
    }
}

fn resolve(path: &mut Option<String>, folder: &Path) {
    if let Some(path) = path {
        *path = folder.join(&*path).display().to_string(); // an absolute path stays as it is
    }
}

/// Completes a server such as `10.0.0.1:6443`, as client-go does.
fn add_scheme(cluster: &mut Cluster) {
    let has_tls = cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some()
        || cluster.insecure_skip_tls_verify == Some(true);
    if let Some(server) = cluster.server.as_mut().filter(|server| !server.contains("://")) {
        *server = format!("{}://{server}", if has_tls { "https" } else { "http" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<Kubeconfig, String> {
        parse(text.as_bytes(), Path::new("/home/me/.kube"))
    }

    #[test]
    fn null_and_empty_fields_count_as_missing() {
        let config = parse_text(
            "{apiVersion: v1, kind: Config, preferences: null, current-context: '', clusters: null, extensions: null,
              contexts: [{name: c, context: null}, {name: d, context: {user: u, namespace: ''}}, {context: {}}],
              users: [{name: u, user: {token: '', client-certificate: '', tokenFile: null, as-groups: null,
                auth-provider: {name: gcp, config: null}}},
                {name: e, user: {exec: {command: x, args: ['', null-ish], env: null, provideClusterInfo: null}}}]}",
        )
        .unwrap();
        assert_eq!(config.current_context, None);
        assert_eq!(config.contexts[1].context.as_ref().unwrap().namespace, None);
        let user = config.auth_infos[0].auth_info.as_ref().unwrap();
        assert!(user.token.is_none() && user.client_certificate.is_none() && user.token_file.is_none());
        let exec = config.auth_infos[1].auth_info.as_ref().unwrap().exec.as_ref().unwrap();
        assert_eq!(exec.args.as_deref(), Some(&["".to_owned(), "null-ish".into()][..]));
        for empty in ["", "# nothing\n", "---\n---\n", "null", "{}"] {
            assert!(parse_text(empty).unwrap().contexts.is_empty(), "{empty:?}");
        }
    }

    #[test]
    fn relative_paths_are_relative_to_the_file() {
        let config = parse_text(
            "{clusters: [{name: c, cluster: {certificate-authority: ca.pem, server: '10.0.0.1:6443'}},
                {name: d, cluster: {server: 'localhost:8080'}}],
              users: [{name: u, user: {client-certificate: ../a.pem, client-key: /etc/key.pem, exec: {command: aws}}},
                {name: v, user: {tokenFile: token, exec: {command: ./plugin}}}]}",
        )
        .unwrap();
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.certificate_authority.as_deref(), Some("/home/me/.kube/ca.pem"));
        assert_eq!(cluster.server.as_deref(), Some("https://10.0.0.1:6443"));
        assert_eq!(
            config.clusters[1].cluster.as_ref().unwrap().server.as_deref(),
            Some("http://localhost:8080")
        );
        let user = |n: usize| config.auth_infos[n].auth_info.clone().unwrap();
        assert_eq!(user(0).client_certificate.as_deref(), Some("/home/me/.kube/../a.pem"));
        assert_eq!(user(0).client_key.as_deref(), Some("/etc/key.pem"));
        assert_eq!(user(0).exec.unwrap().command.as_deref(), Some("aws"));
        assert_eq!(user(1).token_file.as_deref(), Some("/home/me/.kube/token"));
        assert_eq!(user(1).exec.unwrap().command.as_deref(), Some("/home/me/.kube/./plugin"));
    }

    #[test]
    fn byte_order_marks_repeated_keys_and_wrapped_data_are_accepted() {
        let text = "current-context: a\ncurrent-context: b\nusers:\n- name: u\n  user:\n    client-key-data: |\n      YQ\n      ==\n";
        let with_mark = [b"\xef\xbb\xbf", text.as_bytes()].concat();
        let utf16: Vec<_> =
            [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        for bytes in [with_mark, utf16] {
            let config = parse(&bytes, Path::new("")).unwrap();
            assert_eq!(config.current_context.as_deref(), Some("b"));
            let user = serde_json::to_value(&config.auth_infos[0].auth_info).unwrap();
            assert_eq!(user["client-key-data"], "YQ==");
        }
    }

    #[test]
    fn two_entries_of_one_name_are_refused() {
        let error = parse_text("{users: [{name: u, user: {token: hunter2}}, {name: u}]}").unwrap_err();
        assert_eq!(error, "two users have the name \"u\"");
    }

    #[test]
    fn json_with_tabs_aliases_and_fields_of_others_are_accepted() {
        let json = "{\n\t'kind': 'Config',\n\t'current-context': 'c',\n\t'x-tool': {'a': [1]},\n\t'users': [\n\t\t{'name': 'u', \
                    'user': {'token': 't', 'tool': true}}\n\t]\n}\n"
            .replace('\'', "\"");
        assert_eq!(parse_text(&json).unwrap().current_context.as_deref(), Some("c"));
        let yaml =
            "clusters:\n- name: a\n  cluster: &c {server: 'https://[::1]:6443'}\n- {name: b, cluster: *c}\n";
        let server = parse_text(yaml).unwrap().clusters[1].cluster.clone().unwrap().server;
        assert_eq!(server.as_deref(), Some("https://[::1]:6443"));
    }

    #[test]
    fn an_error_names_the_field_and_does_not_quote_it() {
        let error = parse_text("{users: [{name: u, user: {exec: hunter2}}]}").unwrap_err();
        assert_eq!(error, "malformed: users[0].user.exec has another type");
        for malformed in ["hunter2", "{users: [{name: u, user: {token: hunter2}", "hunter2: ["] {
            let error = parse_text(malformed).unwrap_err();
            assert!(error.starts_with("malformed") && !error.contains("hunter2"), "{error}");
        }
    }
}
