//! A driver that misbehaves on command, for tests of programs that must survive it.
//!
//! An environment variable holds a list such as `hangs:cuMemPoolCreate,crashes:cuMemcpyDtoDAsync_v2,skips:packed`: the
//! functions that never return, the functions that abort, and the kernels that are not run although their launch
//! succeeds. Only the two functions of this example can hang or abort.

use std::time::Duration;

const VARIABLE: &str = "OPT_CUDA_TWIN_MISBEHAVIOUR";

fn is_ordered(what: &str, name: &str) -> bool {
    let orders = std::env::var(VARIABLE).unwrap_or_default();
    orders.split(',').any(|order| order.split_once(':') == Some((what, name)))
}

/// Hangs or aborts if the variable orders it for this function of the driver.
pub(crate) fn misbehave(function: &str) {
    if is_ordered("crashes", function) {
        std::process::abort();
    }
    while is_ordered("hangs", function) {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// True if launches of this kernel do nothing.
pub(crate) fn skips(kernel: &str) -> bool {
    is_ordered("skips", kernel)
}
