//! Hints from the counts of the emulated device, for the author of a kernel's next version. The counts say nothing
//! certain about times.

use opt_shared::outcome::{EmulatedKernel, Traffic};

const MAX_HINTS: usize = 4;
/// A kernel is mentioned if its accesses take at least this many times the necessary parts (sectors or passes).
const NOTABLE: u64 = 2;
/// A kernel is mentioned if, on average, more than one in this many warp instructions is a divergent branch.
const INSTRUCTIONS_PER_DIVERGENCE: u64 = 50;

/// A sentence for each problem, for at most `MAX_HINTS`. The problem with the most unnecessary parts or divergent
/// branches comes first.
pub(super) fn hints(kernels: &[EmulatedKernel]) -> Vec<String> {
    let mut found: Vec<(u64, String)> = Vec::new();
    for it in kernels {
        let symbol = &it.symbol;
        for (traffic, what, parts) in [
            (&it.global, "accesses to global memory are not coalesced", "sectors of 32 bytes"),
            (&it.shared, "accesses to shared memory conflict in its banks", "passes"),
        ] {
            if let Some(figures) = excess(traffic, parts) {
                let unnecessary = traffic.parts - traffic.fewest_parts;
                found.push((unnecessary, format!("Emulated, in `{symbol}`: {what}: {figures}.")));
            }
        }
        let branches = it.divergent_branches;
        if it.warp_instructions / INSTRUCTIONS_PER_DIVERGENCE < branches {
            let of = it.warp_instructions;
            found.push((
                branches,
                format!(
                    "Emulated, in `{symbol}`: the lanes of a warp diverge in {branches} branches, of {of} instructions."
                ),
            ));
        }
    }
    found.sort_by_key(|(unnecessary, _)| std::cmp::Reverse(*unnecessary));
    found.into_iter().take(MAX_HINTS).map(|(_, hint)| hint).collect()
}

/// The figures of accesses with many unnecessary parts.
fn excess(traffic: &Traffic, parts: &str) -> Option<String> {
    let worst = traffic.worst.as_ref()?;
    let is_notable = traffic.fewest_parts.saturating_mul(NOTABLE) <= traffic.parts;
    is_notable.then(|| {
        format!("{} {parts} where {} would do, most of them at {worst}", traffic.parts, traffic.fewest_parts)
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
    fn hints_name_the_worst_line_of_each_problem_first() {
        let found = hints(&[kernel(traffic(64, 2), traffic(3200, 400), 21)]);
        assert_eq!(
            found,
            [
                "Emulated, in `k`: accesses to global memory are not coalesced: 3200 sectors of 32 bytes where 400 \
                 would do, most of them at PTX line 31, softmax.cu:7.",
                "Emulated, in `k`: accesses to shared memory conflict in its banks: 64 passes where 2 would do, most \
                 of them at PTX line 31, softmax.cu:7.",
                "Emulated, in `k`: the lanes of a warp diverge in 21 branches, of 1000 instructions.",
            ]
        );
    }

    #[test]
    fn good_kernels_get_no_hints() {
        assert!(hints(&[kernel(traffic(2, 2), traffic(500, 400), 20)]).is_empty());
        assert!(hints(&[EmulatedKernel::default()]).is_empty());
        let many = vec![kernel(traffic(64, 2), traffic(3200, 400), 100); 5];
        assert_eq!(hints(&many).len(), MAX_HINTS);
    }
}
