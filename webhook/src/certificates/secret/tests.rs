use std::sync::Arc;

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
};

use super::*;

const NOW: i64 = 1_800_000_000;

/// Values of `is_published`.
const PUBLISHED: bool = true;
const NOT_PUBLISHED: bool = false;

/// The parameters at this second of the test.
fn params(names: &[String], second: i64) -> IssueParams<'_> {
    let now = Timestamp::from_second(NOW + second).unwrap();
    IssueParams { names, now, lifetime: Lifetime::default() }
}

fn names() -> Vec<String> {
    vec!["webhook.ns.svc".into()]
}

/// Returns the certificates that the next step writes. Panics if it writes none.
#[track_caller]
fn next_certificates(current: Option<&Certificates>, second: i64, is_published: bool) -> Certificates {
    match next_step(current, params(&names(), second), is_published).unwrap() {
        Step::Write(certificates) => {
            assert!(certificates.next.is_some());
            *certificates
        }
        other => panic!("{other:?}"),
    }
}

/// Returns true if a client that trusts the bundle of `trusted` accepts the certificate of `served` at that time.
fn accepts(trusted: &Certificates, served: &Certificates, second: i64) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(
        CertificateDer::pem_slice_iter(trusted.bundle().as_bytes()).map(Result::unwrap),
    );
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
    let certificate = CertificateDer::from_pem_slice(served.server.certificate.as_bytes()).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs((NOW + second) as u64));
    let name = "webhook.ns.svc".try_into().unwrap();
    verifier.build().unwrap().verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
}

const DAY: i64 = 86_400;

#[test]
fn clients_and_replicas_that_are_one_rotation_apart_trust_each_other() {
    let mut before = next_certificates(None, 0, NOT_PUBLISHED);
    for rotation in 1..5 {
        let due = rotation * 6 * DAY + 1;
        let after = next_certificates(Some(&before), due, PUBLISHED);
        assert_ne!(after.server, before.server);
        for (trusted, served) in [(&before, &before), (&before, &after), (&after, &before), (&after, &after)]
        {
            assert!(accepts(trusted, served, due), "rotation {rotation}");
        }
        assert_eq!(after.trusted.len(), 3);
        before = after;
    }
}

#[test]
fn a_certificate_is_renewed_a_day_before_its_end_and_not_earlier() {
    let current = next_certificates(None, 0, NOT_PUBLISHED);
    let step_at = |second| next_step(Some(&current), params(&names(), second), NOT_PUBLISHED).unwrap();
    assert_eq!(step_at(0), Step::Wait(MAX_WAIT));
    assert_eq!(step_at(6 * DAY - 1), Step::Wait(Duration::from_secs(1)));
    assert_eq!(step_at(6 * DAY), Step::AwaitTrust);
}

#[test]
fn an_expired_certificate_is_replaced_even_if_no_client_trusts_the_authority_yet() {
    let current = next_certificates(None, 0, NOT_PUBLISHED);
    let replaced = next_certificates(Some(&current), 7 * DAY + 1, NOT_PUBLISHED);
    assert_ne!(replaced.server, current.server);
}

#[test]
fn one_configuration_without_the_next_authority_does_not_let_the_certificate_expire() {
    let current = next_certificates(None, 0, NOT_PUBLISHED);
    let step = |second| next_step(Some(&current), params(&names(), second), NOT_PUBLISHED).unwrap();
    assert_eq!(step(6 * DAY + DAY / 2 - 60), Step::AwaitTrust);
    let renewed = next_certificates(Some(&current), 6 * DAY + DAY / 2 + 60, NOT_PUBLISHED);
    assert!(renewed.server != current.server && accepts(&current, &renewed, 6 * DAY + DAY / 2 + 60));
}

#[test]
fn a_certificate_that_lacks_a_name_has_to_be_replaced() {
    let current = next_certificates(None, 0, NOT_PUBLISHED);
    let more_names = [names(), vec!["127.0.0.1".into()]].concat();
    assert_eq!(next_step(Some(&current), params(&more_names, 1), NOT_PUBLISHED).unwrap(), Step::AwaitTrust);
}

#[test]
fn the_certificate_of_a_knative_webhook_is_kept_and_gets_a_next_authority() {
    let knative = Certificates { next: None, ..next_certificates(None, 0, NOT_PUBLISHED) };
    let knative = Certificates { trusted: knative.trusted[..1].to_vec(), ..knative };
    let completed = next_certificates(Some(&knative), 1, NOT_PUBLISHED);
    assert_eq!((&completed.server, &completed.trusted[..1]), (&knative.server, &knative.trusted[..]));
    assert_eq!(completed.trusted.len(), 2);
}

#[test]
fn damaged_parts_of_the_secret_are_replaced_at_once_and_a_valid_certificate_is_kept() {
    let (current, other) =
        (next_certificates(None, 0, NOT_PUBLISHED), next_certificates(None, 0, NOT_PUBLISHED));
    let nonsense = || CertificateAndKey { certificate: "nonsense".into(), key: "nonsense".into() };
    let with_key_of = |pair: &CertificateAndKey, other: &CertificateAndKey| CertificateAndKey {
        certificate: pair.certificate.clone(),
        key: other.key.clone(),
    };
    let damaged = [
        ("the certificate", Certificates { server: nonsense(), ..current.clone() }),
        ("another's certificate", Certificates { server: other.server.clone(), ..current.clone() }),
        (
            "another's key",
            Certificates { server: with_key_of(&current.server, &other.server), ..current.clone() },
        ),
        ("no authority", Certificates { trusted: vec![], ..current.clone() }),
        ("another's authorities", Certificates { trusted: other.trusted.clone(), ..current.clone() }),
    ];
    for (damage, damaged) in &damaged {
        let repaired = next_certificates(Some(damaged), 1, NOT_PUBLISHED);
        assert!(accepts(&repaired, &repaired, 1) && repaired.server.is_consistent(), "{damage}");
    }
    let next = current.next.as_ref().unwrap();
    for bad in [nonsense(), with_key_of(next, &current.server), other.next.clone().unwrap()] {
        let repaired =
            next_certificates(Some(&Certificates { next: Some(bad), ..current.clone() }), 1, NOT_PUBLISHED);
        assert!(repaired.server == current.server && accepts(&repaired, &current, 1));
        assert!(repaired.usable_next_authority(params(&names(), 1)).is_some());
    }
}

#[test]
fn an_authority_added_by_a_user_does_not_displace_the_issuer_of_the_old_certificate() {
    let (mut before, foreign) =
        (next_certificates(None, 0, NOT_PUBLISHED), next_certificates(None, 0, NOT_PUBLISHED));
    before.trusted.push(foreign.trusted[0].clone());
    let due = 6 * DAY + 1;
    let after = next_certificates(Some(&before), due, PUBLISHED);
    assert!(accepts(&after, &before, due) && accepts(&before, &after, due));
}

#[test]
fn a_certificate_from_a_clock_more_than_an_hour_ahead_is_replaced() {
    let ahead = next_certificates(None, 2 * DAY, NOT_PUBLISHED);
    let repaired = next_certificates(Some(&ahead), 0, NOT_PUBLISHED);
    assert!(!accepts(&ahead, &ahead, 0) && accepts(&repaired, &repaired, 0));
    let slightly_ahead = next_certificates(None, 3_000, NOT_PUBLISHED);
    let step = next_step(Some(&slightly_ahead), params(&names(), 0), NOT_PUBLISHED).unwrap();
    assert_eq!(step, Step::Wait(MAX_WAIT));
}

#[test]
fn invalid_certificates_in_the_bundle_are_left_out() {
    let certificates = next_certificates(None, 0, NOT_PUBLISHED);
    let nonsense = "-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n";
    let mut data = certificates.data();
    data.insert(CA_BUNDLE.into(), ByteString((nonsense.to_owned() + &certificates.bundle()).into_bytes()));
    assert_eq!(
        Certificates::from_secret(&Secret { data: Some(data), ..Secret::default() }),
        Some(certificates)
    );
}

#[test]
fn written_contents_are_read_back() {
    let certificates = next_certificates(None, 0, NOT_PUBLISHED);
    let secret = Secret { data: Some(certificates.data()), ..Secret::default() };
    assert_eq!(Certificates::from_secret(&secret), Some(certificates));
    assert_eq!(Certificates::from_secret(&Secret::default()), None);
}

#[test]
fn two_programs_with_one_secret_come_to_rest() {
    let programs = [["a.ns.svc".to_owned()], ["b.ns.svc".to_owned()]];
    let mut current = next_certificates(None, 0, NOT_PUBLISHED);
    for second in 1..5 {
        for names in &programs {
            match next_step(Some(&current), params(names, second), PUBLISHED).unwrap() {
                Step::Write(certificates) => current = *certificates,
                step => assert_eq!(step, Step::Wait(MAX_WAIT)),
            }
        }
    }
    for names in programs.iter().chain([&[names()[0].clone()]]) {
        let step = next_step(Some(&current), params(names, 5), PUBLISHED).unwrap();
        assert_eq!(step, Step::Wait(MAX_WAIT), "{names:?}");
    }
    let renewed = next_step(Some(&current), params(&programs[0], 6 * DAY + 5), PUBLISHED).unwrap();
    let Step::Write(renewed) = renewed else { panic!("{renewed:?}") };
    assert!(!renewed.covers(&programs[1][0]), "a renewal in time drops names that are no longer needed");
}

/// Returns these contents with a certificate for exactly these names, even those that cannot be issued.
fn forged(contents: &Certificates, names: &[&str]) -> Certificates {
    let authority = contents.next.as_ref().unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(
        &authority.certificate,
        rcgen::KeyPair::from_pem(&authority.key).unwrap(),
    );
    let dns_name = |name: &&str| [&[0x82, name.len() as u8], name.as_bytes()].concat();
    let names = names.iter().flat_map(dns_name).collect::<Vec<_>>();
    let header = match u8::try_from(names.len()) {
        Ok(length @ ..0x80) => vec![0x30, length],
        _ => [&[0x30, 0x82], &(names.len() as u16).to_be_bytes()[..]].concat(),
    };
    let names = [header, names].concat();
    let mut params = rcgen::CertificateParams::default();
    let time = |second| time::OffsetDateTime::from_unix_timestamp(NOW + second).unwrap();
    (params.not_before, params.not_after) = (time(0), time(7 * DAY));
    params.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], names)];
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer.unwrap()).unwrap().pem();
    let server = CertificateAndKey { certificate, key: key.serialize_pem() };
    Certificates { server, ..contents.clone() }
}

#[test]
fn names_that_no_certificate_can_be_issued_for_are_not_taken_over() {
    let current = next_certificates(None, 0, NOT_PUBLISHED);
    let forged = forged(&current, &["other.ns.svc", "bäd.example", "a b", "*.wild.example"]);
    assert!(forged.covers(&"bäd.example".into()) && !forged.is_rejected(params(&[], 1).now));
    let replaced = next_certificates(Some(&forged), 1, PUBLISHED);
    let names = read_certificate(&replaced.server.certificate).unwrap().names;
    assert_eq!(names, ["webhook.ns.svc", "other.ns.svc", "*.wild.example"]);
}

#[test]
fn a_certificate_takes_over_a_hundred_names_of_others_at_most() {
    let others: Vec<_> = (0..200).map(|number| format!("n{number}.example")).collect();
    let current = next_certificates(None, 0, NOT_PUBLISHED);
    let forged = forged(&current, &others.iter().map(String::as_str).collect::<Vec<_>>());
    let replaced = next_certificates(Some(&forged), 1, PUBLISHED);
    let names = read_certificate(&replaced.server.certificate).unwrap().names;
    assert_eq!(names, [&self::names()[..], &others[..100]].concat());
}

/// A key in the form of OpenSSL (`EC PRIVATE KEY`) can be served with, and the issuer cannot read it.
#[test]
fn a_next_authority_that_cannot_issue_is_replaced() {
    let current = next_certificates(None, 0, NOT_PUBLISHED);
    let next = current.next.clone().unwrap();
    let der = rcgen::KeyPair::from_pem(&next.key).unwrap().serialize_der();
    // The PKCS #8 key ends with the octets of the key in the form of SEC 1, which begin with 0x30.
    let start = der.windows(4).rposition(|bytes| bytes[0] == 0x30 && bytes[2..] == [0x02, 0x01]).unwrap();
    let base64 = serde_json::to_value(ByteString(der[start..].into())).unwrap();
    let text = base64.as_str().unwrap();
    let key = format!("-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n");
    let next = CertificateAndKey { key, ..next };
    assert!(next.is_consistent(), "otherwise this tests nothing");
    let edited = Certificates { next: Some(next), ..current };
    let repaired = next_certificates(Some(&edited), 6 * DAY + 1, PUBLISHED);
    assert_eq!(repaired.server, edited.server);
    let renewed = next_certificates(Some(&repaired), 6 * DAY + 1, PUBLISHED);
    assert!(accepts(&repaired, &renewed, 6 * DAY + 1));
}
