//! The digest of a signature: equal as long as every kernel of the job sees the same arguments.
//!
//! Made from a text written here and not from serde's output, so that no change of a format changes it.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::Signature;

impl Signature {
    /// SHA-256 in hex over what a kernel can see of the signature: the parameters in their order, how many arguments
    /// each makes, and what stands in for a missing one. The captures' own order and parameters that are left out
    /// do not count: a new capture that changes nothing for a kernel changes nothing here.
    pub fn digest(&self) -> String {
        let hash = Sha256::digest(self.canonical());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn canonical(&self) -> String {
        let mut text = String::from("opt-supervisor signature 1\n");
        for name in &self.params {
            let arguments =
                self.lists.get(name).map_or("value".to_owned(), |length| format!("list {length}"));
            let default = self.defaults.get(name).map_or("required".to_owned(), |value| {
                let canonical = value.canonical();
                format!("default {}:{canonical}", canonical.len())
            });
            let write = writeln!(text, "{}:{name} {arguments} {default}", name.len());
            debug_assert!(write.is_ok(), "writing to a String does not fail");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::PlainValue;
    use super::*;

    fn signature() -> Signature {
        Signature {
            params: vec!["input".into(), "eps".into()],
            defaults: BTreeMap::from([
                ("eps".to_owned(), PlainValue::Float(1e-5)),
                ("inplace".to_owned(), PlainValue::Bool(false)),
            ]),
            positional: 0,
            captured: vec!["input".into(), "eps".into(), "inplace".into()],
            lists: BTreeMap::new(),
        }
    }

    #[test]
    fn the_digest_is_what_it_always_was() {
        assert_eq!(
            signature().canonical(),
            "opt-supervisor signature 1\n5:input value required\n3:eps value default 22:float:3ee4f8b588e368f1\n"
        );
        assert_eq!(signature().digest().len(), 64);
    }

    #[test]
    fn only_what_a_kernel_sees_changes_it() {
        let digest = signature().digest();
        let mut same = signature();
        same.captured.push("new".into());
        same.defaults.insert("new".into(), PlainValue::None);
        assert_eq!(same.digest(), digest);
        let changes: [fn(&mut Signature); 4] = [
            |signature| signature.params.reverse(),
            |signature| signature.params[0] = "inpu".into(),
            |signature| signature.defaults.insert("eps".into(), PlainValue::Float(2e-5)).map_or((), drop),
            |signature| signature.lists.insert("input".into(), 1).map_or((), drop),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut changed = signature();
            change(&mut changed);
            assert_ne!(changed.digest(), digest, "change {index}");
        }
    }
}
