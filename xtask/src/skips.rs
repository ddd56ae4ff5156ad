//! The tests that may be skipped in each place: `xtask/skips.txt`.
//!
//! A test that asks the device for a capability, and is skipped without it, passes for ever once the capability is lost. So a test
//! that is skipped and not listed counts as failed.

/// The list.
const LIST: &str = include_str!("../skips.txt");

/// The tests that may be skipped in this place, such as `guest siw`, besides those that need what the machine lacks.
pub(crate) fn permitted(place: &str) -> Vec<String> {
    lines(LIST).filter(|(own, _)| *own == place).map(|(_, test)| test.to_owned()).collect()
}

/// The place and the name of each test.
fn lines(list: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut place = "";
    list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).filter_map(move |line| match line
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        Some(next) => {
            place = next;
            None
        }
        None => Some((place, line)),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::{fake, layers, test};

    #[test]
    fn a_test_belongs_to_the_place_above_it() {
        let list = "# A list.\n[host]\na::b\n\n[guest rxe]\na::c\nd\n";
        let found: Vec<_> = lines(list).collect();
        assert_eq!(found, [("host", "a::b"), ("guest rxe", "a::c"), ("guest rxe", "d")]);
    }

    #[test]
    fn every_place_is_that_of_a_step() {
        let steps = test::STEPS.iter().map(|step| step.place.to_owned());
        let places: BTreeSet<_> = steps.chain(fake::places()).collect();
        for (place, test) in lines(LIST) {
            assert!(places.contains(place), "{test} is listed for {place:?}");
        }
    }

    // A test that is gone or has another name must not stay on the list.
    #[test]
    fn every_test_of_the_list_exists() {
        let mut files = Vec::new();
        for folder in ["tests", "examples", "xtask/src"] {
            let folder = crate::root().join(folder);
            layers::list(Path::new(&folder), &mut files).expect("a folder");
        }
        let texts: Vec<_> = files.iter().map(|file| fs::read_to_string(file).expect("a file")).collect();
        for (place, test) in lines(LIST) {
            let name = test.rsplit("::").next().expect("a name");
            let head = format!("fn {name}(");
            assert!(texts.iter().any(|text| text.contains(&head)), "{place}: there is no test {test}");
        }
    }
}
