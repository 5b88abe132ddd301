//! Tests of the ledger: the ceilings, the floor, and the memory that a grant must leave for other workers.

use proptest::prelude::*;

use super::*;

fn ledger(ceilings: Ceilings) -> Ledger {
    Ledger::new(ceilings, Bytes::new(10), Bytes::ZERO)
}

#[test]
fn demand_arithmetic_keeps_host_and_device_apart() {
    let demand = |host, device| Demand { host: Bytes::new(host), device: Bytes::new(device) };
    assert_eq!(demand(5, 7) + demand(2, 3), demand(7, 10));
    assert_eq!(demand(5, 7) - demand(2, 3), demand(3, 4));
    assert_eq!(demand(5, 7) - demand(6, 3), demand(0, 4), "subtraction saturates at zero");
    assert_eq!(demand(5, 7).sum(), Bytes::new(12));
}

proptest! {
    #[test]
    fn no_grant_breaks_a_ceiling(
        unified in proptest::bool::ANY,
        steps in proptest::collection::vec((0u32..4, 0u64..150, 0u64..40, 0u8..5), 1..80)
    ) {
        let ceilings = Ceilings { host: Bytes::new(200), device: Bytes::new(100), unified };
        let mut ledger = ledger(ceilings);
        for (worker, host, device, kind) in steps {
            let worker = WorkerId(worker);
            let demand = Demand { host: Bytes::new(host), device: Bytes::new(device) };
            match kind {
                0 => ledger.measure(worker, demand),
                1 => ledger.close(worker),
                2 => ledger.release(worker, Bytes::new(1)),
                3 => ledger.measure_machine(Bytes::new(device), None),
                _ => {
                    let before = ledger.charged();
                    match ledger.grant(worker, demand) {
                        Ok(()) => prop_assert_eq!(ceilings.over(ledger.charged()), None),
                        Err(Refusal::Ceiling { charged, wanted, ceiling, .. }) => {
                            prop_assert!(ceiling < charged + wanted);
                            prop_assert_eq!(ledger.charged(), before);
                        }
                        Err(Refusal::Floor { .. } | Refusal::DeviceInUse { .. }) => {
                            prop_assert!(false, "the machine was not measured");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn grants_keep_the_floor_of_the_machine() {
    let mut ledger = Ledger::new(Ceilings::host(Bytes::gib(100)), Bytes::gib(2), Bytes::ZERO);
    ledger.open(WorkerId(1), Bytes::ZERO);
    ledger.measure_machine(Bytes::ZERO, Some(Bytes::gib(5)));
    let wanted = |gib| Demand::host(Bytes::gib(gib));
    assert!(matches!(ledger.grant(WorkerId(1), wanted(4)), Err(Refusal::Floor { .. })));
    assert_eq!(ledger.grant(WorkerId(1), wanted(3)), Ok(()));
    // A lease needs no more memory for what its worker owes already. Memory that is reserved for other workers must
    // stay available.
    ledger.measure(WorkerId(1), wanted(1));
    ledger.measure_machine(Bytes::ZERO, Some(Bytes::gib(4)));
    assert_eq!(ledger.admits(Some(WorkerId(1)), wanted(3)), Ok(()));
    let refused = Refusal::Floor { available: Bytes::gib(4), wanted: Bytes::gib(3), floor: Bytes::gib(2) };
    assert_eq!(ledger.admits(None, wanted(1)), Err(refused));
    assert!(refused.to_string().contains("host_floor"));
}

/// A lease is granted only if the device has enough free memory for what its worker does not hold yet, and for what
/// other workers have reserved but do not hold yet.
#[test]
fn grants_leave_free_device_memory_for_what_others_reserved() {
    let ceilings = Ceilings { host: Bytes::new(1000), device: Bytes::new(1000), unified: false };
    let mut ledger = ledger(ceilings);
    let on_device = |bytes| Demand { host: Bytes::new(1), device: Bytes::new(bytes) };
    for worker in [1, 2] {
        ledger.open(WorkerId(worker), Bytes::ZERO);
        ledger.grant(WorkerId(worker), on_device(100)).expect("far below the ceiling");
    }
    ledger.measure(WorkerId(1), on_device(30));
    ledger.measure(WorkerId(2), on_device(60));
    // The first worker needs 170 more for a lease of 200, and the second may still take 40.
    ledger.measure_device(Some(Bytes::new(170 + 40)));
    assert_eq!(ledger.admits(Some(WorkerId(1)), on_device(200)), Ok(()));
    ledger.measure_device(Some(Bytes::new(170 + 40 - 1)));
    let refused = Refusal::DeviceInUse { free: Bytes::new(209), wanted: Bytes::new(210) };
    assert_eq!(ledger.admits(Some(WorkerId(1)), on_device(200)), Err(refused));
    // A new worker holds nothing, and both others may still grow.
    let refused = Refusal::DeviceInUse { free: Bytes::new(209), wanted: Bytes::new(100 + 70 + 40) };
    assert_eq!(ledger.admits(None, on_device(100)), Err(refused));
    assert_eq!(ledger.admits(None, on_device(99)), Ok(()));
    assert_eq!(ledger.admits(None, Demand::host(Bytes::new(5))), Ok(()), "it needs no device");
}

#[test]
fn unified_memory_is_limited_by_the_smaller_ceiling() {
    let demand = Demand { host: Bytes::new(60), device: Bytes::new(60) };
    let apart = Ceilings { host: Bytes::new(100), device: Bytes::new(80), unified: false };
    assert_eq!(apart.over(demand), None);
    let one = Ceilings { unified: true, ..apart };
    assert_eq!(one.over(demand), Some((CeilingScope::Unified, Bytes::new(120), Bytes::new(80))));
    assert_eq!(one.over(Demand::host(Bytes::new(80))), None);
    let no_device = Ceilings { device: Bytes::ZERO, ..one };
    assert_eq!(no_device.over(Demand::host(Bytes::new(100))), None);
    let device = Demand { host: Bytes::ZERO, device: Bytes::new(81) };
    assert_eq!(apart.over(device), Some((CeilingScope::Device, Bytes::new(81), Bytes::new(80))));
    let mut ledger = ledger(apart);
    ledger.open(WorkerId(1), Bytes::ZERO);
    let refusal = ledger.grant(WorkerId(1), device).expect_err("over the device's ceiling");
    assert!(refusal.to_string().contains("device_ceiling"), "{refusal}");
    assert_eq!(refusal.numbers()[1], ("wanted_bytes", 81));
}

#[test]
fn supervisor_is_charged_the_larger_of_reserved_and_owed() {
    let mut ledger = Ledger::new(Ceilings::host(Bytes::new(100)), Bytes::ZERO, Bytes::new(20));
    let wanted = |bytes| Demand::host(Bytes::new(bytes));
    assert_eq!(ledger.never_fits(wanted(80)), None);
    assert_eq!(ledger.never_fits(wanted(81)), Some((CeilingScope::Host, Bytes::new(101), Bytes::new(100))));
    ledger.measure_machine(Bytes::new(30), None);
    assert_eq!(ledger.never_fits(wanted(80)), None, "it may owe less the next time");
    ledger.raise_supervisor(Bytes::new(1));
    assert!(ledger.never_fits(wanted(80)).is_some());
    assert_eq!((ledger.charged(), ledger.owed()), (wanted(30), wanted(30)));
    ledger.open(WorkerId(1), Bytes::new(5));
    ledger.measure(WorkerId(1), wanted(12));
    assert_eq!((ledger.charge(WorkerId(1)), ledger.excess(WorkerId(1))), (wanted(12), wanted(7)));
    assert_eq!(ledger.excess(WorkerId(2)), Demand::default());
}
