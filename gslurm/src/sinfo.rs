//! `sinfo`: `gnodes` that lists partitions, with sinfo's columns. Source: sinfo(1), and what sinfo 22.05.8 printed.

use crate::json;
use gcli::Outcome;
use gq::nodes::SinfoForm;
use std::ffi::OsString;

const FORM: SinfoForm = SinfoForm {
    long: "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N",
    by_node_long: "%9N %.6D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E",
    json: json::print_alike,
};

/// `sinfo`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    gq::nodes::sinfo(words, &FORM)
}
