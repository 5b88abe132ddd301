//! Tests of the emulated device through its public interface, mostly with PTX written by hand.

mod counts;
mod fragments;
mod groups;
mod hostile;
mod kit;
mod lines;
mod mbarrier;
mod memory;
mod opcodes;
mod products;
mod refusals;
mod tensor;
