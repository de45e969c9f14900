//! Outcomes and errors, as a reconciler writes them.
use std::time::Duration;

use reknit::prelude::*;

#[derive(Debug, thiserror::Error)]
enum Mine {
    #[error("creating failed")]
    Create(#[source] kube::Error),
}
fn conflict() -> kube::Error {
    kube::Error::Api(Box::new(
        serde_json::from_value(
            serde_json::json!({"status": "Failure", "code": 409, "reason": "Conflict", "message": "m"}),
        )
        .unwrap(),
    ))
}
fn kube_says() -> std::result::Result<u8, kube::Error> {
    Err(conflict())
}
fn every_way(n: u8) -> Result<Outcome> {
    match n {
        0 => drop(kube_says()?),
        1 => kube_says().map_err(Mine::Create).map(drop)?,
        2 => return Err("just words".into()),
        3 => return Err(format!("{n} words").into()),
        4 => drop("x".parse::<u8>().permanent()?),
        5 => drop(kube_says().permanent()?),
        6 => return Err(Error::permanent("Resource already exists").reason("ErrResourceExists")),
        7 => every_way(4).map(drop)?, // an Error through `?` stays what it was
        8 => drop(every_way(0).permanent()?),
        9 => return Ok(Outcome::after(Duration::from_secs(1))),
        10 => return Ok(Outcome::done().event(Event::normal("Synced", "Foo synced successfully"))),
        11 => Err(Missing_())?,
        _ => return Ok(Outcome::skip()),
    }
    Ok(Outcome::done())
}
#[derive(Debug, thiserror::Error)]
#[error("m")]
struct Missing_();

#[test]
fn question_mark_takes_any_error_and_keeps_what_is_known() {
    let kinds = |n| every_way(n).err().map(|e| (e.is_permanent(), e.is_conflict()));
    let said: Vec<_> = (0..13).map(kinds).collect();
    let (plain, lasting) = (Some((false, false)), Some((true, false)));
    assert_eq!(said[..4], [Some((false, true)), Some((false, true)), plain, plain]);
    assert_eq!(said[4..9], [lasting, Some((true, true)), lasting, lasting, Some((true, true))]);
    assert_eq!(said[9..], [None, None, plain, None]);
}
