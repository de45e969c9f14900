//! The ways in which a reconciler returns outcomes and errors.
use std::time::Duration;

use reknit::prelude::*;

#[derive(Debug, thiserror::Error)]
enum UserError {
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
fn conflicting_request() -> std::result::Result<u8, kube::Error> {
    Err(conflict())
}
fn return_in_way(n: u8) -> Result<Outcome> {
    match n {
        0 => drop(conflicting_request()?),
        1 => conflicting_request().map_err(UserError::Create).map(drop)?,
        2 => return Err("just words".into()),
        3 => return Err(format!("{n} words").into()),
        4 => drop("x".parse::<u8>().permanent()?),
        5 => drop(conflicting_request().permanent()?),
        6 => return Err(Error::permanent("Resource already exists").reason("ErrResourceExists")),
        7 => return_in_way(4).map(drop)?, // `?` does not change an Error
        8 => drop(return_in_way(0).permanent()?),
        9 => return Ok(Outcome::after(Duration::from_secs(1))),
        10 => return Ok(Outcome::done().event(Event::normal("Synced", "Foo synced successfully"))),
        11 => Err(UnitError())?,
        _ => return Ok(Outcome::skip()),
    }
    Ok(Outcome::done())
}
#[derive(Debug, thiserror::Error)]
#[error("without a source")]
struct UnitError();

#[test]
fn the_question_mark_operator_converts_any_error_and_keeps_its_permanence_and_conflicts() {
    let permanent_and_conflict =
        |n| return_in_way(n).err().map(|error| (error.is_permanent(), error.is_conflict()));
    let results: Vec<_> = (0..13).map(permanent_and_conflict).collect();
    let (plain, permanent) = (Some((false, false)), Some((true, false)));
    assert_eq!(results[..4], [Some((false, true)), Some((false, true)), plain, plain]);
    assert_eq!(results[4..9], [permanent, Some((true, true)), permanent, permanent, Some((true, true))]);
    assert_eq!(results[9..], [None, None, plain, None]);
}
