//! Lets OpenMP threads sleep while they wait, unless the user says otherwise.
#![expect(unsafe_code, reason = "a function that must run before the OpenMP library reads its environment")]

use std::ffi::{c_char, c_int};

/// Threads that spin beside another busy process cost both of them most of their speed, and tools of a loop share
/// nodes. libgomp reads this variable in its constructor, before `main`; only functions of this section come earlier.
#[used]
#[unsafe(link_section = ".preinit_array")]
static SLEEP_BY_DEFAULT: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = sleep_by_default;

extern "C" fn sleep_by_default(_: c_int, _: *const *const c_char, _: *const *const c_char) {
    // SAFETY: both strings end with NUL, the last argument keeps what the user set, and no other thread exists yet.
    unsafe { libc::setenv(c"OMP_WAIT_POLICY".as_ptr(), c"PASSIVE".as_ptr(), 0) };
}
