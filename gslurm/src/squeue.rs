//! `squeue`: `gq` with squeue's columns and JSON. Source: squeue(1), and what squeue 22.05.8 printed.

use crate::json;
use gcli::Outcome;
use gq::queue::SqueueForm;
use std::ffi::OsString;

const FORM: SqueueForm = SqueueForm {
    usual: "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R",
    long: "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R",
    steps: "%.15i %.8j %.9P %.8u %.9M %N",
    start: "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R",
    json: json::print_queue,
};

/// `squeue`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    gq::queue::squeue(words, &FORM)
}
