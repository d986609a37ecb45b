//! What every function returns, and the version of all of it. A number is never used for something else; one that is
//! retired stays here in a comment.

use core::ffi::c_char;

/// Version of the binary interface: changes with it break callers.
pub const ABI_MAJOR: u32 = 0;
/// Version of the binary interface: changes with it only add.
pub const ABI_MINOR: u32 = 4;

/// Done.
pub const OK: i32 = 0;
/// There is nothing to do: no event, nothing to read or to send, nothing within the timeout; or the answer is no.
pub const NOTHING: i32 = 1;
/// No room at the moment: try again later.
pub const NO_ROOM: i32 = 2;
/// The sidecar has ended in order, and nothing more will come.
pub const ENDED: i32 = 3;
/// The tunnel is down: keep the action, ask again later.
pub const DOWN: i32 = 16;
/// The tunnel was redialled a moment ago, or another action is on its way: keep the action, ask again later.
pub const HELD: i32 = 17;
/// The session is over: drop the action.
pub const GONE: i32 = 18;
/// The tunnel is being closed: drop the action.
pub const CLOSING: i32 = 19;

/// The caller: a pointer that has to point somewhere is NULL.
pub const ERR_NULL: i32 = -1;
/// The caller: `struct_size` is too small, absurd, or counts bytes that this library does not know and that are set.
pub const ERR_STRUCT_SIZE: i32 = -2;
/// The caller: a number is out of its range.
pub const ERR_VALUE: i32 = -3;
/// The caller: a text is not UTF-8, or holds what it must not.
pub const ERR_TEXT: i32 = -4;
/// The caller: a buffer is too short, or its length absurd.
pub const ERR_LENGTH: i32 = -5;
/// The caller: not now, or not with this handle (it may have been dropped).
pub const ERR_STATE: i32 = -6;
/// The caller: the memory is too small or not aligned.
pub const ERR_MEMORY: i32 = -7;
/// The caller: these two handles do not belong together.
pub const ERR_MISMATCH: i32 = -8;

/// A limit: an action is larger than its slot; raise the sidecar's `--action-bytes`.
pub const ERR_ACTION_TOO_LARGE: i32 = -100;
/// A limit: the caller has reserved all action slots.
pub const ERR_ALL_RESERVED: i32 = -101;

/// The sidecar: there is none.
pub const ERR_NO_SIDECAR: i32 = -200;
/// The sidecar: it said no; another worker may be attached.
pub const ERR_REFUSED: i32 = -201;
/// The sidecar: its region can't be used.
pub const ERR_REGION: i32 = -202;
/// The sidecar: it ended, and none followed.
pub const ERR_ORPHANED: i32 = -203;
/// The sidecar: it gave this worker's place to another one.
pub const ERR_REPLACED: i32 = -204;
/// The sidecar: it found nonsense in this worker's pages and reads them no more.
pub const ERR_DETACHED: i32 = -205;
/// The sidecar: its pages hold nonsense.
pub const ERR_DAMAGED: i32 = -206;

/// The system refused something.
pub const ERR_SYSTEM: i32 = -300;

/// This library: a mistake of its own. The handle is of no more use.
pub const ERR_BUG: i32 = -400;

/// The version of the binary interface that the library has: the major number in the high half, the minor in the low.
/// A caller that was compiled with this header can go on if the major numbers are equal and the library's minor number
/// is not smaller than `sidecar_ABI_MINOR`.
#[unsafe(no_mangle)]
pub extern "C" fn sidecar_abi_version() -> u32 {
    (ABI_MAJOR << 16) | ABI_MINOR
}

/// The name of a status, as in this header without `sidecar_`: static, ended by NUL, never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn sidecar_status_name(status: i32) -> *const c_char {
    let name = match status {
        OK => c"OK",
        NOTHING => c"NOTHING",
        NO_ROOM => c"NO_ROOM",
        ENDED => c"ENDED",
        DOWN => c"DOWN",
        HELD => c"HELD",
        GONE => c"GONE",
        CLOSING => c"CLOSING",
        ERR_NULL => c"ERR_NULL",
        ERR_STRUCT_SIZE => c"ERR_STRUCT_SIZE",
        ERR_VALUE => c"ERR_VALUE",
        ERR_TEXT => c"ERR_TEXT",
        ERR_LENGTH => c"ERR_LENGTH",
        ERR_STATE => c"ERR_STATE",
        ERR_MEMORY => c"ERR_MEMORY",
        ERR_MISMATCH => c"ERR_MISMATCH",
        ERR_ACTION_TOO_LARGE => c"ERR_ACTION_TOO_LARGE",
        ERR_ALL_RESERVED => c"ERR_ALL_RESERVED",
        ERR_NO_SIDECAR => c"ERR_NO_SIDECAR",
        ERR_REFUSED => c"ERR_REFUSED",
        ERR_REGION => c"ERR_REGION",
        ERR_ORPHANED => c"ERR_ORPHANED",
        ERR_REPLACED => c"ERR_REPLACED",
        ERR_DETACHED => c"ERR_DETACHED",
        ERR_DAMAGED => c"ERR_DAMAGED",
        ERR_SYSTEM => c"ERR_SYSTEM",
        ERR_BUG => c"ERR_BUG",
        _ => c"an unknown status",
    };
    name.as_ptr()
}
