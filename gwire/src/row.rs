//! Rows of listings: a struct for each, whose fields are the keys, and bare rows without them.
//!
//! [`wire_row!`] makes struct and keys of one table. A row owns its texts (`JobRow`), or borrows them from the JSON that it
//! is read from (`JobRow<RowText>`): a listing of 100,000 jobs is formatted while it is read.

use crate::api::{CheckpointMarkRow, GpuUseRow};
use gmodel::{ExitCode, Instant, JobState, ReasonCode};
use serde::de::{DeserializeSeed, Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

/// A text that is borrowed where it has no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowText<'a>(#[serde(borrow)] pub Cow<'a, str>);

impl Deref for RowText<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RowText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'a> From<&'a str> for RowText<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for RowText<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

/// A value of a row.
pub trait RowValue {
    /// Not sent, where the key says `where present`.
    fn is_absent(&self) -> bool {
        false
    }
    /// Empty for what is no text.
    fn text(&self) -> &str {
        ""
    }
    /// Does nothing to what is no text.
    fn set_text(&mut self, _text: &str) {}
}

macro_rules! row_values {
    ($($kind:ty)*) => { $(impl RowValue for $kind {})* };
}
row_values! { u64 u32 i32 i64 f64 JobState ReasonCode ExitCode Instant CheckpointMarkRow GpuUseRow }

impl RowValue for bool {
    fn is_absent(&self) -> bool {
        !self
    }
}

impl RowValue for String {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
    fn text(&self) -> &str {
        self
    }
    fn set_text(&mut self, text: &str) {
        text.clone_into(self);
    }
}

impl RowValue for RowText<'_> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
    fn text(&self) -> &str {
        self
    }
}

impl<V: RowValue> RowValue for Option<V> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }
    fn text(&self) -> &str {
        self.as_ref().map_or("", V::text)
    }
}

impl<V> RowValue for Box<V> {}

impl<V> RowValue for Vec<V> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> RowValue for BTreeMap<K, V> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

/// A row that is read from the values of named keys.
pub trait BareRow<'de>: Deserialize<'de> + Default {
    /// A key of a row.
    type Key: Copy;
    /// Puts the next value into the field of a key.
    ///
    /// # Errors
    /// The value does not fit.
    fn fill<A: SeqAccess<'de>>(&mut self, key: Self::Key, values: &mut A) -> Result<(), A::Error>;
}

/// Takes the next value; null leaves the field as it is.
///
/// # Errors
/// The value does not fit.
pub fn take_value<'de, V: Deserialize<'de>, A: SeqAccess<'de>>(
    field: &mut V,
    values: &mut A,
) -> Result<(), A::Error> {
    if let Some(Some(value)) = values.next_element::<Option<V>>()? {
        *field = value;
    }
    Ok(())
}

/// Reads a row, written as a list of the values of `keys` or with its keys.
///
/// # Errors
/// It is no row.
pub fn read<'de, R: BareRow<'de>>(
    text: &'de [u8],
    keys: &[R::Key],
) -> Result<R, serde_json::Error> {
    if text.first() != Some(&b'[') {
        return serde_json::from_slice(text);
    }
    // Looked at once as a whole, not once for each text in it.
    let text = std::str::from_utf8(text).map_err(Error::custom)?;
    let mut values = serde_json::Deserializer::from_str(text);
    // Filled where it stands: a row is large, and moving it costs as much as reading some of its values.
    let mut row = R::default();
    RowVisitor(keys, &mut row).deserialize(&mut values)?;
    values.end()?;
    Ok(row)
}

struct RowVisitor<'r, K, R>(&'r [K], &'r mut R);

impl<'de, R: BareRow<'de>> DeserializeSeed<'de> for RowVisitor<'_, R::Key, R> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, values: D) -> Result<(), D::Error> {
        values.deserialize_seq(self)
    }
}

impl<'de, R: BareRow<'de>> Visitor<'de> for RowVisitor<'_, R::Key, R> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a row of {} values", self.0.len())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        for key in self.0 {
            self.1.fill(*key, &mut values)?;
        }
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// The struct of a row, and its keys as an enum. A key with `where present` is left out where its value says nothing.
macro_rules! wire_row {
    (
        $(#[$of_row:meta])*
        pub struct $row:ident<T = String>, keys $keys:ident {
            $($(#[$of_key:meta])* pub $key:ident: $kind:ty $(where $present:ident)?,)*
        }
    ) => {
        $(#[$of_row])*
        #[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
        #[serde(default, bound(serialize = "T: serde::Serialize + crate::row::RowValue"))]
        pub struct $row<T = String> {
            $(
                $(#[$of_key])*
                $(
                    #[doc = concat!("Sent where ", stringify!($present), ".")]
                    #[serde(skip_serializing_if = "crate::row::RowValue::is_absent")]
                )?
                pub $key: $kind,
            )*
        }

        #[doc = concat!("A key of a [`", stringify!($row), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "the keys as they are written")]
        pub enum $keys {
            /// Not known to this release: passed over.
            other,
            $($key),*
        }

        impl $keys {
            /// All keys, in the order of the row.
            pub const ALL: &[Self] = &[$(Self::$key),*];

            /// By the name in a row.
            pub fn of(name: &str) -> Self {
                match name {
                    $(stringify!($key) => Self::$key,)*
                    _ => Self::other,
                }
            }

            /// As it stands in a row.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::other => "",
                    $(Self::$key => stringify!($key),)*
                }
            }

            /// As it stands before its value: `,"key":`.
            pub const fn prefix(self) -> &'static str {
                match self {
                    Self::other => "",
                    $(Self::$key => concat!(",\"", stringify!($key), "\":"),)*
                }
            }
        }

        impl<T: crate::row::RowValue> $row<T> {
            /// The text of a key; empty for what is no text.
            pub fn text(&self, key: $keys) -> &str {
                match key {
                    $keys::other => "",
                    $($keys::$key => crate::row::RowValue::text(&self.$key),)*
                }
            }

            /// Sets the text of a key; does nothing to what is no text.
            pub fn set_text(&mut self, key: $keys, text: &str) {
                match key {
                    $keys::other => {}
                    $($keys::$key => crate::row::RowValue::set_text(&mut self.$key, text),)*
                }
            }
        }

        impl<T: serde::Serialize + crate::row::RowValue> $row<T> {
            /// Writes the value of a key as JSON; writes nothing and answers false where the row does not send it.
            ///
            /// # Errors
            /// The value is none of JSON.
            pub fn put(&self, key: $keys, out: &mut Vec<u8>) -> Result<bool, serde_json::Error> {
                match key {
                    $keys::other => return Ok(false),
                    $($keys::$key => {
                        $(
                            const _: &str = stringify!($present);
                            if crate::row::RowValue::is_absent(&self.$key) {
                                return Ok(false);
                            }
                        )?
                        serde_json::to_writer(out, &self.$key)?;
                    })*
                }
                Ok(true)
            }
        }

        impl<'de, T: serde::Deserialize<'de> + Default> crate::row::BareRow<'de> for $row<T> {
            type Key = $keys;
            fn fill<A: serde::de::SeqAccess<'de>>(&mut self, key: $keys, values: &mut A) -> Result<(), A::Error> {
                match key {
                    $keys::other => values.next_element::<serde::de::IgnoredAny>().map(drop),
                    $($keys::$key => crate::row::take_value(&mut self.$key, values),)*
                }
            }
        }
    };
}
pub(crate) use wire_row;
