//! x
pub fn main(_w: impl IntoIterator<Item = std::ffi::OsString>) -> gcli::Outcome { Ok(0) }
