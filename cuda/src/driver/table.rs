//! The functions of the driver that are used, and the proof that their signatures are the driver's.

use core::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice_attribute, CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUstream,
    CUuuid,
};

/// Declares the table, how it is filled, and compares each signature with the bindings that cudarc generated from
/// NVIDIA's header. Codes are taken as numbers: see [`crate::code`].
macro_rules! table {
    ($(fn $name:ident($($type:ty),*);)+) => {
        /// Entry points of a driver that is never unloaded.
        #[derive(Clone, Copy)]
        #[expect(non_snake_case, reason = "the driver's names")]
        pub(crate) struct Table {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> u32,)+
        }

        impl Table {
            /// Looks every function up. The error is the name of the first that is missing.
            pub(super) fn of(library: libloading::Library) -> Result<Self, &'static str> {
                let table = Self {
                    $($name: {
                        // SAFETY: the symbol is a function of this signature, compared below with NVIDIA's header.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> u32>(stringify!($name))
                        };
                        *symbol.map_err(|_| stringify!($name))?
                    },)+
                };
                // The pointers live as long as the process.
                core::mem::forget(library);
                Ok(table)
            }
        }

        $(const _: unsafe fn($($type),*) -> sys::CUresult = sys::$name;)+
    };
}

table! {
    fn cuInit(c_uint);
    fn cuDriverGetVersion(*mut c_int);
    fn cuDeviceGetCount(*mut c_int);
    fn cuDeviceGet(*mut c_int, c_int);
    fn cuDeviceGetName(*mut c_char, c_int, c_int);
    fn cuDeviceGetUuid(*mut CUuuid, c_int);
    fn cuDeviceGetUuid_v2(*mut CUuuid, c_int);
    fn cuDeviceTotalMem_v2(*mut usize, c_int);
    fn cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, c_int);
    fn cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    fn cuDevicePrimaryCtxRetain(*mut CUcontext, c_int);
    fn cuDevicePrimaryCtxRelease_v2(c_int);
    fn cuCtxPushCurrent_v2(CUcontext);
    fn cuCtxPopCurrent_v2(*mut CUcontext);
    fn cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    fn cuMemHostUnregister(*mut c_void);
    fn cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    fn cuMemFreeHost(*mut c_void);
    fn cuMemAlloc_v2(*mut CUdeviceptr, usize);
    fn cuMemFree_v2(CUdeviceptr);
    fn cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    fn cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    fn cuStreamCreate(*mut CUstream, c_uint);
    fn cuStreamDestroy_v2(CUstream);
    fn cuStreamSynchronize(CUstream);
    fn cuEventCreate(*mut CUevent, c_uint);
    fn cuEventDestroy_v2(CUevent);
    fn cuEventRecord(CUevent, CUstream);
    fn cuEventQuery(CUevent);
    fn cuEventSynchronize(CUevent);
    fn cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    fn cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    fn cuIpcCloseMemHandle(CUdeviceptr);
    fn cuIpcGetEventHandle(*mut CUipcEventHandle, CUevent);
    fn cuIpcOpenEventHandle(*mut CUevent, CUipcEventHandle);
}
