//! Executes `ldmatrix`, which loads small matrices. Lane `l` receives part `l % 4` of row or column `l / 4`.

use super::access::{Reach, Target};
use super::block::BlockState;
use super::warp::Warp;
use super::{Stop, first_lane};
use crate::code::{Address, MatrixOp, MemorySpace};
use crate::fault::{AccessKind, FaultKind, Memory};

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
            MatrixOp::LoadFragment { from, to } => self.load_fragment(block, from, to, pc),
            MatrixOp::StoreFragment { from, to } => self.store_fragment(block, from, to, pc),
            MatrixOp::Product(product) => {
                self.product(product);
                Ok(())
            }
        }
    }

    /// Checks the reads of the rows for races. The addresses of the rows are in the registers of the first lanes.
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
                self.watch_read(block, lane, at, 16, pc)?;
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
}
