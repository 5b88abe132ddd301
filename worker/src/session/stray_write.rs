//! A store that a candidate made outside an output, and the text that describes it.

/// A store outside an output that did not cause a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StrayWrite {
    pub(crate) output: usize,
    /// The offset of the byte that changed: from the output's end, or, if negative, from its start.
    pub(crate) past: i64,
}

/// Describes a store outside the buffer `name`. For `past`, see [`StrayWrite`].
pub(crate) fn describe_stray_write(name: &str, past: i64) -> String {
    if past < 0 {
        format!("wrote before the start of {name} (at its start - {})", past.unsigned_abs())
    } else {
        format!("wrote past the end of {name} (at its end + {past})")
    }
}
