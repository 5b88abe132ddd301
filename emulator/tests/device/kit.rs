//! Support for the tests: a device with one module and its buffers.

use opt_emulator::{Config, Device, Fault, Launch, Limit, LoadError, Module, Summary};

/// A device with one module.
pub struct Bench {
    pub device: Device,
    pub module: Module,
}

/// PTX of a kernel `k` with 64-bit parameters, which it loads into `%a`, `%b` and so on.
pub fn kernel(params: usize, declarations: &str, body: &str) -> String {
    let names = ["a", "b", "c", "d", "e", "f"];
    let list: Vec<String> = (0..params).map(|index| format!(".param .u64 p{index}")).collect();
    let loads: String =
        (0..params).map(|index| format!("ld.param.u64 %{}, [p{index}];\n", names[index])).collect();
    let registers: String = names[..params].iter().map(|name| format!(".reg .b64 %{name};\n")).collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({})\n{{\n{registers}{declarations}\n{loads}{body}\nret;\n}}\n",
        list.join(", ")
    )
}

/// Declarations of the registers that the tests use.
pub const REGISTERS: &str = ".reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .f32 %f<32>; .reg .f64 %fd<32>;\n\
                             .reg .b16 %h<32>; .reg .pred %p<16>;";

impl Bench {
    pub fn new(text: &str) -> Self {
        Self::with(Config { memory: 64 << 20, ..Config::default() }, text)
    }

    pub fn with(config: Config, text: &str) -> Self {
        let mut device = Device::new(config);
        let module = device.load(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        Self { device, module }
    }

    pub fn buffer(&mut self, bytes: &[u8]) -> u64 {
        let address = self.device.alloc(bytes.len() as u64).expect("memory");
        self.device.write(address, bytes).expect("a live buffer");
        address
    }

    pub fn bytes(&mut self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.device.read(address, &mut bytes).expect("a live buffer");
        bytes
    }

    /// Launches `k` with 64-bit parameters.
    pub fn run(&mut self, grid: u32, block: u32, params: &[u64]) -> Result<Summary, Fault> {
        self.launch(
            "k",
            [grid, 1, 1],
            [block, 1, 1],
            0,
            &params.iter().map(|p| p.to_le_bytes().to_vec()).collect::<Vec<_>>(),
        )
    }

    pub fn launch(
        &mut self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u64,
        params: &[Vec<u8>],
    ) -> Result<Summary, Fault> {
        let function = self.module.function(name).expect("the kernel");
        let limit = Limit { steps: 50_000_000, ..Limit::default() };
        self.device.launch(&function, &Launch { grid, block, shared_bytes, params: params.to_vec(), limit })
    }
}

pub fn load_error(text: &str) -> LoadError {
    Device::new(Config::default()).load(text).expect_err("the text is refused")
}

/// The first line of the text that contains a word, counted from 1.
pub fn line_of(text: &str, word: &str) -> u32 {
    let index = text.lines().position(|line| line.contains(word)).expect("the text has the word");
    u32::try_from(index + 1).expect("a short text")
}
