//! The CUDA runtime that a candidate's host code uses when it runs on the emulated device.
//!
//! A candidate's library is linked so that its calls of the CUDA runtime reach the functions in `exports`, `further`
//! and `queries`, which this executable exports. Inputs and outputs stay where a runner has mapped them. The device
//! gives them addresses that host code cannot use, as on a card. Every operation is complete when its call returns.
//!
//! The candidate shares this process and can forge all of this state, so a call without a fault proves nothing. Only
//! the worker's own comparison of the outputs decides whether the candidate passes.

mod exports;
mod fat_binary;
mod further;
mod memory;
mod properties;
mod queries;
pub(super) mod recording;
mod report;

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use opt_emulator::{Config, Device, Fault, Function, Launch, Limit, LoadError, Module};

pub(super) use self::memory::{read, show_input, show_output};
use self::report::CallErrors;

/// The names of the exported functions, one in each line. The build script exports them with the prefix `__wrap_`, and
/// `toolchain::cuda` redirects calls to them with the linker's option `--wrap`. The prefix avoids conflicts with a real
/// CUDA runtime in a library.
pub(crate) const FUNCTIONS: &str = include_str!("functions.txt");

/// The name of the device in messages, and the name that replaces it where launches are recorded.
pub(crate) const DEVICE_NAME: &str = "the emulated device";
pub(crate) const RECORDER_NAME: &str = "the launch recorder";

/// The prefixes that the names of functions in CUDA's libraries have.
const LIBRARIES: [&str; 7] = ["cuda", "cublas", "cudnn", "cufft", "curand", "cusolver", "cusparse"];

// Error codes of the runtime (`cudaError_t`).
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_CONFIGURATION: u32 = 9;
const INVALID_DEVICE: u32 = 101;
const INVALID_SYMBOL: u32 = 13;
const INVALID_FUNCTION: u32 = 98;
const NO_KERNEL_IMAGE: u32 = 209;
const NOT_SUPPORTED: u32 = 801;
/// The size of the device's memory, in bytes. What is allocated there counts towards the runner's own memory limit.
const MEMORY: u64 = 8 << 30;

static RUNTIME: LazyLock<Mutex<Runtime>> = LazyLock::new(|| Mutex::new(Runtime::new()));

fn runtime() -> MutexGuard<'static, Runtime> {
    RUNTIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fat binary that the candidate's library has registered.
struct Image {
    /// The PTX, or the reason why there is none.
    text: Result<String, String>,
    /// The machine code for the card on which recorded launches will run, if the library has it.
    machine_code: Option<Vec<u8>>,
    /// The module. It is loaded when it is first used, as by a card's driver.
    module: Option<Module>,
}

/// A kernel or a variable, identified by the index of the image that contains it and by its name in that image.
#[derive(Clone)]
struct Symbol {
    image: usize,
    name: String,
}

struct Runtime {
    device: Device,
    images: Vec<Image>,
    /// The kernels and variables, by the addresses that host code uses for them.
    symbols: HashMap<usize, Symbol>,
    /// The device addresses of inputs and outputs, by their address and size in this process.
    mapped: HashMap<(usize, usize), u64>,
    /// The sizes and names of inputs and outputs, by their device addresses. The names are for messages.
    names: BTreeMap<u64, (u64, String)>,
    /// The number of launches in the current call of the candidate.
    launches: usize,
    next_handle: usize,
    /// The dynamic shared memory that `cudaFuncSetAttribute` has allowed a kernel, in bytes, by the kernel's host
    /// address.
    dynamic_shared: HashMap<usize, u64>,
    /// The error that `cudaGetLastError` returns.
    last: u32,
    errors: CallErrors,
    /// The architecture of the card on which recorded launches will run, such as 90; `None` if there is no card.
    card: Option<u32>,
    /// What the current call does, if it is recorded instead of executed.
    recording: Option<recording::Recording>,
}

impl Runtime {
    fn new() -> Self {
        // One host thread is enough, because results do not depend on the number of threads, and the runner's CPU
        // limits may allow no more.
        let config =
            Config { memory: MEMORY, threads: 1, check_uninitialised_global: true, ..Config::default() };
        Self {
            device: Device::new(config),
            images: Vec::new(),
            symbols: HashMap::new(),
            mapped: HashMap::new(),
            names: BTreeMap::new(),
            launches: 0,
            next_handle: 0,
            dynamic_shared: HashMap::new(),
            last: 0,
            errors: CallErrors::default(),
            card: None,
            recording: None,
        }
    }

    /// Records an error code, so that `cudaGetLastError` returns it, and also returns the code.
    fn result(&mut self, code: u32) -> u32 {
        if code != 0 {
            self.last = code;
        }
        code
    }

    /// Records a fault of the device, and returns the fault's error code.
    fn fault(&mut self, fault: &Fault, what: &str) -> u32 {
        let names = &self.names;
        let name = |address: u64| {
            let (start, (bytes, name)) = names.range(..=address).next_back()?;
            (address - start < *bytes).then(|| name.clone())
        };
        self.errors.add_fault(fault, what, name);
        self.result(fault.code())
    }

    /// Records that the candidate used a feature that the emulated device lacks, and returns the error code.
    fn unsupported(&mut self, what: &str) -> u32 {
        self.errors.add_unsupported(what);
        self.result(NOT_SUPPORTED)
    }

    /// Records that the runtime refused a request, and returns the error code.
    fn refused(&mut self, code: u32, what: String) -> u32 {
        self.errors.add_refusal(what);
        self.result(code)
    }

    /// Allocates memory of the device. Returns its address, or an error code.
    fn allocate(&mut self, bytes: u64) -> Result<u64, u32> {
        if self.recording.is_some() {
            return self.record_allocation(bytes);
        }
        let allocated = self.device.alloc(bytes);
        allocated.map_err(|fault| self.fault(&fault, "while memory was being allocated"))
    }

    fn free(&mut self, address: u64) -> u32 {
        if self.recording.is_some() {
            return self.record_free(address);
        }
        let result = self.device.free(address);
        self.code_of(result, "while memory was being freed")
    }

    fn fill(&mut self, address: u64, byte: u8, bytes: u64) -> u32 {
        if self.recording.is_some() {
            return self.record_fill(address, byte, bytes);
        }
        let result = self.device.fill(address, byte, bytes);
        self.code_of(result, "while memory was being set")
    }

    /// Returns the error code of an operation on the device. If the operation failed, also records the fault.
    fn code_of(&mut self, result: Result<(), Fault>, what: &str) -> u32 {
        match result {
            Ok(()) => 0,
            Err(fault) => self.fault(&fault, what),
        }
    }

    fn new_handle(&mut self) -> usize {
        // This is never null, and never an address of host memory.
        self.next_handle += 16;
        self.next_handle
    }

    fn module(&mut self, image: usize) -> Result<Module, u32> {
        let Some(found) = self.images.get(image) else { return Err(self.result(INVALID_FUNCTION)) };
        if let Some(module) = &found.module {
            return Ok(module.clone());
        }
        let text = match &found.text {
            Ok(text) => text,
            Err(why) => {
                let why = why.clone();
                self.errors.add_unsupported(&why);
                return Err(self.result(NO_KERNEL_IMAGE));
            }
        };
        match self.device.load(text) {
            Ok(module) => {
                self.images[image].module = Some(module.clone());
                Ok(module)
            }
            Err(LoadError::Device(fault)) => {
                Err(self.fault(&fault, "while the kernels of the library were being loaded"))
            }
            Err(error @ LoadError::Unsupported { .. }) => {
                self.errors.add_unsupported(&error.to_string());
                Err(self.result(error.code()))
            }
            Err(error) => {
                Err(self.refused(error.code(), format!("the PTX of the library cannot be loaded: {error}")))
            }
        }
    }

    /// Returns a kernel, the index of its image, and its name.
    fn function(&mut self, host: usize) -> Result<(Function, usize, String), u32> {
        let Some(Symbol { image, name }) = self.symbols.get(&host).cloned() else {
            return Err(self.refused(
                INVALID_FUNCTION,
                "a function that was launched or queried is not a kernel".to_owned(),
            ));
        };
        match self.module(image)?.function(&name) {
            Some(function) => Ok((function, image, name)),
            None => Err(self.refused(INVALID_FUNCTION, format!("the PTX has no kernel `{name}`"))),
        }
    }

    fn variable(&mut self, host: usize) -> Result<(u64, u64), u32> {
        if self.recording.is_some() {
            return Err(self.unsupported(
                "host code uses a variable of the device, which the emulated device does not record",
            ));
        }
        let Some(Symbol { image, name }) = self.symbols.get(&host).cloned() else {
            return Err(self.result(INVALID_SYMBOL));
        };
        match self.module(image)?.global(&name) {
            Some(found) => Ok(found),
            None => Err(self.refused(INVALID_SYMBOL, format!("the PTX has no variable `{name}`"))),
        }
    }

    fn part_of_variable(&mut self, host: usize, offset: usize, bytes: usize) -> Result<usize, u32> {
        let (address, size) = self.variable(host)?;
        match offset.checked_add(bytes) {
            Some(end) if end as u64 <= size => Ok(exports::pointer(address).addr() + offset),
            _ => Err(self.result(INVALID_VALUE)),
        }
    }

    /// Runs or records a kernel. Returns an error code of the CUDA runtime.
    fn launch(
        &mut self,
        function: &Function,
        (image, name): (usize, &str),
        shape: ([u32; 3], [u32; 3]),
        shared: u64,
        params: Vec<Vec<u8>>,
    ) -> u32 {
        self.launches += 1;
        if self.recording.is_some() {
            return self.record_launch((image, name), shape, shared, params, function.max_threads());
        }
        let (grid, block) = shape;
        let limit = Limit { time: std::time::Duration::MAX, ..Limit::default() };
        let launch = Launch { grid, block, shared_bytes: shared, params, limit };
        match self.device.launch(function, &launch) {
            Ok(summary) => {
                // Errors are ignored here, because the candidate may have closed its standard output.
                let mut output = std::io::stdout();
                let _ = output.write_all(summary.printed.as_bytes()).and_then(|()| output.flush());
                0
            }
            Err(fault) => {
                let what = format!("in launch {} (`{name}`)", self.launches);
                self.fault(&fault, &what)
            }
        }
    }
}

/// Forgets the launches, errors and faults of earlier calls. Call it before each call of the candidate.
pub(super) fn begin_call() {
    let mut runtime = runtime();
    runtime.launches = 0;
    runtime.last = 0;
    runtime.errors = CallErrors::default();
    // Each call starts without a fault, as in a new process. The verdict on the call that caused the fault is already
    // known.
    runtime.device.forget_fault();
}

/// Ends a call of the candidate that returned `code`. Returns the error that explains why the call failed, with the
/// prefix that stands for its status. Returns `None` if there was no error, or only refused requests that the candidate
/// handled.
pub(super) fn end_call(code: i32) -> Option<String> {
    let runtime = &mut *runtime();
    let is_pending = runtime.last != 0;
    std::mem::take(&mut runtime.errors).text(code != 0 || is_pending)
}

/// Returns the loader's message, or a clearer one if the candidate calls a CUDA function that this runtime lacks.
pub(super) fn explain(loader: String) -> String {
    let Some((_, symbol)) = loader.rsplit_once("undefined symbol: ") else { return loader };
    let symbol = symbol.trim();
    let name = demangled(symbol);
    let c_name = symbol.trim_start_matches('_');
    let is_of_driver =
        c_name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_uppercase()));
    let is_of_cuda = is_of_driver || LIBRARIES.iter().any(|prefix| c_name.starts_with(prefix));
    if is_of_cuda || name.starts_with("c10::cuda::") || name.starts_with("at::cuda::") {
        format!("{}the emulated device does not have the CUDA function `{name}`", report::UNSUPPORTED)
    } else {
        loader
    }
}

/// Returns the name of a C++ function with its namespaces but without its parameters. Returns any other symbol
/// unchanged.
fn demangled(symbol: &str) -> String {
    let Some(nested) = symbol.strip_prefix("_ZNK").or_else(|| symbol.strip_prefix("_ZN")) else {
        return symbol.to_owned();
    };
    let (mut names, mut rest) = (Vec::new(), nested);
    while let Some(digits) = rest.find(|it: char| !it.is_ascii_digit()).filter(|&digits| digits != 0) {
        let length = rest[..digits].parse::<usize>().ok();
        let Some(name) = length.and_then(|length| rest[digits..].get(..length)) else { break };
        names.push(name);
        rest = &rest[digits + name.len()..];
    }
    if names.is_empty() { symbol.to_owned() } else { names.join("::") }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn executable_exports_every_function() {
        for name in FUNCTIONS.lines() {
            let symbol = CString::new(format!("__wrap_{name}")).expect("a name");
            // SAFETY: a NUL-terminated name.
            let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
            assert!(!address.is_null(), "{name}");
        }
    }

    #[test]
    fn missing_functions_of_cuda_are_named_and_others_are_left_to_the_loader() {
        let missing = |name: &str| explain(format!("the candidate's library: undefined symbol: {name}"));
        for name in ["cudaGraphCreate", "__cudaRegisterTexture", "cuMemAlloc_v2"] {
            assert_eq!(
                missing(name),
                format!("opt.Unsupported: the emulated device does not have the CUDA function `{name}`")
            );
        }
        assert_eq!(missing("dgemm_"), "the candidate's library: undefined symbol: dgemm_");
        for (symbol, name) in [
            ("_ZN2at4cuda24getCurrentCUDABlasHandleEv", "at::cuda::getCurrentCUDABlasHandle"),
            ("_ZNK3c104cuda10CUDAStream5queryEv", "c10::cuda::CUDAStream::query"),
            ("cublasSgemm_v2", "cublasSgemm_v2"),
        ] {
            let text = missing(symbol);
            assert!(text.ends_with(&format!("the CUDA function `{name}`")), "{text}");
        }
        for symbol in [
            "cumsum_kernel",
            "_ZN7cutlass4gemmEv",
            "_ZN2at3addEv",
            "_ZN",
            "_ZN99x",
            "_ZN2\u{e9}\u{e9}",
            "_ZN18446744073709551616a",
        ] {
            assert!(missing(symbol).ends_with(symbol), "{symbol}");
        }
    }

    #[test]
    fn unsupported_feature_is_reported_once_and_refusal_only_if_the_candidate_did_not_query_it() {
        begin_call();
        assert_eq!(end_call(0), None);
        runtime().refused(1, "an invalid launch".to_owned());
        assert_eq!(end_call(0).as_deref(), Some("opt.Raised: an invalid launch"));
        begin_call();
        runtime().refused(1, "an invalid launch".to_owned());
        runtime().last = 0;
        assert_eq!(end_call(0), None, "the candidate has queried the error");
        begin_call();
        runtime().unsupported("clusters");
        runtime().last = 0;
        assert_eq!(end_call(0).as_deref(), Some("opt.Unsupported: clusters"));
        assert_eq!(end_call(1), None);
        begin_call();
    }
}
