//! Contains the files of the Python package `opt_captures`, which are compiled into the program.

use std::io;
use std::path::Path;

const NAME: &str = "opt_captures";
/// The file `__main__.py` of the folder. Python runs this file if it is given the folder.
const START: &str = "import sys\n\nfrom opt_captures.__main__ import main\n\nsys.exit(main())\n";

/// Lists the names and the contents of the package's files.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../python/opt_captures/", $name)))),*]
    };
}

const FILES: [(&str, &str); 19] = files![
    "__init__.py",
    "__main__.py",
    "effects.py",
    "errors.py",
    "flashinfer.py",
    "kernelbench.py",
    "kernelforge.py",
    "names.py",
    "op.py",
    "plans.py",
    "recorder.py",
    "reservoir.py",
    "signatures.py",
    "sinks.py",
    "skeletons.py",
    "store.py",
    "summary.py",
    "surroundings.py",
    "values.py",
];

/// Writes the package to a folder, so that the interpreter can run the folder.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    let package = folder.join(NAME);
    std::fs::create_dir(&package)?;
    for (name, text) in FILES {
        std::fs::write(package.join(name), text)?;
    }
    std::fs::write(folder.join("__main__.py"), START)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_contains_every_file_of_the_package() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python").join(NAME);
        let mut found: Vec<String> = std::fs::read_dir(&source)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| Path::new(name).extension().is_some_and(|it| it == "py"))
            .collect();
        found.sort();
        assert_eq!(found, FILES.map(|(name, _)| name));
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for name in found {
            let written = std::fs::read(folder.path().join(NAME).join(&name)).unwrap();
            assert_eq!(written, std::fs::read(source.join(&name)).unwrap(), "{name}");
        }
    }
}
