//! Packs the parameters of a launch into one buffer, as a kernel expects them.

/// Packs the parameters, each aligned to its size.
pub(super) fn packed(params: &[Vec<u8>]) -> Vec<u8> {
    let mut buffer = Vec::new();
    for param in params {
        buffer.resize(buffer.len().next_multiple_of(param.len().max(1)), 0);
        buffer.extend_from_slice(param);
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_packed_as_a_kernel_expects_them() {
        let params = [vec![1; 4], vec![2; 8], vec![3; 1], vec![4; 2], vec![5; 8]];
        let expected = [&[1_u8; 4][..], &[0; 4], &[2; 8], &[3], &[0], &[4; 2], &[0; 4], &[5; 8]];
        assert_eq!(packed(&params), expected.concat());
        assert!(packed(&[]).is_empty());
    }
}
