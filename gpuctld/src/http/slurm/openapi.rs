//! Which paths and methods there are. Of OpenAPI's document only these: the records have the schemas of Slurm's own.

use super::error::SlurmError;
use super::question::{Family, VERSIONS};
use axum::Json;
use axum::http::Method;
use gslurm_json::document::RELEASE;
use serde_json::{Map, Value, json};

/// Paths behind the version, with their methods. A word in braces is any.
const SLURM: &[(&str, &[&str])] = &[
    ("jobs", &["GET", "DELETE"]),
    ("jobs/state", &["GET"]),
    ("job/submit", &["POST"]),
    ("job/allocate", &["POST"]),
    ("job/{job_id}", &["GET", "POST", "DELETE"]),
    ("nodes", &["GET"]),
    ("node/{node_name}", &["GET", "POST"]),
    ("partitions", &["GET"]),
    ("partition/{partition_name}", &["GET"]),
    ("reservations", &["GET"]),
    ("reservation/{reservation_name}", &["GET"]),
    ("ping", &["GET"]),
    ("diag", &["GET"]),
    ("licenses", &["GET"]),
    ("shares", &["GET"]),
    ("reconfigure", &["GET"]),
];
const SLURMDB: &[(&str, &[&str])] = &[
    ("jobs", &["GET"]),
    ("job/{job_id}", &["GET"]),
    ("accounts", &["GET", "POST"]),
    ("account/{account_name}", &["GET", "DELETE"]),
    ("associations", &["GET", "POST", "DELETE"]),
    ("association", &["GET", "DELETE"]),
    ("users", &["GET"]),
    ("user/{name}", &["GET"]),
    ("qos", &["GET", "POST"]),
    ("qos/{qos}", &["GET", "DELETE"]),
    ("clusters", &["GET"]),
    ("cluster/{cluster_name}", &["GET"]),
    ("tres", &["GET"]),
    ("config", &["GET"]),
    ("ping", &["GET"]),
    ("diag", &["GET"]),
    ("wckeys", &["GET"]),
    ("instances", &["GET"]),
];

/// # Errors
/// No such path, or one that does not take the method.
pub(super) fn check(family: Family, method: &Method, path: &[String]) -> Result<(), SlurmError> {
    let mut known: Vec<&str> = Vec::new();
    for (pattern, methods) in paths(family) {
        if fits(pattern, path) {
            known.extend(*methods);
        }
    }
    if known.is_empty() {
        return Err(no_such_path());
    }
    if known.contains(&method.as_str()) {
        return Ok(());
    }
    Err(SlurmError::wrong_method(format!(
        "{method} is not done there. It takes {}; gadm and gslurm's commands change what these do not",
        known.join(", ")
    )))
}

pub(super) fn no_such_path() -> SlurmError {
    SlurmError::no_such_path("there is no such path here. /openapi/v3 lists those that there are")
}

fn paths(family: Family) -> impl Iterator<Item = &'static (&'static str, &'static [&'static str])> {
    match family {
        Family::Slurm => SLURM.iter(),
        Family::Slurmdb => SLURMDB.iter(),
    }
}

fn fits(pattern: &str, path: &[String]) -> bool {
    let mut parts = pattern.split('/');
    let same = path.iter().all(|word| {
        parts
            .next()
            .is_some_and(|part| part.starts_with('{') || part == word)
    });
    same && parts.next().is_none()
}

/// `GET /openapi/v3`: paths and methods, without schemas.
pub(super) async fn document() -> Json<Value> {
    let mut paths_of_all = Map::new();
    for (family, root) in [(Family::Slurm, "slurm"), (Family::Slurmdb, "slurmdb")] {
        for version in VERSIONS {
            for (pattern, methods) in paths(family) {
                let of_methods: Map<String, Value> = methods
                    .iter()
                    .map(|method| (method.to_lowercase(), operation(pattern)))
                    .collect();
                paths_of_all.insert(format!("/{root}/{version}/{pattern}"), of_methods.into());
            }
        }
    }
    let info = json!({"title": "gpupool, as slurmrestd", "version": RELEASE,
        "description": "Paths and methods only. Bodies have the shapes of Slurm's data_parser v0.0.43."});
    Json(json!({"openapi": "3.0.3", "info": info, "paths": paths_of_all}))
}

fn operation(pattern: &str) -> Value {
    let named = pattern
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = named
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    json!({"parameters": parameters, "responses": {"default": {"description": "meta, errors, warnings and the records"}}})
}
