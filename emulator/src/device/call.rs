//! Lists the functions of a device that a test can make fail.

/// The functions of a device for which `fail_call` can inject a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Alloc,
    Free,
    Read,
    Write,
    Fill,
    Load,
    Launch,
}

impl Call {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fill => "fill",
            Self::Load => "load",
            Self::Launch => "launch",
        }
    }
}
