//! Deserialises a map with some keys for a value itself and all others for its shared part, in one pass. Unlike serde's
//! `flatten` it buffers nothing, and errors name the path to the fault.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A value with keys of its own and a part in common with others.
pub(crate) trait OwnKeys<'de>: Default {
    const KEYS: &'static [&'static str];
    type Common: Deserialize<'de>;
    /// Takes the value of the key at this place of `KEYS`.
    fn read<A: MapAccess<'de>>(&mut self, key: usize, map: &mut A) -> Result<(), A::Error>;
    fn set_common(&mut self, common: Self::Common);
}

/// # Errors
/// Those of the values.
pub(crate) fn deserialize<'de, T: OwnKeys<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    from.deserialize_map(ObjectVisitor(PhantomData))
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: OwnKeys<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let mut whole = T::default();
        let common = T::Common::deserialize(MapAccessDeserializer::new(CommonKeys {
            map,
            own: &mut whole,
        }))?;
        whole.set_common(common);
        Ok(whole)
    }
}

/// The map without the value's own keys, which are read into the value on the way.
struct CommonKeys<'w, A, T> {
    map: A,
    own: &'w mut T,
}

impl<'de, A: MapAccess<'de>, T: OwnKeys<'de>> MapAccess<'de> for CommonKeys<'_, A, T> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let mut seed = Some(seed);
        loop {
            match self.map.next_key_seed(KeySeed {
                seed: &mut seed,
                own: T::KEYS,
            })? {
                None => return Ok(None),
                Some(KeyMatch::Other(value)) => return Ok(Some(value)),
                Some(KeyMatch::Own(key)) => self.own.read(key, &mut self.map)?,
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Reads a key; an own key does not use up the seed.
struct KeySeed<'s, K> {
    seed: &'s mut Option<K>,
    own: &'static [&'static str],
}

enum KeyMatch<V> {
    Own(usize),
    Other(V),
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for KeySeed<'_, K> {
    type Value = KeyMatch<K::Value>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for KeySeed<'_, K> {
    type Value = KeyMatch<K::Value>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<Self::Value, E> {
        if let Some(at) = self.own.iter().position(|own| *own == key) {
            return Ok(KeyMatch::Own(at));
        }
        let seed = self
            .seed
            .take()
            .expect("a key that is not one's own ends the search");
        seed.deserialize(key.into_deserializer())
            .map(KeyMatch::Other)
    }
}
