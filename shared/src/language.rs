//! Defines the languages of candidates, and how candidates in each language are built, launched and trusted.
//!
//! The plan or the suffix of a source determines a candidate's language. The language in turn determines the toolchain,
//! the kind of artifact, the launcher, and the tier, which says how far the results can be trusted.

mod kinds;

use std::ffi::OsStr;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::kinds::{KINDS, Kind};
use crate::device::Device;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    C,
    Cpp,
    /// A shared library built elsewhere.
    So,
    /// CUDA with host code that launches its kernels.
    Cuda,
    /// CUDA with host code, for a card. A build records which kernels the host code launches for each entry, and the
    /// worker launches them.
    #[serde(rename = "cuda-recorded")]
    CudaRecorded,
    /// CUDA kernels without host code. The plan specifies how the worker launches them.
    #[serde(rename = "cuda-device")]
    CudaDevice,
    Ptx,
    Cubin,
    Python,
    /// The recorded PyTorch function itself. It has no sources.
    Torch,
    /// The recorded PyTorch function, compiled ahead of time by PyTorch's compiler. It has no sources either.
    #[serde(rename = "torch.compile")]
    TorchCompile,
    /// C++ with PyTorch's tensors, linked to an interpreter's libtorch.
    #[serde(rename = "torch-extension")]
    TorchExtension,
    /// CUDA with host code that uses PyTorch's tensors.
    #[serde(rename = "torch-cuda")]
    TorchCuda,
    /// Triton kernels that Triton's interpreter runs on the CPU.
    Triton,
    /// Triton kernels that are compiled ahead of time. The plan specifies how the worker launches them on the device.
    #[serde(rename = "triton-device")]
    TritonDevice,
}

/// The tool that makes a candidate's artifact from its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// The C compiler that `[build] cc` names.
    Cc,
    /// The C++ compiler that `[build] cxx` names.
    Cxx,
    /// No tool, because the source is already the artifact.
    Prebuilt,
    Nvcc,
    /// Nvcc, followed by a run of the host code in which its launches are recorded.
    NvccRecorded,
    /// NVRTC, the library that compiles kernels without host code, or nvcc if that library is missing.
    Nvrtc,
    /// No tool, because the interpreter that the plan names reads the sources.
    Python,
    /// No tool, because there are no sources.
    Torch,
    /// PyTorch's compiler, which runs in the interpreter that `[build] python` names and calls the compiler that
    /// `[build] cxx` names.
    TorchCompiler,
    /// The compiler that `[build] cxx` names, with the headers and libraries of the torch that `[build] python`
    /// imports.
    TorchExtension,
    /// Nvcc, with the headers and libraries of the torch that `[build] python` imports.
    TorchNvcc,
    /// Like `Python`, with an interpreter that has Triton.
    Triton,
    /// Triton's compiler, which runs in the interpreter that `[build] python` names.
    TritonCompiler,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactKind {
    SharedLibrary,
    Ptx,
    Cubin,
    /// A Python module.
    Module,
    /// The compiled calls of a PyTorch function: one shared library for each call.
    Graphs,
    /// Device code, with the launches that host code has made for each call.
    Launches,
}

impl ArtifactKind {
    pub const ALL: [Self; 6] =
        [Self::SharedLibrary, Self::Ptx, Self::Cubin, Self::Module, Self::Graphs, Self::Launches];

    /// True if the artifact contains machine code that runners load.
    pub const fn is_machine_code(self) -> bool {
        matches!(self, Self::SharedLibrary | Self::Graphs)
    }

    /// The name of an artifact's file in the run's folder of artifacts. `digest` is the digest of the file's content,
    /// in hex.
    pub fn file_name(self, digest: &str) -> String {
        format!("{digest}.{}", self.suffix())
    }

    /// The suffix of an artifact's file.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::SharedLibrary => "so",
            Self::Ptx => "ptx",
            Self::Cubin => "cubin",
            Self::Module => "py",
            Self::Graphs => "graphs",
            Self::Launches => "launches",
        }
    }
}

/// How an artifact is loaded and called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Launcher {
    /// A runner loads the artifact as a shared library and looks up its symbol.
    Dlopen,
    /// The worker launches the artifact's kernels on the device. No code of the candidate runs on the CPU.
    Kernel,
    /// Like `Dlopen`, in a runner whose CUDA runtime is the emulated device.
    CudaRuntime,
    /// A Python interpreter in a runner loads the artifact.
    Interpreter,
    /// Like `Dlopen`, in a runner that has already loaded libtorch.
    Libtorch,
    /// Like `Libtorch`, in a runner whose CUDA runtime is the emulated device.
    CudaLibtorch,
    /// Like `Interpreter`, but Triton's interpreter runs the kernels.
    Triton,
    /// An interpreter in a runner loads the compiled call of each entry.
    Graphs,
}

impl Launcher {
    pub const fn needs_python(self) -> bool {
        matches!(self, Self::Interpreter | Self::Libtorch | Self::CudaLibtorch | Self::Triton | Self::Graphs)
    }

    /// True if the launcher's runners load libtorch with the candidate.
    pub const fn needs_libtorch(self) -> bool {
        matches!(self, Self::Libtorch | Self::CudaLibtorch)
    }

    /// True if the CUDA runtime in the launcher's runners is the emulated device.
    pub const fn has_cuda_runtime(self) -> bool {
        matches!(self, Self::CudaRuntime | Self::CudaLibtorch)
    }

    /// True if the launcher's runners are interpreters. They are copied from a zygote, if one can be started.
    pub const fn is_interpreter(self) -> bool {
        matches!(self, Self::Interpreter | Self::Triton | Self::Graphs)
    }
}

/// How far a verdict can be trusted, from most to least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// The sandbox's guarantees hold in full.
    A,
    /// The candidate can forge objects of the interpreter. It cannot reach the clock, the expected outputs or the
    /// verdict.
    B,
    /// The candidate can call the device driver, or shares a process with the emulated device.
    C,
    /// The candidate can start processes.
    D,
}

impl Tier {
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
        }
    }

    /// The reason why a verdict of this tier can be trusted less than one of tier A.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::A => "nothing is weaker",
            Self::B => "the candidate can forge the interpreter's objects",
            Self::C => "the candidate can change what the device reports",
            Self::D => "the candidate may start processes",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::A, Self::B, Self::C, Self::D].into_iter().find(|tier| tier.name() == name)
    }
}

impl Language {
    /// The language's row of the table.
    pub const fn kind(self) -> &'static Kind {
        &KINDS[self as usize]
    }

    pub const fn name(self) -> &'static str {
        self.kind().name
    }

    pub fn of_suffix(suffix: &str) -> Option<Self> {
        KINDS.iter().find(|kind| kind.suffixes.contains(&suffix)).map(|kind| kind.language)
    }

    pub fn of_path(path: &Path) -> Option<Self> {
        path.extension().and_then(OsStr::to_str).and_then(Self::of_suffix)
    }

    /// True if the language's kernels run on a device other than the CPU.
    pub fn needs_device(self) -> bool {
        self.is_device_code() || self.kind().launcher.has_cuda_runtime()
    }

    /// True if the language needs an interpreter (`[build] python`) with Triton.
    pub fn needs_triton(self) -> bool {
        matches!(self, Self::Triton | Self::TritonDevice)
    }

    /// True if a build runs code that the candidate or its captures choose (a capture can choose the function that is
    /// compiled). Such code could end the compiler's process.
    pub fn build_runs_source(self) -> bool {
        matches!(self, Self::TritonDevice | Self::TorchCompile | Self::CudaRecorded)
    }

    /// True if no code of the candidate runs on the CPU when it is called. The worker then launches its kernels on a
    /// device.
    pub fn is_device_code(self) -> bool {
        self.kind().launcher == Launcher::Kernel
    }

    /// True if the plan specifies the launches, because candidates in this language have no host code.
    pub fn needs_launches(self) -> bool {
        self.is_device_code() && self != Self::CudaRecorded
    }

    /// The language in which a candidate runs on this device. CUDA with host code is recorded for a card.
    pub const fn on(self, device: Device) -> Self {
        match (self, device) {
            (Self::Cuda, Device::Cuda(_)) => Self::CudaRecorded,
            _ => self,
        }
    }

    /// The reason why the device cannot run this language, usually with a remedy; `None` if it can.
    pub fn unfit_for(self, device: Device) -> Option<String> {
        let name = self.name();
        match (self.is_device_code(), device) {
            (false, Device::Emulated) if self.needs_device() => None,
            (false, Device::Cpu) if self == Self::Cuda => Some(format!(
                "`{name}` does not run on the CPU (set `[run] device` to `cuda:0`, or to `emulated` if there is no card; for a \
                 file that has only `__global__` functions, write `language = \"cuda-device\"` with its launches)"
            )),
            (false, _) if self.needs_device() => Some(format!(
                "`{name}` runs on the emulated device only, and the device of this run is `{device}` (set `[run] device` to `emulated`)"
            )),
            (true, Device::Cpu) => Some(format!(
                "`{name}` runs on a device, not on the CPU (set `[run] device` to `cuda:0`, or to `emulated` if there is no card)"
            )),
            (false, Device::Cuda(_) | Device::Emulated) if self == Self::Triton => Some(format!(
                "`{name}` runs in Triton's interpreter on the CPU, and the device of this run is `{device}` (write `language = \"triton-device\"` with \
                 its launches to compile it for the device)"
            )),
            (false, Device::Cuda(_) | Device::Emulated) => Some(format!(
                "`{name}` runs on the CPU, and the device of this run is `{device}` (a run has only one device, so write a separate plan)"
            )),
            (true, Device::Emulated) if self == Self::Cubin => Some(
                "the emulated device runs PTX but no machine code (name the `.ptx` file, or the source with `language = \"cuda-device\"`)"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// The reason why candidates in this language are verified but not timed; `None` if they are timed.
    pub fn not_timed(self) -> Option<&'static str> {
        (self == Self::Triton).then_some(
            "Triton's interpreter runs its kernels on the CPU, so their time on a GPU is not known",
        )
    }

    /// False if the candidate is the recorded function itself.
    pub fn has_sources(self) -> bool {
        !matches!(self, Self::Torch | Self::TorchCompile)
    }

    /// The reason why a candidate in this language cannot have this source; `None` if it can.
    pub fn refuses(self, source: &Path) -> Option<&'static str> {
        let is_cuda = || Self::of_path(source) == Some(Self::Cuda);
        (self == Self::TorchExtension && is_cuda())
            .then_some("a torch-extension is C++ for the CPU (write `language = \"torch-cuda\"`, and set `[run] device` to `emulated`)")
    }

    /// The suffix for the file of a source that was submitted as text.
    pub fn suffix_of_text(self) -> &'static str {
        match self {
            Self::CudaDevice | Self::CudaRecorded | Self::TorchCuda => return "cu",
            Self::TritonDevice => return ArtifactKind::Module.suffix(),
            _ => {}
        }
        let kind = self.kind();
        let otherwise = if kind.artifact == ArtifactKind::Module { kind.artifact.suffix() } else { "cpp" };
        kind.suffixes.first().copied().unwrap_or(otherwise)
    }

    pub fn suffixes() -> impl Iterator<Item = &'static str> {
        KINDS.iter().flat_map(|kind| kind.suffixes.iter().copied())
    }

    /// Returns the language with this name, if this version can run candidates in it. The error lists all languages
    /// that it can run.
    pub fn runnable(name: &str) -> Result<Self, String> {
        let runnable = || KINDS.iter().filter(|kind| kind.missing.is_none() && kind.language.has_sources());
        runnable().find(|kind| kind.name == name).map(|kind| kind.language).ok_or_else(|| {
            let names: Vec<String> = runnable().map(|kind| format!("`{}`", kind.name)).collect();
            format!("unknown language `{name}`, expected one of {}", names.join(", "))
        })
    }

    /// Deserializes the optional language of a request, and refuses languages that are not
    /// [`runnable`](Self::runnable).
    pub fn deserialize_runnable<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Self>, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        name.map(|name| Self::runnable(&name)).transpose().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_has_its_own_row_name_and_suffixes() {
        for kind in KINDS {
            assert_eq!(kind.language.kind().language, kind.language);
            assert_eq!(serde_json::to_value(kind.language).expect("a word"), kind.name);
            for suffix in kind.suffixes {
                assert_eq!(Language::of_path(Path::new(&format!("a.b/k.{suffix}"))), Some(kind.language));
            }
        }
        let mut suffixes: Vec<_> = Language::suffixes().collect();
        suffixes.sort_unstable();
        assert!(suffixes.windows(2).all(|pair| pair[0] != pair[1]), "{suffixes:?}");
        for path in ["k", "k.C", "k.rs", "c"] {
            assert_eq!(Language::of_path(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn requests_accept_only_languages_that_this_version_runs() {
        #[derive(Deserialize)]
        struct Request {
            #[serde(default, deserialize_with = "Language::deserialize_runnable")]
            language: Option<Language>,
        }
        let read = |text: &str| serde_json::from_str::<Request>(text).map(|request| request.language);
        assert_eq!(read("{}").expect("none"), None);
        assert_eq!(read(r#"{"language": "cpp"}"#).expect("one"), Some(Language::Cpp));
        for name in ["torch", "torch.compile", "C", ""] {
            let error = read(&format!(r#"{{"language": "{name}"}}"#)).expect_err("refused").to_string();
            let expected = format!(
                "unknown language `{name}`, expected one of `c`, `cpp`, `so`, `cuda`, `cuda-recorded`, `cuda-device`, `ptx`, \
                 `cubin`, `python`, `torch-extension`"
            );
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
