//! A value that most records leave at its default: a null pointer then, a box once it is written. Reads as the value.
//!
//! Keeps records small of which there are a hundred thousand. Default values are equal, with and without a box.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A default that can be borrowed for ever.
pub trait StaticDefault: Default + PartialEq + 'static {
    fn static_default() -> &'static Self;
}

/// A value, boxed where it is not the default.
#[derive(Clone, Default)]
pub struct Rare<T>(Option<Box<T>>);

impl<T: StaticDefault> From<T> for Rare<T> {
    fn from(value: T) -> Self {
        Self((value != *T::static_default()).then(|| Box::new(value)))
    }
}

impl<T: StaticDefault> Deref for Rare<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::static_default())
    }
}

impl<T: StaticDefault> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: StaticDefault> PartialEq for Rare<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: StaticDefault + Eq> Eq for Rare<T> {}

impl<T: StaticDefault + fmt::Debug> fmt::Debug for Rare<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: StaticDefault + Serialize> Serialize for Rare<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: StaticDefault + Deserialize<'de>> Deserialize<'de> for Rare<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    struct Past {
        ended: Option<u32>,
        text: String,
    }

    impl StaticDefault for Past {
        fn static_default() -> &'static Self {
            static USUAL: Past = Past {
                ended: None,
                text: String::new(),
            };
            &USUAL
        }
    }

    #[test]
    fn what_was_never_written_has_no_box_and_reads_as_usual() {
        let mut past = Rare::<Past>::default();
        assert_eq!((past.ended, past.text.as_str()), (None, ""));
        assert!(past.0.is_none());
        past.ended = None;
        assert_eq!(past, Rare::default(), "a box of the usual is the usual");
        past.ended = Some(7);
        assert_ne!(past, Rare::default());
    }

    #[test]
    fn documents_are_those_of_the_value_and_the_usual_reads_without_a_box() {
        let read: Rare<Past> = serde_json::from_str("{}").unwrap();
        assert!(read.0.is_none());
        let some = Rare::from(Past {
            ended: Some(3),
            ..Past::default()
        });
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(text, r#"{"ended":3,"text":""}"#);
        assert_eq!(serde_json::from_str::<Rare<Past>>(&text).unwrap(), some);
    }
}
