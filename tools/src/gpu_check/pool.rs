//! Tests whether `CUmemPoolProps.maxSize` limits the whole pool or only each allocation.

use anyhow::Result;

use crate::Arguments;
use crate::cuda::Device;
use crate::row::{Row, mib};

const LIMIT: u64 = 64 << 20;
const PART: u64 = 48 << 20;
const TOO_LARGE: u64 = 128 << 20;

pub(crate) fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let open = Device::open(arguments)?;
    let sum = || -> Result<(String, String)> {
        let pool = open.pool(LIMIT)?;
        let first = pool.allocate(PART)?;
        let second = pool.allocate(PART);
        let outcome = match &second {
            Ok(_) => "given".to_owned(),
            Err(error) => format!("refused ({error})"),
        };
        let answer = if second.is_ok() { "no" } else { "yes" };
        pool.release(first)?;
        if let Ok(second) = second {
            pool.release(second)?;
        }
        let again = pool.allocate(PART).is_ok();
        Ok((
            answer.to_owned(),
            format!(
                "maxSize {}: {} given, {} more {outcome}; after a release {} {}",
                mib(LIMIT),
                mib(PART),
                mib(PART),
                mib(PART),
                if again { "given" } else { "refused" }
            ),
        ))
    };
    let single = || -> Result<(String, String)> {
        let pool = open.pool(LIMIT)?;
        let result = pool.allocate(TOO_LARGE);
        Ok(match result {
            Ok(memory) => {
                pool.release(memory)?;
                ("no".to_owned(), format!("maxSize {}: {} given", mib(LIMIT), mib(TOO_LARGE)))
            }
            Err(error) => {
                ("yes".to_owned(), format!("maxSize {}: {} refused ({error})", mib(LIMIT), mib(TOO_LARGE)))
            }
        })
    };
    Ok(vec![
        Row::of("does CUmemPoolProps.maxSize bound the sum of allocations?", sum()),
        Row::of("does it bound a single allocation?", single()),
    ])
}
