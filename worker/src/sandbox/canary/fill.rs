//! Fills a requested amount of memory as fast as one thread can, when a byte arrives on standard input.

use std::io::{Read as _, Write as _};

const STEP: usize = 1 << 20;

/// Waits for a byte from standard input, then fills `mib` MiB, and prints `filled`, or `refused` if memory runs out.
/// Keeps the memory until another byte comes or the input ends.
pub(super) fn fill(mib: usize) -> i32 {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut input = std::io::stdin();
    let mut word = [0u8; 1];
    if input.read(&mut word).unwrap_or(0) == 0 {
        return 0;
    }
    let page = rustix::param::page_size();
    let mut blocks = Vec::with_capacity(mib);
    for _ in 0..mib {
        let mut block: Vec<u8> = Vec::new();
        if block.try_reserve_exact(STEP).is_err() {
            println!("refused");
            return 0;
        }
        let start = block.as_mut_ptr();
        for at in (0..STEP).step_by(page) {
            // SAFETY: within the reserved memory.
            unsafe { start.add(at).write_volatile(1) };
        }
        blocks.push(block);
    }
    println!("filled");
    let _ = std::io::stdout().flush();
    let _ = input.read(&mut word);
    std::hint::black_box(&blocks);
    0
}
