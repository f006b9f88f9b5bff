use super::*;
use crate::collect::counting::plan::{Call, Kind, Place, Target};

fn plan(count: usize) -> Plan {
    let place = |index: usize| Place {
        address: index as u64,
        entry: false,
        out_of_reach: index % 10 == 9,
        proxy: None,
        function: index as u64 / 2,
        kind: if index < 20 { Kind::Lock } else { Kind::Other },
        calls: vec![Call {
            address: index as u64,
            target: 0,
            deeper: 0,
        }],
    };
    Plan {
        targets: vec![Target {
            symbol: "debug_smp_processor_id".to_owned(),
            address: 0,
            inlined: 1,
            option: 0,
        }],
        places: (0..count).map(place).collect(),
        callees: CallGraph::from_iter([(50, vec![60]), (60, vec![70])]),
    }
}

/// Plays a workload whose places are hit at fixed rates, per nanosecond.
fn play(rates: &[f64], sets: usize, seed: u64) -> Vec<Looked> {
    let mut plan = plan(rates.len());
    let mut schedule = Schedule::new(&mut plan, seed);
    for _ in 0..sets {
        let set = schedule.draw(4, 1_000.0).unwrap();
        for _ in 0..set.windows {
            let ns = set.window_ns as f64;
            let window = schedule.window(ns, 1.0, true);
            for &place in &set.places {
                assert!(!plan.places[place].out_of_reach);
                let hits = (rates[place] * ns).round() as u64;
                schedule.record(place, &window, [0, hits, 0, 0]);
            }
        }
    }
    schedule.finish()
}

#[test]
fn what_was_sampled_is_looked_at_first() {
    let mut schedule = Schedule::new(&mut plan(200), 5);
    schedule.hint(&[50]);
    let mut order = Vec::new();
    while order.len() < 25 {
        order.extend(schedule.unknown(4));
    }
    let position = |place: usize| order.iter().position(|index| *index == place).unwrap();
    // Locks and the function itself, then what it calls, then what that calls;
    // of each the first place before the other.
    assert!(position(100) < position(101) && position(101) < 20);
    assert!(position(120) < position(121) && position(121) < position(140));
    assert!(position(120) >= 18);
}

#[test]
fn every_place_is_looked_at_and_the_hot_ones_most() {
    let mut rates = vec![0.0; 200];
    rates[100] = 3e-4;
    rates[150] = 1e-4;
    let seen = play(&rates, 400, 7);
    let time = |index: usize| seen[index].seen.iter().map(|seen| seen.ns).sum::<f64>();
    for index in (0..200).filter(|index| index % 10 != 9) {
        assert!(time(index) > 0.0, "{index}");
    }
    assert!(time(100) > 10.0 * time(3) && time(150) > 5.0 * time(3));
    assert_eq!(time(9), 0.0);
}

#[test]
fn sums_of_rates_come_out_right() {
    let rates: Vec<f64> = (0..60).map(|index| 2e-4 / f64::from(1 + index)).collect();
    let seen = play(&rates, 2_000, 3);
    let (mut sum, mut truth) = (0.0, 0.0);
    for (index, Looked { seen, .. }) in seen.iter().enumerate() {
        let ns: f64 = seen.iter().map(|seen| seen.ns).sum();
        let hits: f64 = seen.iter().map(|seen| seen.hits[1]).sum();
        // Of a rate so low that a window's hits are rounded to nothing, nothing
        // is known here.
        if index % 10 != 9 && rates[index] > 1e-5 {
            sum += hits / ns;
            truth += rates[index];
        }
        assert!(seen.iter().all(|seen| usize::from(seen.group) < GROUPS));
    }
    assert!((sum / truth - 1.0).abs() < 0.03, "{sum} {truth}");
}

#[test]
fn places_that_are_not_hit_are_looked_at_again_and_again() {
    for places in [1, 2, 7, 200] {
        let mut schedule = Schedule::new(&mut plan(places), 9);
        for _ in 0..500 {
            let set = schedule.draw(4, 1_000.0).expect("there are places left");
            assert!(!set.places.is_empty());
            let window = schedule.window(1_000.0, 1.0, true);
            for place in set.places {
                schedule.record(place, &window, [0; hit::COUNT]);
            }
        }
    }
}

#[test]
fn places_that_are_refused_are_left_alone() {
    let mut schedule = Schedule::new(&mut plan(8), 1);
    for index in 0..8 {
        schedule.refuse(index);
    }
    assert_eq!(schedule.draw(4, 1_000.0), None);
}

#[test]
fn a_look_while_the_workload_waits_is_none() {
    let mut schedule = Schedule::new(&mut plan(40), 4);
    let set = schedule.draw(4, 1_000.0).unwrap();
    let idle = schedule.window(1e6, 1.0, false);
    for &place in &set.places {
        schedule.record(place, &idle, [0; hit::COUNT]);
    }
    let mut others = Vec::new();
    while others.len() < 32 {
        others.extend(schedule.unknown(4));
    }
    // They have their turn again in the same pass, and the time counts.
    assert_eq!(schedule.passes, 0);
    assert!(set.places.iter().all(|place| others.contains(place)));
    let looked = schedule.finish();
    assert!(
        set.places
            .iter()
            .all(|&place| looked[place].seen[0].ns == 1e6)
    );
}

#[test]
fn a_window_weighs_as_much_as_it_stands_for() {
    let mut schedule = Schedule::new(&mut plan(4), 4);
    for (weight, hits) in [(3.0, 10), (1.0, 2)] {
        let window = schedule.window(1e3, weight, true);
        schedule.record(0, &window, [0, hits, 0, 0]);
    }
    let seen = &schedule.finish()[0].seen;
    let sum = |of: &dyn Fn(&Seen) -> f64| seen.iter().map(of).sum::<f64>();
    // Three quarters of the run at 10 in a window, and a quarter at 2.
    assert!((sum(&|seen| seen.hits[1]) - 16.0).abs() < 1e-9);
    assert!((sum(&|seen| seen.ns) - 2e3).abs() < 1e-9);
}
