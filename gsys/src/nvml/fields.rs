//! NVML's field values: many numbers of one GPU in one call, with the scope that `nvml-wrapper` has no place for.

use std::collections::BTreeMap;
use std::ffi::c_int;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE as DOUBLE,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT as SIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG as SIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG as UNSIGNED_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT as UNSIGNED_SHORT,
};

use super::answer::check;

/// The scope of a field that has none.
pub const NO_SCOPE: u32 = 0;
/// The scope that means all links of a GPU.
pub const ALL_LINKS: u32 = u32::MAX;

/// What a GPU answered, by field and scope. A field that the board or the driver does not know is not in it.
#[derive(Debug, Default)]
pub struct Fields(BTreeMap<(u32, u32), u64>);

impl Fields {
    pub fn get(&self, field: u32, scope: u32) -> Option<u64> {
        self.0.get(&(field, scope)).copied()
    }

    /// The value of a field without scope.
    pub fn value(&self, field: u32) -> Option<u64> {
        self.get(field, NO_SCOPE)
    }

    /// The same where it is yes or no.
    pub fn flag(&self, field: u32) -> Option<bool> {
        self.value(field).map(|value| value != 0)
    }
}

/// Asks for all of `wanted` (field, scope) at once. `None` where the driver has no field values at all.
pub fn read_fields(device: &Device<'_>, wanted: &[(u32, u32)]) -> Result<Option<Fields>, Answer> {
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetFieldValues else {
        return Ok(None);
    };
    let mut values: Vec<nvmlFieldValue_t> = wanted
        .iter()
        .map(|&(field, scope)| nvmlFieldValue_t {
            fieldId: field,
            scopeId: scope,
            timestamp: 0,
            latencyUsec: 0,
            valueType: DOUBLE,
            nvmlReturn: SUCCESS,
            value: nvmlValue_t { ullVal: 0 },
        })
        .collect();
    // SAFETY: the handle is of the library the function comes from, and the array holds as many structures as are told.
    let code = unsafe { ask(device.handle(), values.len() as c_int, values.as_mut_ptr()) };
    match check(code) {
        Ok(()) => {}
        Err(Answer::FunctionNotFound | Answer::NotSupported) => return Ok(None),
        Err(error) => return Err(error),
    }
    let answered = values.iter().filter(|value| value.nvmlReturn == SUCCESS);
    let numbers =
        answered.filter_map(|value| Some(((value.fieldId, value.scopeId), number(value)?)));
    Ok(Some(Fields(numbers.collect())))
}

/// The number that the union holds; a negative one is no count.
fn number(value: &nvmlFieldValue_t) -> Option<u64> {
    let union = &value.value;
    // SAFETY: every member of the union is plain bits, all of it was initialised above, and the library says which it wrote.
    unsafe {
        match value.valueType {
            DOUBLE => Some(union.dVal as u64).filter(|_| union.dVal >= 0.0),
            UNSIGNED_INT => Some(union.uiVal.into()),
            UNSIGNED_LONG => Some(union.ulVal),
            UNSIGNED_LONG_LONG => Some(union.ullVal),
            UNSIGNED_SHORT => Some(union.usVal.into()),
            SIGNED_INT => union.siVal.try_into().ok(),
            SIGNED_LONG_LONG => union.sllVal.try_into().ok(),
            _ => None,
        }
    }
}
