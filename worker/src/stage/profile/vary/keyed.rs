//! Gives each source of new values a seed of its own, which depends on the captured values, so that inputs with equal
//! captured values get equal new values.

use std::io;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::source::Source;
use super::zeros::Zeros;

/// A source of new values, and its part of the seed. A kernel may rely on the equality of two inputs. Therefore, inputs
/// of the same type and with the same captured values have the same key, and get the same new values.
#[derive(Debug)]
pub(super) struct Keyed {
    pub(super) source: Source,
    pub(super) key: u64,
}

impl Keyed {
    /// Returns a source without values, which can take the place of another one.
    pub(super) fn nothing() -> Self {
        let zeros = Zeros::default();
        Self { source: Source::Drawn { values: Vec::new(), width: 1, bytes: 0, fresh: false, zeros }, key: 0 }
    }

    /// Writes one variant for each of `count` calls, piece by piece and in order. For each piece, `each` gets the
    /// number of the call, the offset of the piece, and its bytes.
    pub(super) fn write(
        &mut self,
        seed: u64,
        count: u32,
        mut each: impl FnMut(u32, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut random = SmallRng::seed_from_u64(seed ^ self.key);
        for number in 0..count {
            self.source.write(&mut random, |offset, bytes| each(number, offset, bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use opt_shared::capture::DType;

    use super::super::fresh::key_of;
    use super::*;

    #[test]
    fn inputs_with_the_same_captured_values_get_the_same_new_values() {
        let values: Vec<u8> = (1..100u16).flat_map(|at| f32::from(at).to_le_bytes()).collect();
        let written = |key, seed| {
            let zeros = Zeros::default();
            let source = Source::Drawn { values: values.clone(), width: 4, bytes: 400, fresh: true, zeros };
            let mut all = vec![Vec::new(); 2];
            let each = |number: u32, _, bytes: &[u8]| {
                all[number as usize].extend_from_slice(bytes);
                Ok(())
            };
            Keyed { source, key }.write(seed, 2, each).expect("written");
            all
        };
        let other = [&[1], &values[1..]].concat();
        let [key, same, of_others, of_another_type] = [
            key_of(DType::Float32, &values),
            key_of(DType::Float32, &values.clone()),
            key_of(DType::Float32, &other),
            key_of(DType::Int32, &values),
        ];
        assert_eq!(written(key, 1), written(same, 1));
        assert_ne!(written(key, 1)[0], written(key, 1)[1], "each call has its own values");
        for (key, seed) in [(key, 2), (of_others, 1), (of_another_type, 1)] {
            assert_ne!(written(key, seed), written(same, 1));
        }
    }
}
