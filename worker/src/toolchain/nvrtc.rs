//! Builds kernels without host code, with NVRTC (a library that a separate process loads), or with nvcc if NVRTC is
//! missing.
//!
//! For a run on a card, NVRTC produces machine code for this card; nvcc and older versions of NVRTC produce PTX. For
//! the emulated device, both compilers produce PTX. A flag can select another architecture.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use opt_shared::device::{ComputeCapability, Device};
use opt_shared::kernel_files::{KernelFile, KernelFiles};
use opt_shared::language::ArtifactKind;
use opt_shared::message::BuildTask;

use super::c::operand;
use super::{Folders, Program, Recipe, Step, Toolchain};

/// The architecture for which PTX is built by default. PTX is built for the emulated device, and by compilers that do
/// not build machine code for the card. Cards of compute capability 8.0 or higher can run this PTX.
pub(super) const PTX_FOR: &str = "compute_80";
/// The folders in which toolkits are usually installed.
const KNOWN_FOLDERS: [&str; 5] =
    ["/usr/local/cuda", "/opt/cuda", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
/// Environment variables that contain the path of a toolkit's folder.
const VARIABLES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];
/// Subfolders that may contain the library. They are looked up in a toolkit, in a folder of Python packages, and in a
/// virtual environment.
const LIBRARY_FOLDERS: [&str; 6] =
    ["", "lib64", "lib", "targets/*/lib", "nvidia/*/lib", "lib/python3*/site-packages/nvidia/*/lib"];
const LIBRARY: &str = "libnvrtc.so";
/// The name of the header folder, which lies beside the library's folder.
const HEADERS: &str = "include";
const NVCC: &str = "nvcc";
/// The number of bytes at the start of an artifact in which the version of its compiler is searched.
const SEARCHED: u64 = 4 << 20;
/// Subfolders that may contain nvcc.
const NVCC_FOLDERS: [&str; 4] = ["", "bin", "nvidia/*/bin", "lib/python3*/site-packages/nvidia/*/bin"];

pub(super) struct Nvrtc;

impl Toolchain for Nvrtc {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let [source] = folders.files.sources.as_slice() else {
            return Recipe::Refused("a kernel without host code must be one source file".to_owned());
        };
        let compiler = find(&task.build.toolchain);
        let has_machine_code = compiler.as_ref().is_some_and(Compiler::builds_machine_code);
        let target = Target::of(
            &task.build.extra_flags,
            task.card.map(|card| card.capability).filter(|_| has_machine_code),
        );
        if task.device == Device::Emulated && target.artifact == ArtifactKind::Cubin {
            let why =
                format!("the emulated device runs only PTX, and `{}` asks for machine code", target.flag);
            return Recipe::Refused(why);
        }
        let Some(compiler) = compiler else {
            return Recipe::Unavailable(MISSING.to_owned());
        };
        if let (Compiler::Nvcc(_), Some(why)) = (&compiler, name_that_a_shell_changes(folders.files)) {
            return Recipe::Refused(why);
        }
        let output = folders.scratch.join(format!("candidate.{}", target.artifact.suffix()));
        let mut arguments: Vec<OsString> = vec![target.flag.clone().into(), "-lineinfo".into()];
        if let Compiler::Nvcc(_) = compiler {
            arguments.push(if target.artifact == ArtifactKind::Ptx { "-ptx" } else { "-cubin" }.into());
        }
        let flags = task.build.extra_flags.iter().filter(|flag| **flag != target.flag);
        arguments.extend(flags.map(OsString::from));
        let headers = compiler.headers();
        for folder in
            task.build.include.iter().map(PathBuf::as_path).chain([folders.include]).chain(headers.as_deref())
        {
            let mut flag = OsString::from("-I");
            flag.push(folder);
            arguments.push(flag);
        }
        arguments.extend(["-o".into(), output.clone().into(), operand(&source.relative)]);
        let mut readable = task.build.include.clone();
        readable.extend(headers);
        let (compiler, program, toolchain) = match compiler {
            Compiler::Library(library) => {
                let folder = library.parent().map(Path::to_owned);
                ("NVRTC".to_owned(), Program::Nvrtc(library), folder)
            }
            Compiler::Nvcc(path) => {
                let root = path.parent().and_then(Path::parent).map(Path::to_owned);
                (path.display().to_string(), Program::OnPath, root)
            }
        };
        Recipe::Run(Step {
            compiler,
            program,
            version: None,
            arguments,
            output,
            artifact: target.artifact,
            readable,
            toolchain: toolchain.into_iter().collect(),
            next: None,
        })
    }
}

/// Returns why the sources cannot be compiled if a shell would change one of their names. The shell matters because
/// nvcc passes names to a shell, in double quotes.
pub(super) fn name_that_a_shell_changes(files: &KernelFiles) -> Option<String> {
    let is_changed = |file: &&KernelFile| {
        let name = file.relative.as_os_str().as_encoded_bytes();
        name.iter().any(|byte| byte.is_ascii_control() || b"$`\"\\!".contains(byte))
    };
    let name = files.sources.iter().find(is_changed)?.relative.display();
    Some(format!("nvcc passes the name `{name}` to a shell, which would change it (rename the file)"))
}

const MISSING: &str = "no CUDA compiler was found: neither NVRTC (libnvrtc.so) nor nvcc (name a folder of the CUDA toolkit, or of a \
     Python environment with `nvidia-cuda-nvrtc`, in [build] toolchain)";

struct Target {
    /// The compiler option that selects the architecture.
    flag: String,
    artifact: ArtifactKind,
}

impl Target {
    /// Returns the target that the plan's flags select. Without such a flag, the target is machine code for the card,
    /// because a card's driver refuses PTX that is newer than the driver. If `capability` is `None`, the target is PTX.
    fn of(flags: &[String], capability: Option<ComputeCapability>) -> Self {
        let named = flags.iter().rev().find_map(|flag| {
            let (name, value) = flag.split_once('=')?;
            ["-arch", "--gpu-architecture"].contains(&name).then_some((flag, value))
        });
        match named {
            Some((flag, value)) if value.starts_with("sm_") => {
                Self { flag: flag.clone(), artifact: ArtifactKind::Cubin }
            }
            Some((flag, _)) => Self { flag: flag.clone(), artifact: ArtifactKind::Ptx },
            None => match capability {
                Some(card) => {
                    Self { flag: format!("-arch={}", card.machine_code()), artifact: ArtifactKind::Cubin }
                }
                None => Self { flag: format!("-arch={PTX_FOR}"), artifact: ArtifactKind::Ptx },
            },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Compiler {
    Library(PathBuf),
    Nvcc(PathBuf),
}

impl Compiler {
    /// Returns true for NVRTC of CUDA 12 or later. Its PTX may be too new for a card's driver, and it supports targets
    /// such as `sm_90a`. Returns false for nvcc and for older versions of NVRTC, which build PTX by default.
    fn builds_machine_code(&self) -> bool {
        const FIRST: u32 = 12;
        match self {
            Self::Library(path) => version_of(&name_of(path)).first().is_some_and(|&major| FIRST <= major),
            Self::Nvcc(_) => false,
        }
    }

    /// Returns the folder of the toolkit's headers (such as `cuda_fp16.h`), if the toolkit has one.
    fn headers(&self) -> Option<PathBuf> {
        let (Self::Library(path) | Self::Nvcc(path)) = self;
        let headers = path.parent()?.parent()?.join(HEADERS);
        headers.join("cuda_fp16.h").is_file().then_some(headers)
    }
}

/// Describes the compiler that a build with these folders would use: `yes NVRTC, PATH` or `yes nvcc, PATH`, or else
/// `no` and the reason.
pub(crate) fn describe(toolchain: &[PathBuf]) -> String {
    match find(toolchain) {
        Some(Compiler::Library(path)) => format!("yes NVRTC, {}", path.display()),
        Some(Compiler::Nvcc(path)) => format!("yes nvcc, {}", path.display()),
        None => format!("no {MISSING}"),
    }
}

/// Returns the version that NVRTC writes into its output, such as `NVRTC 13.0.88`, or only `NVRTC` if no version is
/// found. In PTX, the version is in the first lines, and in machine code it is in a note.
pub(crate) fn version_in(built: impl Read) -> String {
    let mut bytes = Vec::new();
    let read = built.take(SEARCHED).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let release = read.ok().and_then(|_| text.split_once("compilation tools, release "));
    let version = release.and_then(|(_, rest)| rest.split_once(", V")).map_or("", |(_, version)| version);
    let length = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    if length == 0 { "NVRTC".to_owned() } else { format!("NVRTC {}", &version[..length]) }
}

/// Finds the library in the folders of `roots`. If there is none, finds nvcc.
fn find(toolchain: &[PathBuf]) -> Option<Compiler> {
    let library = roots(toolchain).iter().find_map(|root| library_in(root)).map(Compiler::Library);
    library.or_else(|| nvcc(toolchain).map(Compiler::Nvcc))
}

/// Returns the folders in which to look: first the named ones, then those of the environment, then the usual ones.
fn roots(toolchain: &[PathBuf]) -> Vec<PathBuf> {
    let variables = VARIABLES.iter().filter_map(std::env::var_os).map(PathBuf::from);
    toolchain.iter().cloned().chain(variables).chain(KNOWN_FOLDERS.map(PathBuf::from)).collect()
}

/// Finds nvcc in the folders of `roots`, or on PATH.
pub(super) fn nvcc(toolchain: &[PathBuf]) -> Option<PathBuf> {
    let roots = roots(toolchain);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_roots = roots.iter().flat_map(|root| NVCC_FOLDERS.iter().flat_map(|below| expand(root, below)));
    let mut folders = in_roots.chain(std::env::split_paths(&path));
    folders.find_map(|folder| Some(folder.join(NVCC)).filter(|nvcc| nvcc.is_file()))
}

/// Returns the newest library in the first subfolder that contains one.
fn library_in(root: &Path) -> Option<PathBuf> {
    LIBRARY_FOLDERS.iter().find_map(|below| {
        let mut found: Vec<PathBuf> = expand(root, below)
            .iter()
            .flat_map(|folder| entries(folder))
            .filter(|path| name_of(path).starts_with(LIBRARY) && path.is_file())
            .collect();
        found.sort_by_key(|path| version_of(&name_of(path)));
        found.pop()
    })
}

/// Returns the numbers in a library's name. They are compared as numbers, so that 12.10 is newer than 12.9.
fn version_of(name: &str) -> Vec<u32> {
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// Returns the paths in `root` that match the pattern `below`, each of whose components may contain one `*`. Components
/// without a `*` are appended unchecked, so a returned path may not exist.
fn expand(root: &Path, below: &str) -> Vec<PathBuf> {
    below.split('/').filter(|name| !name.is_empty()).fold(vec![root.to_owned()], |folders, name| {
        let Some((start, end)) = name.split_once('*') else {
            return folders.into_iter().map(|folder| folder.join(name)).collect();
        };
        let matches = |path: &PathBuf| {
            let name = name_of(path);
            name.starts_with(start) && name.ends_with(end)
        };
        folders.iter().flat_map(|folder| entries(folder)).filter(matches).collect()
    })
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, "").expect("written");
    }

    #[test]
    fn names_that_a_shell_would_change_are_refused() {
        for (name, is_refused) in [
            ("plain-1.2_x.cu", false),
            ("with space.cu", false),
            ("größe.cu", false),
            ("`id`.cu", true),
            ("$(id).cu", true),
            ("a\"b.cu", true),
            ("a\\b.cu", true),
            ("a\nb.cu", true),
        ] {
            let files =
                KernelFiles::find(&[Path::new("/k").join(name)], opt_shared::language::Language::Cuda);
            assert_eq!(name_that_a_shell_changes(&files).is_some(), is_refused, "{name}");
        }
    }

    #[test]
    fn version_of_nvrtc_is_found_in_ptx_and_in_machine_code() {
        for (built, expected) in [
            (
                &b"//\n// Cuda compilation tools, release 13.5, V13.5.37\n// Based on NVVM\n"[..],
                "NVRTC 13.5.37",
            ),
            (
                b"\x7fELF\xff\x00Cuda compilation tools, release 13.0, V13.0.88\0Build system\0",
                "NVRTC 13.0.88",
            ),
            (b"\x7fELF\xff\x00Cuda compilation tools, release 13.0", "NVRTC"),
            (b"", "NVRTC"),
        ] {
            assert_eq!(version_in(built), expected);
        }
    }

    #[test]
    fn kernels_are_built_for_the_named_architecture_or_else_for_the_card() {
        let hopper = ComputeCapability { major: 9, minor: 0 };
        for (flags, card, flag, artifact) in [
            (&[][..], None, "-arch=compute_80", ArtifactKind::Ptx),
            (&[], Some(hopper), "-arch=sm_90a", ArtifactKind::Cubin),
            (&["-arch=compute_80"], Some(hopper), "-arch=compute_80", ArtifactKind::Ptx),
            (
                &["--gpu-architecture=sm_80", "-lineinfo"],
                None,
                "--gpu-architecture=sm_80",
                ArtifactKind::Cubin,
            ),
        ] {
            let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
            let target = Target::of(&flags, card);
            assert_eq!((target.flag.as_str(), target.artifact), (flag, artifact), "{flags:?} {card:?}");
        }
    }

    #[test]
    fn only_newer_libraries_build_machine_code() {
        for (name, expected) in [
            ("libnvrtc.so.13", true),
            ("libnvrtc.so.12.8.93", true),
            ("libnvrtc.so.11.2", false),
            ("libnvrtc.so", false),
        ] {
            assert_eq!(Compiler::Library(name.into()).builds_machine_code(), expected, "{name}");
        }
        assert!(!Compiler::Nvcc("/usr/local/cuda-13/bin/nvcc".into()).builds_machine_code());
    }

    #[test]
    fn newest_library_of_a_folder_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        assert_eq!(library_in(root), None);
        let package = root.join("lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        touch(&package);
        touch(&package.with_file_name("libnvrtc-builtins.so.13.0"));
        assert_eq!(library_in(root), Some(package.clone()));
        assert_eq!(library_in(&root.join("lib/python3.11/site-packages")), Some(package));
        touch(&root.join("lib64/libnvrtc.so.12.9"));
        touch(&root.join("lib64/libnvrtc.so.12.10"));
        touch(&root.join("lib64/libnvrtc_static.a"));
        assert_eq!(library_in(root), Some(root.join("lib64/libnvrtc.so.12.10")));
    }

    #[test]
    fn named_folders_come_first_and_nvrtc_before_nvcc() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        touch(&one.join("bin/nvcc"));
        let named = [one.clone(), other.clone()];
        if library_in(Path::new("/usr/local/cuda")).is_none() {
            assert_eq!(find(&named), Some(Compiler::Nvcc(one.join("bin/nvcc"))));
        }
        touch(&other.join("libnvrtc.so.13"));
        touch(&folder.path().join("include/cuda_fp16.h"));
        let found = find(&named).expect("a library");
        assert_eq!(found, Compiler::Library(other.join("libnvrtc.so.13")));
        assert_eq!(found.headers(), Some(folder.path().join("include")));
        assert!(describe(&named).starts_with("yes NVRTC, /"), "{}", describe(&named));
    }
}
