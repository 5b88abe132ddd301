//! Turns the counts of the emulated device into hints for the author of a kernel's next version. The counts say nothing
//! certain about times.

use opt_shared::outcome::{EmulatedKernel, Traffic};

const MAX_HINTS: usize = 4;
/// A kernel is mentioned if its accesses take at least this many times as many parts (sectors or passes) as necessary.
const NOTABLE: u64 = 2;
/// A kernel is mentioned if, on average, more than one in this many warp instructions is a divergent branch.
const INSTRUCTIONS_PER_DIVERGENCE: u64 = 50;

/// Returns one hint for each problem, at most `MAX_HINTS` in all. The problem with the most unnecessary parts or
/// divergent branches comes first.
pub(super) fn hints(kernels: &[EmulatedKernel]) -> Vec<String> {
    let mut found: Vec<(u64, String)> = Vec::new();
    for it in kernels {
        let symbol = &it.symbol;
        for (traffic, what, parts) in [
            (&it.global, "makes uncoalesced accesses to global memory", "sectors of 32 bytes"),
            (&it.shared, "has bank conflicts in shared memory", "passes"),
        ] {
            if let Some(figures) = excess(traffic, parts) {
                let unnecessary = traffic.parts - traffic.fewest_parts;
                found.push((unnecessary, format!("On the emulated device, `{symbol}` {what}: {figures}.")));
            }
        }
        let branches = it.divergent_branches;
        if it.warp_instructions / INSTRUCTIONS_PER_DIVERGENCE < branches {
            let of = it.warp_instructions;
            found.push((
                branches,
                format!(
                    "On the emulated device, warps of `{symbol}` diverge at {branches} branches in {of} warp \
                     instructions."
                ),
            ));
        }
    }
    found.sort_by_key(|(unnecessary, _)| std::cmp::Reverse(*unnecessary));
    found.into_iter().take(MAX_HINTS).map(|(_, hint)| hint).collect()
}

/// Describes the accesses of a kernel if they take many unnecessary parts.
fn excess(traffic: &Traffic, parts: &str) -> Option<String> {
    let worst = traffic.worst.as_ref()?;
    let is_notable = traffic.fewest_parts.saturating_mul(NOTABLE) <= traffic.parts;
    is_notable.then(|| {
        let (actual, fewest) = (traffic.parts, traffic.fewest_parts);
        format!("{actual} {parts} where {fewest} would do. The worst place is {worst}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(parts: u64, fewest_parts: u64) -> Traffic {
        let worst = (fewest_parts < parts).then(|| "PTX line 31, softmax.cu:7".to_owned());
        Traffic { accesses: fewest_parts, parts, fewest_parts, worst, worst_launch: None }
    }

    fn kernel(shared: Traffic, global: Traffic, divergent_branches: u64) -> EmulatedKernel {
        EmulatedKernel {
            symbol: "k".to_owned(),
            launches: 1,
            warp_instructions: 1000,
            divergent_branches,
            shared,
            global,
        }
    }

    #[test]
    fn worst_problem_comes_first_and_names_its_worst_line() {
        let found = hints(&[kernel(traffic(64, 2), traffic(3200, 400), 21)]);
        assert_eq!(
            found,
            [
                "On the emulated device, `k` makes uncoalesced accesses to global memory: 3200 sectors of 32 bytes \
                 where 400 would do. The worst place is PTX line 31, softmax.cu:7.",
                "On the emulated device, `k` has bank conflicts in shared memory: 64 passes where 2 would do. The \
                 worst place is PTX line 31, softmax.cu:7.",
                "On the emulated device, warps of `k` diverge at 21 branches in 1000 warp instructions.",
            ]
        );
    }

    #[test]
    fn good_kernels_get_no_hints_and_bad_ones_a_limited_number() {
        assert!(hints(&[kernel(traffic(2, 2), traffic(500, 400), 20)]).is_empty());
        assert!(hints(&[EmulatedKernel::default()]).is_empty());
        let many = vec![kernel(traffic(64, 2), traffic(3200, 400), 100); 5];
        assert_eq!(hints(&many).len(), MAX_HINTS);
    }
}
