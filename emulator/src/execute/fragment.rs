//! Loads, stores and multiplies matrices that a warp holds in its registers.

use super::Stop;
use super::access::{Reach, Target};
use super::block::BlockState;
use super::warp::Warp;
use crate::code::{Element, Fragment, Product, Role, StoredMatrix};
use crate::fault::{AccessKind, FaultKind};
use crate::lane::soft::{F16, F64, Rounding, unpack};

/// The largest number of elements in a factor of a product.
const MAX_FACTOR: usize = 512;
/// The alignment, in bytes, that suffices for all lines (rows or columns) of a matrix but the first. The PTX reference
/// requires each line to be aligned to the size of a lane's registers, but the CUDA C++ Programming Guide allows any
/// stride that is a multiple of 16 bytes.
const LINE_ALIGNMENT: u64 = 16;

impl Fragment {
    /// Returns the row and column of an element, given the lane, the register and the part of the register that contain
    /// it.
    ///
    /// The layout is that of `mma` in the PTX reference. It consists of groups of eight rows (columns in the second
    /// factor), and for each row, four lanes hold one register each. The layout of `wmma` is not documented, so the
    /// same layout is used for it here.
    fn position(&self, lane: usize, register: usize, part: usize) -> (usize, usize) {
        let (row, column) = self.origin(register);
        let (down, across) = self.offset(lane, part);
        (row + down, column + across)
    }

    /// Returns the row and column of the first element in a register of lane 0.
    fn origin(&self, register: usize) -> (usize, usize) {
        let elements = self.element.in_register();
        match self.role {
            Role::First => {
                let tiles = self.rows / 8;
                (8 * (register % tiles), 4 * elements * (register / tiles))
            }
            Role::Second => {
                let tiles = self.rows / (4 * elements);
                (4 * elements * (register % tiles), 8 * (register / tiles))
            }
            // A lane holds pairs of elements, each in one register or in two.
            Role::Sum => {
                let (pair, tiles) = (register * elements / 2, self.rows / 8);
                (8 * (pair % tiles), 8 * (pair / tiles) + register * elements % 2)
            }
        }
    }

    /// Returns how many rows and columns the element in a part of a lane's register is away from the first element in
    /// the same register of lane 0.
    #[inline(always)]
    fn offset(&self, lane: usize, part: usize) -> (usize, usize) {
        match self.role {
            Role::First => (lane / 4, self.element.in_register() * (lane % 4) + part),
            Role::Second => (self.element.in_register() * (lane % 4) + part, lane / 4),
            Role::Sum => (lane / 4, 2 * (lane % 4) + part),
        }
    }

    fn bits(&self) -> usize {
        8 * self.element.bytes()
    }

    /// Returns the value in one part of a register.
    #[inline(always)]
    fn decode(element: Element, register: u32, part: usize) -> f64 {
        let bits = register >> (8 * element.bytes() * part);
        match element {
            Element::F16 => half(bits & 0xffff),
            Element::Bf16 => f64::from(f32::from_bits(bits << 16)),
            Element::Tf32 => f64::from(f32::from_bits(bits & 0xffff_e000)),
            Element::F32 => f64::from(f32::from_bits(bits)),
            Element::S8 => f64::from(bits as u8 as i8),
            Element::U8 => f64::from(bits as u8),
            Element::S32 => f64::from(bits as i32),
        }
    }

    /// Rounds a sum to the type of the elements, and returns its bits.
    fn encode(&self, sum: f64, saturate: bool) -> u32 {
        match self.element {
            Element::F16 => unpack(sum.to_bits(), F64).round(F16, Rounding::NearestEven) as u32,
            Element::S32 => {
                let sum = sum as i64;
                let limited = sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
                (if saturate { limited } else { sum }) as u32
            }
            _ => {
                let sum = sum as f32;
                if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() }
            }
        }
    }
}

/// The lines of a matrix in memory: rows or columns, each of which is contiguous.
struct Lines {
    first: u64,
    /// The number of bytes between the beginnings of two lines.
    stride: u64,
    /// The number of bytes of a line.
    length: u64,
    count: usize,
}

impl Lines {
    fn start(&self, line: usize) -> u64 {
        self.first.wrapping_add(self.stride.wrapping_mul(line as u64))
    }
}

impl Warp {
    /// Returns the lines of a matrix. Fails if the lanes do not have the same address and stride, or if the lines
    /// overlap.
    fn lines(&self, stored: &StoredMatrix, fragment: &Fragment) -> Result<Lines, Stop> {
        let (count, length) = if stored.by_columns {
            (fragment.columns, fragment.rows)
        } else {
            (fragment.rows, fragment.columns)
        };
        let addresses = self.addresses(stored.at);
        let strides: [u64; 32] = match stored.stride {
            Some(slot) => std::array::from_fn(|lane| u64::from(self.registers.get(slot, lane) as u32)),
            None => [length as u64; 32],
        };
        if let Some(lane) =
            (1..32).find(|&lane| (addresses[lane], strides[lane]) != (addresses[0], strides[0]))
        {
            let what = "the lanes of a `wmma` have different addresses or strides".to_owned();
            return Err(Stop::new(FaultKind::InvalidValue(what), lane));
        }
        if strides[0] < length as u64 {
            let what = format!(
                "a `wmma` has a stride of {} elements, but the lines of its matrix have {length}",
                strides[0]
            );
            return Err(Stop::new(FaultKind::InvalidValue(what), 0));
        }
        let bytes = fragment.element.bytes() as u64;
        Ok(Lines { first: addresses[0], stride: bytes * strides[0], length: bytes * length as u64, count })
    }

    /// Checks the access to each line, and finds the memory in which the line lies.
    fn targets<'m>(
        &mut self,
        block: &BlockState<'m>,
        stored: &StoredMatrix,
        fragment: &Fragment,
        lines: &Lines,
        kind: AccessKind,
    ) -> Result<Vec<Target<'m>>, Stop> {
        let size = 4 * fragment.count as u64;
        let align_of = |line| if line == 0 { size } else { LINE_ALIGNMENT.min(size) };
        let mut targets = Vec::with_capacity(lines.count);
        for line in 0..lines.count {
            let reach = Reach { space: stored.space, bytes: lines.length, align: align_of(line) };
            match self.resolve(block, reach, lines.start(line), 0, kind)? {
                target @ (Target::Global(..) | Target::Shared(_)) => targets.push(target),
                Target::Local(_) | Target::Param(_) => {
                    let what = "a `wmma` accesses memory that is neither global nor shared".to_owned();
                    return Err(Stop::new(FaultKind::InvalidValue(what), 0));
                }
            }
        }
        Ok(targets)
    }

    pub fn load_fragment(
        &mut self,
        block: &mut BlockState<'_>,
        from: &StoredMatrix,
        to: &Fragment,
        pc: u32,
    ) -> Result<(), Stop> {
        let lines = self.lines(from, to)?;
        let targets = self.targets(block, from, to, &lines, AccessKind::Read)?;
        self.watch_load(block, from, to, &targets, pc)?;
        if let Err(stop) = self.load_lines(block, from, to, &lines, &targets) {
            block.defer(stop, pc, self.index)?;
            self.load_lines(block, from, to, &lines, &targets)?;
        }
        Ok(())
    }

    fn load_lines(
        &mut self,
        block: &BlockState<'_>,
        from: &StoredMatrix,
        to: &Fragment,
        lines: &Lines,
        targets: &[Target<'_>],
    ) -> Result<(), Stop> {
        let (bytes, distinct) = (to.element.bytes(), to.distinct());
        let mut words = [[0_u32; 32]; 8];
        for (register, row) in words[..distinct].iter_mut().enumerate() {
            for (lane, word) in row.iter_mut().enumerate() {
                for part in 0..to.element.in_register() {
                    let (line, at) = place(from, to, lane, register, part);
                    let (value, state) = self.element(block, bytes as u32, &targets[line], at);
                    let (memory, address) = (targets[line].memory(), lines.start(line) + at);
                    state.check(block.checks_reads, memory, address, bytes as u64, lane)?;
                    *word |= (value as u32) << (to.bits() * part);
                }
            }
        }
        for (number, register) in to.registers[..to.count].iter().enumerate() {
            self.registers.narrow[*register as usize] = words[number % distinct];
        }
        Ok(())
    }

    pub fn store_fragment(
        &mut self,
        block: &mut BlockState<'_>,
        from: &Fragment,
        to: &StoredMatrix,
        pc: u32,
    ) -> Result<(), Stop> {
        let lines = self.lines(to, from)?;
        let targets = self.targets(block, to, from, &lines, AccessKind::Write)?;
        let bytes = from.element.bytes() as u32;
        for (number, register) in from.registers[..from.distinct()].iter().enumerate() {
            let row = self.registers.narrow[*register as usize];
            for (lane, word) in row.iter().enumerate() {
                for part in 0..from.element.in_register() {
                    let (line, at) = place(to, from, lane, number, part);
                    let value = u64::from(word >> (from.bits() * part)) & (u64::MAX >> (64 - from.bits()));
                    if let Target::Shared(start) = &targets[line] {
                        let changes = block.shared.changes(start + at, bytes, value);
                        self.watch_write(block, lane, (start + at, u64::from(bytes)), changes, pc)?;
                    }
                    self.store_element(block, bytes, false, &targets[line], at, value);
                }
            }
        }
        Ok(())
    }

    /// Checks the reads of shared memory for races.
    fn watch_load(
        &self,
        block: &mut BlockState<'_>,
        stored: &StoredMatrix,
        fragment: &Fragment,
        targets: &[Target<'_>],
        pc: u32,
    ) -> Result<(), Stop> {
        if block.races.is_none() {
            return Ok(());
        }
        for register in 0..fragment.distinct() {
            for lane in 0..32 {
                for part in 0..fragment.element.in_register() {
                    let (line, at) = place(stored, fragment, lane, register, part);
                    if let Target::Shared(start) = &targets[line] {
                        let bytes = fragment.element.bytes() as u64;
                        self.watch_read(block, lane, start + at, bytes, pc)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the elements of a factor, line by line along the depth (K) of the product: rows of the first factor,
    /// columns of the second.
    fn factor(&self, fragment: &Fragment) -> [f64; MAX_FACTOR] {
        // Each call is compiled for its type, because most of the time of a product is spent here.
        match fragment.element {
            Element::F16 => {
                self.factor_with(fragment, |word, part| Fragment::decode(Element::F16, word, part))
            }
            Element::Bf16 => {
                self.factor_with(fragment, |word, part| Fragment::decode(Element::Bf16, word, part))
            }
            Element::S8 => self.factor_with(fragment, |word, part| Fragment::decode(Element::S8, word, part)),
            Element::U8 => self.factor_with(fragment, |word, part| Fragment::decode(Element::U8, word, part)),
            other => self.factor_with(fragment, |word, part| Fragment::decode(other, word, part)),
        }
    }

    #[inline(always)]
    fn factor_with(&self, fragment: &Fragment, decode: impl Fn(u32, usize) -> f64) -> [f64; MAX_FACTOR] {
        let mut lines = [0.0; MAX_FACTOR];
        let is_first = fragment.role == Role::First;
        let depth = if is_first { fragment.columns } else { fragment.rows };
        let elements = fragment.element.in_register();
        for (number, register) in fragment.registers[..fragment.distinct()].iter().enumerate() {
            let (row, column) = fragment.origin(number);
            let start = if is_first { row * depth + column } else { column * depth + row };
            for (lane, word) in self.registers.narrow[*register as usize].iter().enumerate() {
                let first = start + lane / 4 * depth + lane % 4 * elements;
                for (part, value) in lines[first..first + elements].iter_mut().enumerate() {
                    *value = decode(*word, part);
                }
            }
        }
        lines
    }

    /// Computes a product of matrices and adds a matrix. The sums are computed in `f64`, in which products are exact,
    /// and each sum is rounded to the format of the result at the end. A card may give slightly different results,
    /// because the order and the precision of its additions are not documented.
    pub fn product(&mut self, op: &Product) {
        let (first, second) = (self.factor(&op.first), self.factor(&op.second));
        let depth = op.first.columns;
        let (to, elements, of_sum) = (&op.to, op.to.element.in_register(), op.sum.element.in_register());
        let mut results = [[0; 32]; 8];
        for (register, result) in results[..to.count].iter_mut().enumerate() {
            let (row, column) = to.origin(register);
            for part in 0..elements {
                // The matrix that is added has the same layout, but may have a different number of elements in each
                // register.
                let element = register * elements + part;
                let starts = &self.registers.narrow[op.sum.registers[element / of_sum] as usize];
                for (lane, word) in result.iter_mut().enumerate() {
                    let (down, across) = to.offset(lane, part);
                    let (x, y) = (
                        &first[(row + down) * depth..][..depth],
                        &second[(column + across) * depth..][..depth],
                    );
                    let products =
                        x.iter().zip(y).map(|(x, y)| x * y).fold(-0.0, |all, product| all + product);
                    let start = Fragment::decode(op.sum.element, starts[lane], element % of_sum);
                    *word |= to.encode(start + products, op.saturate) << (to.bits() * part);
                }
            }
        }
        for (register, result) in to.registers[..to.count].iter().zip(results) {
            self.registers.narrow[*register as usize] = result;
        }
    }
}

/// Returns the line that contains an element, and the number of bytes before the element in that line.
fn place(
    stored: &StoredMatrix,
    fragment: &Fragment,
    lane: usize,
    register: usize,
    part: usize,
) -> (usize, u64) {
    let (row, column) = fragment.position(lane, register, part);
    let (line, at) = if stored.by_columns { (column, row) } else { (row, column) };
    (line, (at * fragment.element.bytes()) as u64)
}

/// Converts an `f16`, given as bits, to `f64`.
fn half(bits: u32) -> f64 {
    let magnitude = bits & 0x7fff;
    let value = match magnitude >> 10 {
        0 => f64::from(magnitude) / f64::from(1 << 24),
        // Infinity and NaN have the same form in `f32`.
        31 => f64::from(f32::from_bits(0x7f80_0000 | (magnitude & 0x3ff) << 13)),
        // The bias of the exponent is 15 instead of 127.
        _ => f64::from(f32::from_bits((magnitude << 13) + (112 << 23))),
    };
    if bits & 0x8000 == 0 { value } else { -value }
}
