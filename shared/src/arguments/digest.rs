//! Computes the digest of those parts of a signature that a kernel can see.
//!
//! The digest is computed from a text that this file writes. It does not depend on serde's output format.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::Signature;

impl Signature {
    /// SHA-256 in hex of the parameters in their order, the number of arguments of each, and the defaults for missing
    /// parameters. The captures' own order and the parameters that are left out are not included, so a new capture that
    /// makes no difference to a kernel does not change the digest.
    pub fn digest(&self) -> String {
        hex::encode(Sha256::digest(self.canonical()))
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
    fn digested_text_stays_the_same_between_versions() {
        assert_eq!(
            signature().canonical(),
            "opt-supervisor signature 1\n5:input value required\n3:eps value default 22:float:3ee4f8b588e368f1\n"
        );
        assert_eq!(signature().digest().len(), 64);
    }

    #[test]
    fn digest_changes_only_with_what_a_kernel_sees() {
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
