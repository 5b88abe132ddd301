//! Defines all methods of the control socket and their parameters. An unknown parameter is an error, because a misspelt
//! `mode` would otherwise count as a missing one.

use opt_shared::language::Language;
use opt_shared::message::Role;
use opt_shared::mode::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::refusal::{Code, Refusal};

/// A valid request.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Status,
    Workers,
    Recycle(RecycleParams),
    Pause,
    Resume,
    Cancel(CancelParams),
    Set(SetParams),
    Why(WhyParams),
    Candidates(CandidatesParams),
    History(HistoryParams),
    Decisions(DecisionsParams),
    Events,
    Shutdown { mode: Mode },
    Submit(SubmitParams),
    Result(ResultParams),
}

pub(super) const METHODS: [&str; 16] = [
    "status",
    "workers",
    "candidates",
    "history",
    "decisions",
    "recycle",
    "restart",
    "pause",
    "resume",
    "cancel",
    "set",
    "why",
    "events",
    "shutdown",
    "submit",
    "result",
];

/// The workers to replace. Exactly one of `worker` and `role` must be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecycleParams {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    #[serde(default)]
    pub mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelParams {
    pub job: String,
    /// The candidate to cancel. If it is missing, the whole job is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetParams {
    /// A size, or a share of the memory that the supervisor may use. It is written as in a plan.
    pub host_ceiling: String,
}

/// The worker or candidate to explain. Exactly one of `candidate` and `worker` must be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhyParams {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// `JOB/CANDIDATE`, or only the candidate's name if it is unique in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CandidatesParams {
    /// The index of the first item of the page to send.
    #[serde(default)]
    pub from: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryParams {
    /// The start of the history to send, in seconds since the supervisor's process began. It may be the time of the
    /// last slot of an earlier answer.
    #[serde(default)]
    pub since_s: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionsParams {
    /// The maximum number of decisions to send. The driver sends at most 100.
    pub most: u32,
}

/// A candidate to submit. Exactly one of `sources` and `text` must be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitParams {
    /// The job's name. It is optional if the plan has only one job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The absolute paths of the source files, which are copied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The language. It is required with `text`. With files, it follows from their suffixes if it is missing.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "Language::deserialize_runnable"
    )]
    pub language: Option<Language>,
    /// The candidate's name. If it is taken, a number is appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// The candidate of the job whose launches a kernel without host code uses. By default, this is the baseline if it
    /// has launches, or else the first candidate that has launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultParams {
    pub candidate: String,
    /// Whether to send the answer only when the candidate has ended.
    #[serde(default)]
    pub wait: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShutdownParams {
    #[serde(default)]
    mode: Mode,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParams {}

/// Parses the parameters of a method.
pub(super) fn parse(method: &str, params: Option<&str>) -> Result<Request, Refusal> {
    let nothing = |request| typed::<NoParams>(method, params).map(|_| request);
    match method {
        "status" => nothing(Request::Status),
        "workers" => nothing(Request::Workers),
        "pause" => nothing(Request::Pause),
        "resume" => nothing(Request::Resume),
        "events" => nothing(Request::Events),
        "recycle" | "restart" => {
            let params: RecycleParams = typed(method, params)?;
            require_one(method, "worker", params.worker.is_some(), "role", params.role.is_some())?;
            Ok(Request::Recycle(params))
        }
        "cancel" => typed(method, params).map(Request::Cancel),
        "set" => typed(method, params).map(Request::Set),
        "why" => {
            let params: WhyParams = typed(method, params)?;
            require_one(method, "worker", params.worker.is_some(), "candidate", params.candidate.is_some())?;
            Ok(Request::Why(params))
        }
        "candidates" => typed(method, params).map(Request::Candidates),
        "history" => typed(method, params).map(Request::History),
        "decisions" => typed(method, params).map(Request::Decisions),
        "shutdown" => typed(method, params).map(|ShutdownParams { mode }| Request::Shutdown { mode }),
        "submit" => {
            let params: SubmitParams = typed(method, params)?;
            require_one(method, "sources", !params.sources.is_empty(), "text", params.text.is_some())?;
            Ok(Request::Submit(params))
        }
        "result" => typed(method, params).map(Request::Result),
        _ => {
            // An unknown name can be very long, so only its beginning is sent back.
            let shown: String = method.chars().take(40).collect();
            let methods = METHODS.join(", ");
            Err(Refusal::new(
                Code::UnknownMethod,
                format!("there is no method `{shown}` (the methods are {methods})"),
            ))
        }
    }
}

/// Parses named parameters. If there are none, they count as an empty object.
fn typed<T: DeserializeOwned>(method: &str, params: Option<&str>) -> Result<T, Refusal> {
    let text = params.unwrap_or("{}");
    if text.starts_with('[') {
        return Err(Refusal::new(
            Code::InvalidParams,
            format!("`{method}` takes an object of named parameters, not a list"),
        ));
    }
    serde_json::from_str(text).map_err(|error| {
        Refusal::new(Code::InvalidParams, format!("the parameters of `{method}` are not valid: {error}"))
    })
}

/// Refuses a request in which two parameters are both given, or both missing.
fn require_one(method: &str, one: &str, has_one: bool, other: &str, has_other: bool) -> Result<(), Refusal> {
    if has_one != has_other {
        return Ok(());
    }
    Err(Refusal::new(
        Code::InvalidParams,
        format!("`{method}` needs either `{one}` or `{other}`, and not both"),
    ))
}
