//! Lists of keys and values as PMIx takes them, with all that they point to.

use std::ffi::{CString, c_char, c_void};

use super::library::{DataArray, Info, KEY_BYTES, NAME_BYTES, Proc, Value, ValueData};

const BOOL: u16 = 1;
const STRING: u16 = 3;
const UINT16: u16 = 13;
const UINT32: u16 = 14;
const INFO: u16 = 24;
const DATA_ARRAY: u16 = 39;
const PROC_RANK: u16 = 40;

/// Owns what its entries point to; moving it moves no entry.
#[derive(Default)]
pub struct InfoList {
    infos: Vec<Info>,
    texts: Vec<CString>,
    lists: Vec<(Box<DataArray>, InfoList)>,
}

impl InfoList {
    pub fn infos(&self) -> &[Info] {
        &self.infos
    }

    pub fn flag(self, key: &str, flag: bool) -> Self {
        self.with(key, BOOL, ValueData { flag })
    }

    pub fn uint32(self, key: &str, uint32: u32) -> Self {
        self.with(key, UINT32, ValueData { uint32 })
    }

    pub fn uint16(self, key: &str, uint16: u16) -> Self {
        self.with(key, UINT16, ValueData { uint16 })
    }

    pub fn rank(self, key: &str, uint32: u32) -> Self {
        self.with(key, PROC_RANK, ValueData { uint32 })
    }

    /// A text ends at its first NUL.
    pub fn text(mut self, key: &str, text: &str) -> Self {
        let text = c_text(text);
        let string = text.as_ptr();
        self.texts.push(text);
        self.with(key, STRING, ValueData { string })
    }

    pub fn list(mut self, key: &str, list: InfoList) -> Self {
        let array = Box::new(DataArray {
            kind: INFO,
            size: list.infos.len(),
            array: list.infos.as_ptr().cast::<c_void>(),
        });
        let address: *const DataArray = &*array;
        self.lists.push((array, list));
        self.with(key, DATA_ARRAY, ValueData { array: address })
    }

    fn with(mut self, key: &str, kind: u16, data: ValueData) -> Self {
        let mut value = Value {
            kind,
            data: ValueData { room: [0; 3] },
        };
        value.data = data;
        self.infos.push(Info {
            key: letters::<KEY_BYTES>(key),
            flags: 0,
            value,
        });
        self
    }
}

pub fn proc_of(name: &str, rank: u32) -> Proc {
    Proc {
        name: letters::<NAME_BYTES>(name),
        rank,
    }
}

pub fn c_text(text: &str) -> CString {
    let whole = text.split('\0').next().unwrap_or_default();
    CString::new(whole).unwrap_or_default()
}

/// With a NUL behind it, at least one.
fn letters<const BYTES: usize>(text: &str) -> [c_char; BYTES] {
    let mut letters = [0; BYTES];
    let room = letters[..BYTES - 1].iter_mut();
    room.zip(text.bytes())
        .for_each(|(letter, byte)| *letter = byte as c_char);
    letters
}
