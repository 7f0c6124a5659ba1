//! Rows of listings as they are sent: objects with keys, or bare lists of the values of the keys that were asked for.
//!
//! Owns how a bare row is read into a struct with the keys as its fields, borrowing what it can; which fields there are
//! is each listing's.

use gmodel::{ExitCode, Instant, JobState, ReasonCode};
use gwire::api::{CheckpointMarkRow, GpuUseRow, RunDetail, StepRow};
use serde::de::{DeserializeSeed, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// A row that is filled field by field.
pub(crate) trait BareRow<'de>: Deserialize<'de> + Default {
    /// A key of a row.
    type Key: Copy;
    /// Puts the next value into the field of a key.
    fn fill<A: SeqAccess<'de>>(&mut self, key: Self::Key, values: &mut A) -> Result<(), A::Error>;
}

/// Reads a row, written as a list of the values of `keys` or with its keys.
///
/// # Errors
/// It is no row.
pub(crate) fn read<'de, R: BareRow<'de>>(
    text: &'de [u8],
    keys: &[R::Key],
) -> Result<R, serde_json::Error> {
    if text.first() != Some(&b'[') {
        return serde_json::from_slice(text);
    }
    // Looked at once as a whole, not once for each text in it.
    let text = std::str::from_utf8(text).map_err(serde::de::Error::custom)?;
    let mut values = serde_json::Deserializer::from_str(text);
    let row = RowVisitor(keys, PhantomData::<R>).deserialize(&mut values)?;
    values.end()?;
    Ok(row)
}

struct RowVisitor<'k, K, R>(&'k [K], PhantomData<R>);

impl<'de, R: BareRow<'de>> DeserializeSeed<'de> for RowVisitor<'_, R::Key, R> {
    type Value = R;
    fn deserialize<D: Deserializer<'de>>(self, values: D) -> Result<R, D::Error> {
        values.deserialize_seq(self)
    }
}

impl<'de, R: BareRow<'de>> Visitor<'de> for RowVisitor<'_, R::Key, R> {
    type Value = R;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a row of {} values", self.0.len())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<R, A::Error> {
        let mut row = R::default();
        for key in self.0 {
            row.fill(*key, &mut values)?;
        }
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(row)
    }
}

/// The keys of a row's struct as an enum, and how values without names come into it.
macro_rules! bare_row {
    ($row:ident, $keys:ident: $($key:ident)*) => {
        /// A key of a row, by which values without names are put into it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "the keys as they are written")]
        pub(crate) enum $keys {
            /// Not known to this release: passed over.
            other,
            $($key),*
        }

        impl $keys {
            /// By the name in a row.
            pub fn of(name: &str) -> Self {
                match name {
                    $(stringify!($key) => Self::$key,)*
                    _ => Self::other,
                }
            }
        }

        impl<'de> $crate::bare_row::BareRow<'de> for $row<'de> {
            type Key = $keys;
            fn fill<A: serde::de::SeqAccess<'de>>(&mut self, key: $keys, values: &mut A) -> Result<(), A::Error> {
                use $crate::bare_row::Fill;
                match key {
                    $keys::other => values.next_element::<serde::de::IgnoredAny>().map(drop),
                    $($keys::$key => self.$key.fill(values),)*
                }
            }
        }
    };
}
pub(crate) use bare_row;

/// A value that stays as it is where a row has none.
pub(crate) trait Fill<'de> {
    fn fill<A: SeqAccess<'de>>(&mut self, values: &mut A) -> Result<(), A::Error>;
}

macro_rules! take {
    ($($kind:ty)*) => {
        $(impl<'de> Fill<'de> for $kind {
            fn fill<A: SeqAccess<'de>>(&mut self, values: &mut A) -> Result<(), A::Error> {
                if let Some(Some(value)) = values.next_element::<Option<$kind>>()? {
                    *self = value;
                }
                Ok(())
            }
        })*
    };
}
take! { u64 u32 i32 i64 f64 bool JobState ReasonCode ExitCode Vec<String> Vec<StepRow> }

macro_rules! take_some {
    ($($kind:ty)*) => {
        $(impl<'de> Fill<'de> for Option<$kind> {
            fn fill<A: SeqAccess<'de>>(&mut self, values: &mut A) -> Result<(), A::Error> {
                *self = values.next_element::<Self>()?.flatten();
                Ok(())
            }
        })*
    };
}
take_some! { u64 u32 f64 Instant CheckpointMarkRow GpuUseRow Box<RunDetail> }

/// A text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Fill<'de> for Cow<'de, str> {
    fn fill<A: SeqAccess<'de>>(&mut self, values: &mut A) -> Result<(), A::Error> {
        if let Some(Some(BorrowedText(text))) =
            values.next_element::<Option<BorrowedText<'de>>>()?
        {
            *self = text;
        }
        Ok(())
    }
}

impl<'de> Fill<'de> for Option<Cow<'de, str>> {
    fn fill<A: SeqAccess<'de>>(&mut self, values: &mut A) -> Result<(), A::Error> {
        *self = values
            .next_element::<Option<BorrowedText<'de>>>()?
            .flatten()
            .map(|BorrowedText(text)| text);
        Ok(())
    }
}
