//! Implements the device: its memory, modules and launches, and the sticky fault with which later calls fail.

mod call;
mod process_memory;
mod unwritten;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub use self::call::Call;
use crate::code::Kernel;
use crate::decode;
use crate::execute::{self, Job, Limit, Summary};
use crate::fault::{Fault, FaultKind, LoadError};
use crate::limits;
use crate::memory::Heap;
use crate::ptx;
use crate::ptx::lexer::clipped;
use crate::ptx::syntax::{InitialValue, Source, Space, Variable};

/// The properties of a device.
#[derive(Clone, Debug)]
pub struct Config {
    /// The size of global memory, in bytes.
    pub memory: u64,
    pub compute_capability: (u32, u32),
    /// The largest number of host threads that run the blocks of a launch.
    pub threads: usize,
    /// Whether it is a fault if a kernel reads memory that was never written: shared memory, local memory, and the
    /// global memory that counts as never written.
    pub check_uninitialised: bool,
    /// Whether every new allocation of global memory counts as never written. If not, only memory for which `forget`
    /// was called does.
    pub check_uninitialised_global: bool,
    /// Whether a race is a fault. A race is two unordered accesses to shared memory, at least one of which is a write.
    pub check_races: bool,
    /// Whether launches count divergent branches and accesses to memory.
    pub counts: bool,
}

impl Default for Config {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            memory: 1 << 30,
            compute_capability: (8, 0),
            threads: threads.min(limits::HOST_THREADS),
            check_uninitialised: true,
            check_uninitialised_global: false,
            check_races: true,
            counts: false,
        }
    }
}

/// A PTX text that has been loaded.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

#[derive(Debug)]
struct ModuleInner {
    kernels: Vec<Kernel>,
    files: BTreeMap<u32, String>,
    /// The address and size of each variable in global and constant memory.
    variables: HashMap<String, (u64, u64)>,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<ModuleInner>,
    index: usize,
}

impl Module {
    #[must_use]
    pub fn function(&self, name: &str) -> Option<Function> {
        let index = self.inner.kernels.iter().position(|kernel| kernel.name == name)?;
        Some(Function { module: Arc::clone(&self.inner), index })
    }

    /// Returns the names of all kernels, in the order of the text.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.inner.kernels.iter().map(|kernel| kernel.name.as_str())
    }

    /// Returns the address and size of a variable in global or constant memory.
    #[must_use]
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.inner.variables.get(name).copied()
    }
}

impl Function {
    fn kernel(&self) -> &Kernel {
        &self.module.kernels[self.index]
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.kernel().name
    }

    /// Returns the sizes of the parameters, in bytes.
    #[must_use]
    pub fn param_sizes(&self) -> Vec<u64> {
        self.kernel().params.iter().map(|param| param.bytes).collect()
    }

    /// Returns the offset and size of each parameter in the parameter buffer.
    #[must_use]
    pub fn param_layout(&self) -> Vec<(u64, u64)> {
        self.kernel().params.iter().map(|param| (param.offset, param.bytes)).collect()
    }

    /// The size of the kernel's static shared memory, in bytes.
    #[must_use]
    pub fn static_shared_bytes(&self) -> u64 {
        self.kernel().static_shared
    }

    /// The size of each thread's local memory, in bytes.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        self.kernel().local_bytes
    }

    /// The maximum number of threads of a block.
    #[must_use]
    pub fn max_threads(&self) -> u32 {
        let kernel = self.kernel();
        let bound = kernel.required_block.or(kernel.largest_block);
        bound.map_or(limits::BLOCK_THREADS, |sizes| {
            sizes.iter().fold(1_u32, |all, size| all.saturating_mul(*size)).min(limits::BLOCK_THREADS)
        })
    }
}

/// The geometry, parameters and limits of a launch.
#[derive(Clone, Debug)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// The dynamic shared memory, in bytes.
    pub shared_bytes: u64,
    /// The bytes of each parameter.
    pub params: Vec<Vec<u8>>,
    pub limit: Limit,
}

/// A CUDA device in software. The numbers in parentheses after errors are CUDA's error codes.
#[derive(Debug)]
pub struct Device {
    config: Config,
    heap: Heap,
    sticky: Option<Fault>,
    calls: HashMap<Call, u64>,
    /// Faults to inject: the function, the number of the call that fails, and the error code.
    injected: Vec<(Call, u64, u32)>,
}

impl Device {
    #[must_use]
    pub fn new(config: Config) -> Self {
        let heap = Heap::new(config.memory, config.check_uninitialised_global);
        Self { config, heap, sticky: None, calls: HashMap::new(), injected: Vec::new() }
    }

    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sets `Config::counts` for later launches.
    pub fn set_counts(&mut self, counts: bool) {
        self.config.counts = counts;
    }

    /// The number of bytes that are allocated now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.heap.used()
    }

    /// The largest number of bytes that were allocated at once since the last `reset_peak`.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.heap.peak()
    }

    pub fn reset_peak(&mut self) {
        self.heap.set_peak_to_used();
    }

    /// The sticky fault, with which later calls fail; `None` if there is none.
    #[must_use]
    pub fn sticky(&self) -> Option<&Fault> {
        self.sticky.as_ref()
    }

    /// Forgets a sticky fault, as if there were a new context with the same memory and modules.
    pub fn forget_fault(&mut self) {
        self.sticky = None;
    }

    /// Makes the `nth` future call of a function, counted from 1, fail with a CUDA error code.
    pub fn fail_call(&mut self, call: Call, nth: u64, code: u32) {
        let made = self.calls.get(&call).copied().unwrap_or(0);
        self.injected.push((call, made + nth, code));
    }

    /// Counts a call. Fails if a fault was injected for this call, or if the device has a sticky fault.
    fn enter(&mut self, call: Call) -> Result<(), Fault> {
        let made = self.calls.entry(call).or_insert(0);
        *made += 1;
        let made = *made;
        if let Some(fault) = &self.sticky {
            return Err(fault.clone());
        }
        let injected = self.injected.iter().find(|(which, nth, _)| *which == call && *nth == made);
        match injected {
            Some((_, _, code)) => {
                let fault = Fault::new(FaultKind::Injected { call: call.name(), code: *code });
                Err(self.failed(fault))
            }
            None => Ok(()),
        }
    }

    /// Stores the fault if it is sticky, and returns it.
    fn failed(&mut self, fault: Fault) -> Fault {
        if fault.is_sticky() {
            self.sticky = Some(fault.clone());
        }
        fault
    }

    /// Allocates memory, and returns its address, which is a multiple of 256. Addresses of freed memory are reused as
    /// late as possible. The contents are undefined.
    ///
    /// # Errors
    /// Not enough memory (2), a size of 0 (1), an injected fault or an earlier sticky fault.
    pub fn alloc(&mut self, bytes: u64) -> Result<u64, Fault> {
        self.enter(Call::Alloc)?;
        self.heap.allocate(bytes, false)
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// The address is not that of an allocation (1), an injected fault or an earlier sticky fault.
    pub fn free(&mut self, address: u64) -> Result<(), Fault> {
        self.enter(Call::Free)?;
        self.heap.free(address)
    }

    /// Copies bytes to the device.
    ///
    /// # Errors
    /// The bytes are not inside one allocation (1), the memory is mapped read-only (700), an injected fault or an
    /// earlier sticky fault.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), Fault> {
        self.enter(Call::Write)?;
        self.heap.write(address, data).map_err(|fault| self.failed(fault))
    }

    /// Copies bytes from the device.
    ///
    /// # Errors
    /// The bytes are not inside one allocation (1), an injected fault or an earlier sticky fault.
    pub fn read(&mut self, address: u64, data: &mut [u8]) -> Result<(), Fault> {
        self.enter(Call::Read)?;
        self.heap.read(address, data)
    }

    /// Sets bytes of the device to one value.
    ///
    /// # Errors
    /// The same as for `write`.
    pub fn fill(&mut self, address: u64, byte: u8, bytes: u64) -> Result<(), Fault> {
        self.enter(Call::Fill)?;
        self.heap.fill(address, byte, bytes).map_err(|fault| self.failed(fault))
    }

    /// Loads a PTX text: decodes its kernels and allocates its variables.
    ///
    /// # Errors
    /// A part of the text that is wrong, unsupported or too large, with its line; not enough memory; an injected fault
    /// or an earlier sticky fault.
    pub fn load(&mut self, text: &str) -> Result<Module, LoadError> {
        let device = |fault| LoadError::Device(Box::new(fault));
        self.enter(Call::Load).map_err(device)?;
        let source = ptx::parse(text)?;
        let (major, minor) = self.config.compute_capability;
        check_target(&source, 10 * major + minor)?;
        let mut addresses = HashMap::new();
        let result =
            self.allocate_variables(&source, &mut addresses).and_then(|()| decode_all(&source, &addresses));
        match result {
            Ok(kernels) => {
                let placed = |v: &Variable<'_>| {
                    addresses.get(v.name).map(|address| (v.name.to_owned(), (*address, v.bytes)))
                };
                let variables = source.variables.iter().filter_map(placed).collect();
                let inner = ModuleInner { kernels, files: source.files.clone(), variables };
                Ok(Module { inner: Arc::new(inner) })
            }
            Err(error) => {
                for address in addresses.values() {
                    self.heap.free(*address).map_err(device)?;
                }
                Err(error)
            }
        }
    }

    /// Frees a module's variables. Its functions must not be launched afterwards.
    ///
    /// # Errors
    /// The variables were freed before (1).
    pub fn unload(&mut self, module: &Module) -> Result<(), Fault> {
        for (address, _) in module.inner.variables.values() {
            self.heap.free(*address)?;
        }
        Ok(())
    }

    /// Allocates and initialises the variables in global and constant memory.
    fn allocate_variables<'a>(
        &mut self,
        source: &Source<'a>,
        addresses: &mut HashMap<&'a str, u64>,
    ) -> Result<(), LoadError> {
        let placed = |v: &&Variable<'_>| matches!(v.space, Space::Global | Space::Const);
        let mut all = 0_u64;
        for variable in source.variables.iter().filter(placed) {
            if variable.is_extern {
                let what = format!("the variable `{}`, which is defined elsewhere", clipped(variable.name));
                return Err(LoadError::unsupported(variable.line, what));
            }
            let read_only = variable.space == Space::Const;
            if addresses.contains_key(variable.name) {
                let what = format!("the variable `{}` is declared twice", clipped(variable.name));
                return Err(LoadError::syntax(variable.line, what));
            }
            let bytes = variable.bytes.max(1);
            all = bytes.saturating_add(all);
            if limits::MODULE_BYTES < all {
                let what = format!(
                    "the variables of the module up to `{}` take more than {} bytes",
                    clipped(variable.name),
                    limits::MODULE_BYTES
                );
                return Err(LoadError::limit(variable.line, what));
            }
            let address =
                self.heap.allocate(bytes, read_only).map_err(|fault| LoadError::Device(Box::new(fault)))?;
            addresses.insert(variable.name, address);
        }
        for variable in source.variables.iter().filter(placed) {
            let Some(start) = addresses.get(variable.name).copied() else { continue };
            let write = |at: u64, data: &[u8]| {
                self.heap.write(at, data).map_err(|fault| LoadError::Device(Box::new(fault)))
            };
            self.heap.fill(start, 0, variable.bytes).map_err(|fault| LoadError::Device(Box::new(fault)))?;
            for initial in &variable.initial {
                let value = match initial.value {
                    InitialValue::Bits(bits) => bits,
                    InitialValue::Address { name, offset } => {
                        let Some(address) = addresses.get(name) else {
                            let what = format!("the address of `{}` in an initialiser", clipped(name));
                            return Err(LoadError::unsupported(variable.line, what));
                        };
                        address.wrapping_add_signed(offset)
                    }
                };
                let bytes = value.to_le_bytes();
                write(start + initial.offset, &bytes[..initial.bytes.min(8)])?;
            }
        }
        Ok(())
    }

    /// Runs a kernel until it ends.
    ///
    /// # Errors
    /// An impossible grid or block, a block other than the one that the kernel requires, or arguments that do not match
    /// the kernel (1); more threads than the kernel allows, or too much shared memory or host memory (701); every fault
    /// of the kernel; an injected fault or an earlier sticky fault.
    pub fn launch(&mut self, function: &Function, launch: &Launch) -> Result<Summary, Fault> {
        self.enter(Call::Launch)?;
        let kernel = function.kernel();
        let (params, shared_bytes) = check(kernel, launch)?;
        let job = Job {
            kernel,
            view: self.heap.view(),
            grid: launch.grid,
            block: launch.block,
            params,
            dynamic_shared: launch.shared_bytes,
            shared_bytes,
            limit: launch.limit,
            threads: self.config.threads.clamp(1, limits::HOST_THREADS),
            checks_reads: self.config.check_uninitialised,
            counts: self.config.counts,
            checks_races: self.config.check_races,
        };
        if limits::STATE_BYTES < job.block_bytes() {
            return Err(Fault::new(FaultKind::LaunchLimits(format!(
                "a block takes {} bytes of host memory for registers, memory and checks, but at most {} are allowed",
                job.block_bytes(),
                limits::STATE_BYTES
            ))));
        }
        let files = |index: u32| function.module.files.get(&index).cloned();
        execute::run(&job, &files).map_err(|fault| self.failed(fault))
    }
}

/// Refuses a PTX text whose target is missing, is not an architecture, or is newer than the device.
fn check_target(source: &Source<'_>, device: u32) -> Result<(), LoadError> {
    let digits = source.target.trim_start_matches("sm_").trim_end_matches(|c: char| c.is_ascii_alphabetic());
    match digits.parse::<u32>() {
        Ok(target) if device < target => Err(LoadError::unsupported(
            1,
            format!("the target `{}`, because the device's architecture is sm_{device}", source.target),
        )),
        Ok(_) => Ok(()),
        Err(_) => {
            let what = "`.target` is missing or does not name an architecture such as `sm_80`";
            Err(LoadError::syntax(1, what.to_owned()))
        }
    }
}

fn decode_all<'a>(source: &Source<'a>, addresses: &HashMap<&'a str, u64>) -> Result<Vec<Kernel>, LoadError> {
    let entries = source.functions.iter().filter(|function| function.is_entry && function.body.is_some());
    let mut left = limits::DECODED;
    entries.map(|entry| decode::kernel(source, entry, addresses, &mut left)).collect()
}

/// Checks a launch. Returns the parameters in one buffer, and the size of the shared memory in bytes.
fn check(kernel: &Kernel, launch: &Launch) -> Result<(Vec<u8>, u64), Fault> {
    let wrong = |what: String| Err(Fault::invalid(what));
    let limited = |what: String| Err(Fault::new(FaultKind::LaunchLimits(what)));
    if launch.grid.contains(&0) || launch.block.contains(&0) {
        return wrong(format!("the grid {:?} or the block {:?} has a size of 0", launch.grid, launch.block));
    }
    let threads = launch.block.iter().fold(1_u32, |all, size| all.saturating_mul(*size));
    let too_large = |sizes: [u32; 3], max: [u32; 3]| sizes.iter().zip(max).any(|(size, max)| max < *size);
    if too_large(launch.grid, limits::GRID) {
        return wrong(format!("the grid {:?} is larger than {:?}", launch.grid, limits::GRID));
    }
    if too_large(launch.block, limits::BLOCK) || limits::BLOCK_THREADS < threads {
        let (max, axes) = (limits::BLOCK_THREADS, limits::BLOCK);
        return wrong(format!(
            "the block {:?} has more than {max} threads or is larger than {axes:?}",
            launch.block
        ));
    }
    if let Some(required) = kernel.required_block
        && required != launch.block
    {
        return wrong(format!("`{}` requires blocks of {required:?} threads", kernel.name));
    }
    let product = |sizes: [u32; 3]| sizes.iter().fold(1_u32, |all, size| all.saturating_mul(*size));
    if let Some(max) = kernel.largest_block.map(product)
        && max < threads
    {
        return limited(format!("`{}` allows blocks of at most {max} threads", kernel.name));
    }
    let shared_bytes = kernel.static_shared.saturating_add(launch.shared_bytes);
    if limits::SHARED_BYTES < shared_bytes {
        return limited(format!(
            "a block takes {shared_bytes} bytes of shared memory, but at most {} are allowed",
            limits::SHARED_BYTES
        ));
    }
    if launch.params.len() != kernel.params.len() {
        let (given, wanted) = (launch.params.len(), kernel.params.len());
        return wrong(format!("{given} parameters for `{}`, which takes {wanted}", kernel.name));
    }
    let mut params = vec![0; kernel.param_bytes as usize];
    for (index, (param, data)) in kernel.params.iter().zip(&launch.params).enumerate() {
        if data.len() as u64 != param.bytes {
            let (given, wanted) = (data.len(), param.bytes);
            return wrong(format!(
                "{given} bytes for parameter {index} of `{}`, which takes {wanted}",
                kernel.name
            ));
        }
        let from = param.offset as usize;
        params[from..from + data.len()].copy_from_slice(data);
    }
    Ok((params, shared_bytes))
}
