//! Packs the parameters of a launch into one buffer, as a kernel expects them.

/// Packs the parameters at these offsets. If the driver has not reported as many, each parameter is aligned to its size.
/// (That is right for numbers and addresses, but not for structures.)
pub(super) fn packed(params: &[Vec<u8>], offsets: &[usize]) -> Vec<u8> {
    let mut buffer = Vec::new();
    for (number, param) in params.iter().enumerate() {
        let by_size = buffer.len().next_multiple_of(param.len().max(1));
        let offset = offsets.get(number).copied().filter(|_| offsets.len() == params.len());
        buffer.resize(offset.unwrap_or(by_size).max(buffer.len()), 0);
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
        assert_eq!(packed(&params, &[]), expected.concat());
        assert!(packed(&[], &[]).is_empty());
        // A structure of 24 bytes is aligned to 8.
        let params = [vec![1; 8], vec![2; 24], vec![3; 4]];
        assert_eq!(packed(&params, &[0, 8, 32]), [&[1_u8; 8][..], &[2; 24], &[3; 4]].concat());
        assert_eq!(packed(&params, &[0, 8]).len(), 8 + 16 + 24 + 4, "as if nothing had been reported");
    }
}
