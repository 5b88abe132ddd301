//! Operations on small matrices that a warp holds in its registers. In a matrix with eight rows or columns, lane `l`
//! holds part `l % 4` of row or column `l / 4`.

use super::access::{Reach, Target};
use super::block::BlockState;
use super::warp::Warp;
use super::{Stop, first_lane};
use crate::code::{Accumulator, Address, Factor, MatrixOp, MemorySpace, Product};
use crate::fault::{AccessKind, FaultKind, Memory};
use crate::lane::soft::{F16, F64, Rounding, unpack};

/// The sizes of the result of a product.
const HEIGHT: usize = 16;
const WIDTH: usize = 8;
/// The largest depth of a product.
const DEPTH: usize = 32;

impl Warp {
    /// Executes an operation that needs all lanes.
    pub fn matrix(
        &mut self,
        block: &mut BlockState<'_>,
        index: u32,
        active: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        if active != u32::MAX {
            return Err(Stop::new(FaultKind::WarpDivergence, first_lane(active)));
        }
        match &block.kernel.matrix_ops[index as usize] {
            MatrixOp::Load { space, from, count, to, transposed } => {
                let to = &to[..*count as usize];
                self.watch_matrices(block, *space, *from, 8 * to.len(), pc)?;
                if let Err(stop) = self.load_matrices(block, *space, *from, to, *transposed) {
                    block.defer(stop, pc, self.index)?;
                    self.load_matrices(block, *space, *from, to, *transposed)?;
                }
                Ok(())
            }
            MatrixOp::Product(product) => {
                match product.accumulator {
                    Accumulator::S32 { saturate } => self.product_of_integers(product, saturate),
                    _ => self.product_of_floats(product),
                }
                Ok(())
            }
        }
    }

    /// Checks the reads of the rows for races. The first lanes have the addresses of the rows.
    fn watch_matrices(
        &mut self,
        block: &mut BlockState<'_>,
        space: MemorySpace,
        from: Address,
        rows: usize,
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(from);
        let reach = Reach { space, bytes: 16, align: 16 };
        for (lane, address) in addresses.iter().enumerate().take(rows) {
            if let Target::Shared(at) = self.resolve(block, reach, *address, lane, AccessKind::Read)? {
                self.watch_lane(block, AccessKind::Read, lane, at, 16, pc)?;
            }
        }
        Ok(())
    }

    /// Loads matrices. Lanes 0 to 7 have the addresses of the first matrix's rows, lanes 8 to 15 the addresses of the
    /// second's, and so on.
    fn load_matrices(
        &mut self,
        block: &BlockState<'_>,
        space: MemorySpace,
        from: Address,
        to: &[u32],
        transposed: bool,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(from);
        let reach = Reach { space, bytes: 16, align: 16 };
        for (number, to) in to.iter().enumerate() {
            let mut matrix = [[0_u32; 8]; 8];
            for (row, values) in matrix.iter_mut().enumerate() {
                let lane = 8 * number + row;
                let target = self.resolve(block, reach, addresses[lane], lane, AccessKind::Read)?;
                let memory = target.memory();
                if memory != Memory::Shared {
                    let what = "`ldmatrix` reads memory that is not shared".to_owned();
                    return Err(Stop::new(FaultKind::InvalidValue(what), lane));
                }
                for (column, value) in values.iter_mut().enumerate() {
                    let at = 2 * column as u64;
                    let (found, state) = self.element(block, 2, &target, at);
                    state.check(block.checks_reads, memory, addresses[lane] + at, 2, lane)?;
                    *value = found as u32;
                }
            }
            self.registers.narrow[*to as usize] = std::array::from_fn(|lane| {
                let (line, pair) = (lane / 4, 2 * (lane % 4));
                let [low, high] = if transposed {
                    [matrix[pair][line], matrix[pair + 1][line]]
                } else {
                    [matrix[line][pair], matrix[line][pair + 1]]
                };
                low | high << 16
            });
        }
        Ok(())
    }

    /// The first factor: 16 rows, each of `depth` elements.
    fn first_factor<T: Copy + Default>(
        &self,
        op: &Product,
        decode: impl Fn(u32, u32) -> T,
    ) -> [[T; DEPTH]; HEIGHT] {
        let elements = op.factor.elements();
        let mut matrix = [[T::default(); DEPTH]; HEIGHT];
        for register in 0..2 * op.registers() {
            let row = &self.registers.narrow[op.a[register] as usize];
            for (lane, value) in row.iter().enumerate() {
                for part in 0..elements {
                    let column = op.position(register / 2, lane, part);
                    matrix[lane / 4 + 8 * (register % 2)][column] = decode(*value, part);
                }
            }
        }
        matrix
    }

    /// The second factor: 8 columns, each of `depth` elements.
    fn second_factor<T: Copy + Default>(
        &self,
        op: &Product,
        decode: impl Fn(u32, u32) -> T,
    ) -> [[T; DEPTH]; WIDTH] {
        let mut matrix = [[T::default(); DEPTH]; WIDTH];
        for register in 0..op.registers() {
            let row = &self.registers.narrow[op.b[register] as usize];
            for (lane, value) in row.iter().enumerate() {
                for part in 0..op.factor.elements() {
                    matrix[lane / 4][op.position(register, lane, part)] = decode(*value, part);
                }
            }
        }
        matrix
    }

    /// Computes the sums in `f64`, in which products are exact, and rounds each sum to the format of the result at the
    /// end. The order and the precision in which a card adds are not documented.
    fn product_of_floats(&mut self, op: &Product) {
        let decode = |value: u32, part: u32| match op.factor {
            Factor::Bf16 => f64::from(f32::from_bits((value >> (16 * part)) << 16)),
            Factor::Tf32 => f64::from(f32::from_bits(value & 0xffff_e000)),
            _ => half(value >> (16 * part) & 0xffff),
        };
        let (a, b) = (self.first_factor(op, decode), self.second_factor(op, decode));
        let depth = op.depth as usize;
        let sum = |row: usize, column: usize, start: f64| {
            let products = a[row][..depth].iter().zip(&b[column][..depth]).map(|(x, y)| x * y);
            start + products.fold(-0.0, |sum, product| sum + product)
        };
        let mut results = [[0; 32]; 4];
        if op.accumulator == Accumulator::F32 {
            for (register, result) in results.iter_mut().enumerate() {
                let starts = self.registers.narrow[op.c[register] as usize];
                *result = std::array::from_fn(|lane| {
                    let (row, column) = row_and_column(register / 2, lane, register % 2);
                    let sum = sum(row, column, f64::from(f32::from_bits(starts[lane]))) as f32;
                    if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() }
                });
            }
            return self.write_results(&op.to, &results);
        }
        for (register, result) in results[..2].iter_mut().enumerate() {
            let starts = self.registers.narrow[op.c[register] as usize];
            *result = std::array::from_fn(|lane| {
                let one = |part: usize| {
                    let (row, column) = row_and_column(register, lane, part);
                    let start = half(starts[lane] >> (16 * part) & 0xffff);
                    let sum = sum(row, column, start).to_bits();
                    unpack(sum, F64).round(F16, Rounding::NearestEven) as u32
                };
                one(0) | one(1) << 16
            });
        }
        self.write_results(&op.to[..2], &results);
    }

    fn product_of_integers(&mut self, op: &Product, saturate: bool) {
        let Factor::Bytes { signed } = op.factor else { return };
        let decode = |is_signed: bool| {
            move |value: u32, part: u32| {
                let byte = (value >> (8 * part)) as u8;
                if is_signed { i64::from(byte as i8) } else { i64::from(byte) }
            }
        };
        let (a, b) = (self.first_factor(op, decode(signed[0])), self.second_factor(op, decode(signed[1])));
        let depth = op.depth as usize;
        let mut results = [[0; 32]; 4];
        for (register, result) in results.iter_mut().enumerate() {
            let starts = self.registers.narrow[op.c[register] as usize];
            *result = std::array::from_fn(|lane| {
                let (row, column) = row_and_column(register / 2, lane, register % 2);
                let sum: i64 = a[row][..depth].iter().zip(&b[column][..depth]).map(|(x, y)| x * y).sum();
                let sum = sum + i64::from(starts[lane] as i32);
                let sum = if saturate { sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) } else { sum };
                sum as u32
            });
        }
        self.write_results(&op.to, &results);
    }

    /// Writes the results of a product, after all operands were read.
    fn write_results(&mut self, to: &[u32], results: &[[u32; 32]; 4]) {
        for (row, result) in to.iter().zip(results) {
            self.registers.narrow[*row as usize] = *result;
        }
    }
}

impl Product {
    /// The number of registers of the second factor. The first has twice as many.
    fn registers(&self) -> usize {
        (self.depth / (4 * self.factor.elements())) as usize
    }

    /// The position, along the depth, of a part of a lane's register.
    fn position(&self, register: usize, lane: usize, part: u32) -> usize {
        let elements = self.factor.elements() as usize;
        4 * elements * register + elements * (lane % 4) + part as usize
    }
}

/// The row and column of an element of the result. A lane has two elements in each half of the rows.
fn row_and_column(half: usize, lane: usize, part: usize) -> (usize, usize) {
    (lane / 4 + 8 * half, 2 * (lane % 4) + part)
}

/// The value of an `f16`.
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
