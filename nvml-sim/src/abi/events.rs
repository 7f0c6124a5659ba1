//! The event set: what the state's list of events becomes on the other side of `nvmlEventSetWait_v2`.

use std::ffi::{c_uint, c_ulonglong};
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventMigConfigChange, nvmlEventTypeClock,
    nvmlEventTypeDoubleBitEccError, nvmlEventTypePState, nvmlEventTypeSingleBitEccError,
    nvmlEventTypeXidCriticalError, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use super::{Handle, OutPointer};
use crate::library::{self, ask};
use crate::state::EventKind;

const SUPPORTED: c_ulonglong = (nvmlEventTypeXidCriticalError
    | nvmlEventTypeSingleBitEccError
    | nvmlEventTypeDoubleBitEccError
    | nvmlEventTypePState
    | nvmlEventTypeClock
    | nvmlEventMigConfigChange) as c_ulonglong;

nvml_functions! {
    fn nvmlDeviceGetSupportedEventTypes(device: Handle, types: OutPointer<c_ulonglong>) { ask(device, |_, _| types.put(SUPPORTED)) }

    fn nvmlEventSetCreate(set: OutPointer<Handle>) { set.put(library::create_event_set()?) }

    fn nvmlDeviceRegisterEvents(device: Handle, types: c_ulonglong, set: Handle) {
        if types & !SUPPORTED != 0 {
            return Err(NOT_SUPPORTED);
        }
        library::register_events(set, device, types)
    }

    fn nvmlEventSetWait_v2(set: Handle, data: OutPointer<nvmlEventData_t>, timeout_ms: c_uint) {
        let event = library::wait_for_event(set, Duration::from_millis(timeout_ms.into()))?;
        data.put(nvmlEventData_t {
            device: library::handle_of(&event.uuid) as nvmlDevice_t,
            eventType: library::event_type(event.kind),
            eventData: match event.kind {
                EventKind::Xid(number) => number,
                EventKind::SingleBitEcc | EventKind::DoubleBitEcc | EventKind::MigConfigChange => 0,
            },
            gpuInstanceId: event.instance.map_or(c_uint::MAX, |at| at[0]),
            computeInstanceId: event.instance.map_or(c_uint::MAX, |at| at[1]),
        })
    }

    fn nvmlEventSetFree(set: Handle) { library::free_event_set(set) }
}
