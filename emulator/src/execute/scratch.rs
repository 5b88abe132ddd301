//! Shared and local memory: the bytes of one block, and a record of the bytes that were written.

#[derive(Debug, Default)]
pub struct Scratch {
    bytes: Vec<u8>,
    /// 1 for every byte that was written, 0 for the others.
    written: Vec<u8>,
}

impl Scratch {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], written: vec![0; bytes] }
    }

    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Marks all bytes as never written.
    pub fn forget(&mut self) {
        self.written.fill(0);
    }

    pub fn forget_range(&mut self, from: u64, bytes: u64) {
        if let Some(range) = self.written.get_mut(from as usize..(from + bytes) as usize) {
            range.fill(0);
        }
    }

    /// Reads an element, which must be inside, and returns its value and whether any byte of it was written.
    #[inline(always)]
    pub fn load(&self, at: u64, bytes: u32) -> (u64, bool) {
        let (from, to) = (at as usize, at as usize + bytes as usize);
        match bytes {
            4 => {
                let value = u32::from_le_bytes(array(&self.bytes[from..to]));
                (u64::from(value), u32::from_le_bytes(array(&self.written[from..to])) != 0)
            }
            8 => {
                let value = u64::from_le_bytes(array(&self.bytes[from..to]));
                (value, u64::from_le_bytes(array(&self.written[from..to])) != 0)
            }
            2 => {
                let value = u16::from_le_bytes(array(&self.bytes[from..to]));
                (u64::from(value), u16::from_le_bytes(array(&self.written[from..to])) != 0)
            }
            _ => (u64::from(self.bytes[from]), self.written[from] != 0),
        }
    }

    /// Like `load`, but returns `None` if the element is misaligned or not inside.
    #[inline(always)]
    pub fn get(&self, at: u64, bytes: u32) -> Option<(u64, bool)> {
        let inside = at < self.len() && u64::from(bytes) <= self.len() - at && at & u64::from(bytes - 1) == 0;
        inside.then(|| self.load(at, bytes))
    }

    /// Reads 32 consecutive words. Returns false if one of them is outside or, with `checks`, was never written.
    pub fn load_row(&self, at: u64, row: &mut [u32; 32], checks: bool) -> bool {
        if self.len() < at {
            return false;
        }
        let from = at as usize;
        let (Some(bytes), Some(written)) =
            (self.bytes.get(from..from + 128), self.written.get(from..from + 128))
        else {
            return false;
        };
        let all =
            written.as_chunks::<4>().0.iter().fold(true, |all, four| all & (u32::from_le_bytes(*four) != 0));
        if !at.is_multiple_of(4) || (checks && !all) {
            return false;
        }
        for (slot, four) in row.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *slot = u32::from_le_bytes(*four);
        }
        true
    }

    #[inline(always)]
    pub fn store(&mut self, at: u64, bytes: u32, value: u64) {
        let (from, to) = (at as usize, at as usize + bytes as usize);
        match bytes {
            4 => {
                self.bytes[from..to].copy_from_slice(&(value as u32).to_le_bytes());
                self.written[from..to].copy_from_slice(&[1; 4]);
            }
            8 => {
                self.bytes[from..to].copy_from_slice(&value.to_le_bytes());
                self.written[from..to].copy_from_slice(&[1; 8]);
            }
            2 => {
                self.bytes[from..to].copy_from_slice(&(value as u16).to_le_bytes());
                self.written[from..to].copy_from_slice(&[1; 2]);
            }
            _ => {
                self.bytes[from] = value as u8;
                self.written[from] = 1;
            }
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}
